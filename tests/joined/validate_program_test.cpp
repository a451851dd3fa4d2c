// gputwin validate runs, run_extrapolated and what_if.without, as a person meets them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/golden/program.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

const std::string kProgram = std::string("'") + GPUTWIN_PROGRAM + "' ";
const std::string kPublished =
    (fs::path(GPUTWIN_SOURCE_DIR) / "validation" / "runs" / "published.json").string();

json validated(const std::string& arguments) {
  const ProgramOutput out = run_command(kProgram + "validate runs " + arguments + " 2>/dev/null");
  EXPECT_EQ(out.exit_code, 0) << out.text;
  return json::parse(out.text);
}

fs::path written(const ScratchFolder& folder, const json& document) {
  const fs::path path = folder.path() / "runs.json";
  std::ofstream(path) << document.dump();
  return path;
}

/// A layer of a tiny model on two GPUs; null keys are not known.
json tiny_config() {
  return json::parse(R"({"device_id": "a100-sxm-80gb", "devices": 2, "nodes": 1, "node_size": 8,
    "devices_per_node": 2,
    "intra": {"kind": "nvswitch", "GBps_per_device_per_direction": 300, "pcie_gen": 4},
    "fabric": {"kind": "none"},
    "precision": {"compute": "bf16", "params": "bf16", "grads": "fp32"},
    "model": {"kind": "decoder", "name": "tiny", "layers": 2, "hidden": 512, "heads": 8,
      "head_dim": 64, "ffn": 2048, "vocab": 1024, "seq": 256, "activation": "gelu",
      "positions": "learned", "tied_embeddings": true},
    "parallel": {"tp": 1, "pp": 1, "dp": 2, "zero": 1, "schedule": "none"},
    "batch": {"micro": 1, "global": 4}, "recompute": "none", "attention": "flash2",
    "optimizer": "adam", "stack": "megatron-core-0.12"})");
}

TEST(ValidateRuns, PredictsWhatItCanAndSaysWhyNot) {
  json moe = tiny_config();
  moe["model"]["moe"] = {{"experts", 8}, {"topk", 2}};  // its width is missing
  const json rows = json::array(
      {{{"id", "measured"},
        {"kind", "k"},
        {"config", tiny_config()},
        {"target", {{"time_s", 1.0}}}},
       {{"id", "no-target"}, {"kind", "k"}, {"config", tiny_config()}, {"target", json::object()}},
       {{"id", "experts"}, {"kind", "k"}, {"config", moe}, {"target", {{"time_s", 1.0}}}}});
  const ScratchFolder folder("validate_runs");
  const json out = validated("'" + written(folder, rows).string() + "' --json");
  const json& measured = out["rows"][0];
  EXPECT_EQ(measured["status"], "ok");
  EXPECT_NEAR(measured["error"].get<double>(), measured["predicted_s"].get<double>() - 1.0, 1e-12);
  EXPECT_EQ(out["rows"][1]["predicted_s"], measured["predicted_s"]);
  EXPECT_TRUE(out["rows"][1]["measured_s"].is_null());
  EXPECT_TRUE(out["rows"][1]["error"].is_null());
  EXPECT_EQ(out["rows"][2]["status"], "unsupported");
  EXPECT_THAT(out["rows"][2]["reason"].get<std::string>(), HasSubstr("the width of an expert"));
  EXPECT_EQ(out["summary"]["kinds"][0]["scorable"], 2);
  EXPECT_EQ(out["summary"]["kinds"][0]["predicted"], 1);
}

TEST(ValidateRuns, BreachesABoundWithExitCodeOne) {
  json row{{"id", "a"}, {"kind", "k"}, {"config", tiny_config()}, {"target", {{"time_s", 1e6}}}};
  const ScratchFolder folder("validate_bound");
  const std::string file = "'" + written(folder, json::array({row})).string() + "'";
  EXPECT_EQ(run_command(kProgram + "validate runs " + file + " --max-error 0.5").exit_code, 1);
  EXPECT_EQ(run_command(kProgram + "validate runs " + file + " --max-error 1.5").exit_code, 0);
}

TEST(ValidateRuns, RefusesFilesThatAreNoRows) {
  const ScratchFolder folder("validate_bad");
  for (const json& bad : {json("text"), json::array({{{"id", "a"}}}), json::array({1})}) {
    const std::string file = "'" + written(folder, bad).string() + "'";
    const ProgramOutput out = run_command(kProgram + "validate runs " + file + " 2>&1");
    EXPECT_EQ(out.exit_code, 2) << bad;
    EXPECT_THAT(out.text, HasSubstr("runs.json"));
  }
  EXPECT_EQ(run_command(kProgram + "validate runs /nonexistent 2>&1").exit_code, 2);
}

// The rows of Korthikanti et al. 2022 as shipped: eight full-model runs of tables, one with dp 8.
TEST(ValidateRuns, TheShippedFileHoldsItsRowsAndTheyArePredicted) {
  const json out = validated("'" + kPublished + "' --group korthikanti --json");
  EXPECT_EQ(out["rows"].size(), 9u);
  for (const json& row : out["rows"]) {
    EXPECT_EQ(row["status"], "ok") << row["id"];
    EXPECT_LT(std::abs(row["error"].get<double>()), 0.15) << row["id"];
  }
}

// Pipelines of 4 stages with and without chunks, 60 and 24 micro-batches, extended from 8 and 12:
// within 2 % on a model so small that the host is the limit. Eight stages that leave weight
// gradients for later, 64 micro-batches: stages compute for longer than the eight beyond 16 take,
// so all are simulated.
TEST(ValidateRuns, ExtendedPipelinesEqualSimulatedOnes) {
  json plain = tiny_config();
  plain["devices"] = plain["devices_per_node"] = 4;
  plain["model"]["layers"] = 8;
  plain["parallel"] = {{"tp", 1}, {"pp", 4}, {"dp", 1}, {"schedule", "1f1b"}};
  plain["batch"] = {{"micro", 1}, {"global", 60}};
  json chunks = plain;
  chunks["parallel"]["vpp"] = 2;
  chunks["parallel"]["schedule"] = "interleaved";
  chunks["batch"]["global"] = 24;
  json later = plain;
  later["model"]["hidden"] = 4096, later["model"]["ffn"] = 16384, later["model"]["seq"] = 1024;
  later["model"]["heads"] = 32, later["model"]["head_dim"] = 128;
  later["devices"] = later["devices_per_node"] = later["parallel"]["pp"] = 8;
  later["parallel"]["schedule"] = "zb-1p";
  later["model"]["layers"] = 16, later["batch"]["global"] = 64;
  const json rows = json::array({{{"id", "plain"}, {"config", plain}},
                                 {{"id", "chunks"}, {"config", chunks}},
                                 {{"id", "later"}, {"config", later}}});
  const ScratchFolder folder("validate_extended");
  const std::string file = "'" + written(folder, rows).string() + "' --json";
  const json extended = validated(file), exact = validated(file + " --exact");
  const double near[] = {2e-2, 2e-2, 1e-9};
  for (std::size_t r = 0; r < 3; ++r) {
    const double whole = exact["rows"][r]["predicted_s"].get<double>();
    EXPECT_NEAR(extended["rows"][r]["predicted_s"].get<double>() / whole, 1.0, near[r])
        << rows[r]["id"];
  }
}

// A word that no row has, and files without rows, once ended with an empty table and exit code 0.
TEST(ValidateRuns, SaysWhichRowsThereAre) {
  const ScratchFolder folder("validate_choice");
  const auto refused = [](const std::string& arguments) {
    const ProgramOutput out = run_command(kProgram + "validate " + arguments + " 2>&1");
    EXPECT_EQ(out.exit_code, 2) << out.text;
    return out.text;
  };
  const std::string speedups =
      "'" + (fs::path(GPUTWIN_SOURCE_DIR) / "validation/speedups/overlap.json").string() + "'";
  EXPECT_THAT(
      refused("speedups " + speedups + " --group nosuch"),
      HasSubstr("--group: nosuch is that of no row (the files have domino, flux, te-slower)"));
  // One word of two that is wrong is wrong as well.
  EXPECT_THAT(refused("speedups " + speedups + " --group domino --group nosuch"),
              HasSubstr("nosuch is that of no row"));
  const json rows =
      json::array({{{"id", "a"}, {"kind", "k"}, {"group", "g"}, {"config", tiny_config()}},
                   {{"id", "b"}, {"kind", "l"}, {"group", "h"}, {"config", tiny_config()}}});
  const std::string file = "'" + written(folder, rows).string() + "'";
  for (const char* command : {"runs ", "curves "}) {
    EXPECT_THAT(refused(command + file + " --kind nosuch"), HasSubstr("the files have k, l"));
    EXPECT_THAT(refused(command + file + " --kind k --group h"),
                HasSubstr("--kind, --group: together leave no row"));
  }
  for (const char* command : {"runs ", "curves ", "speedups ", "cases "}) {
    const char* key = std::string(command) == "cases " ? "cases" : "rows";
    const std::string none = "'" + written(folder, {{key, json::array()}}).string() + "'";
    EXPECT_THAT(refused(command + none), HasSubstr("has no rows")) << command;
  }
}

// What is free takes no time, and nothing else takes longer.
TEST(WhatIf, FreeMechanismsLeaveTheBreakdown) {
  const std::string run =
      kProgram + "run gpt_22b__a100_1x8__tp8_pp1_dp1_full --json --set what_if.without=";
  const auto result = [&](const std::string& words) {
    const ProgramOutput out = run_command(run + "'" + words + "' 2>/dev/null");
    EXPECT_EQ(out.exit_code, 0) << out.text;
    return json::parse(out.text);
  };
  const json all = result("[]"), free = result(R"(["tp_comm", "optimizer"])");
  EXPECT_GT(all["breakdown_s"]["exposed_tp"].get<double>(), 0.0);
  EXPECT_EQ(free["breakdown_s"]["exposed_tp"].get<double>(), 0.0);
  EXPECT_EQ(free["breakdown_s"]["optimizer"].get<double>(), 0.0);
  EXPECT_LE(free["breakdown_s"]["compute"].get<double>(),
            all["breakdown_s"]["compute"].get<double>() * (1 + 1e-9));
  EXPECT_EQ(free["memory"], all["memory"]);
}

}  // namespace
}  // namespace gputwin
