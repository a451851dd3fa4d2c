// Offload as a person meets it: figures of a run, the search's choice, published curves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/golden/program.h"

namespace gputwin {
namespace {

using nlohmann::json;

const std::string kProgram = std::string("'") + GPUTWIN_PROGRAM + "' ";

json answer(const std::string& arguments) {
  const ProgramOutput out = run_command(kProgram + arguments + " 2>/dev/null");
  EXPECT_EQ(out.exit_code, 0) << arguments << "\n" << out.text;
  return json::parse(out.text);
}

// 13B parameters, 16-bit gradients down once per micro-batch (4 of 8 samples): with all on the host
// and weights on the GPU at least 4 x 26 GB leave it, and 3 x 26 GB of gradients and 26 GB of
// weights come back, but for the embedding, which stays. A link of 31.5 x 0.81 GB/s is as busy as
// bytes over rate over time say.
TEST(OffloadRun, ReportsBytesAndHowBusyTheLinkIs) {
  const json r = answer(
      "run gpt3_13b__a100_1x8__tp1_pp1_dp1_greedy --json "
      "--set passes.0.offload.strategy=zero-offload --set passes.0.offload.reserve=0.2");
  ASSERT_EQ(r["offload"].size(), 1u);
  const json& o = r["offload"][0];
  EXPECT_EQ(o["role"], "stage0");
  const double parameters = 12.85e9, out = o["bytes_from_gpu"], in = o["bytes_to_gpu"];
  EXPECT_GT(out, 1 * 2 * parameters * 0.95);
  EXPECT_LT(out, 4 * 2 * parameters * 1.05);
  EXPECT_GT(in, 1 * 2 * parameters * 0.95);
  const double busy = in / (31.5e9 * 0.81) / r["iteration_time_s"].get<double>();
  EXPECT_NEAR(o["link_in_busy"].get<double>(), busy, 0.05 * busy);
  EXPECT_EQ(o["stall_s"], r["breakdown_s"]["copy_stall"]);
}

// The points of the shipped sweep over boxes: five clusters, seven GPTs and five BERTs. With all on
// the host every job fits but 30B, whose 16 bytes of each parameter are more than the hosts of the
// 2080Ti and the V100 have.
TEST(OffloadSweep, RunsEveryPointThatShips) {
  const json swept =
      answer("sweep gpt3_6_7b__a100_40gb_1x8__tp1_pp1_dp1_greedy --json -j 1 --list '" +
             std::string(GPUTWIN_SOURCE_DIR) +
             "/scenarios/sweeps/offload_boxes.txt' --extrapolate --set "
             "passes.0.offload.strategy=zero-infinity-cpu --set layout.micro_batch=2");
  ASSERT_EQ(swept["points"].size(), 60u);
  int short_of_memory = 0;
  for (const json& point : swept["points"]) {
    if (point["status"] == "ok") continue;
    ++short_of_memory;
    EXPECT_EQ(point["status"], "infeasible") << point.dump();
    EXPECT_NE(point["settings"]["model"].get<std::string>().find("30b"), std::string::npos);
  }
  EXPECT_EQ(short_of_memory, 4);
}

// Activations are asked to leave beside a strategy that finds room for all else: they left nothing
// behind, and nothing was said. With full recomputation a layer keeps its input, 16-bit, for each
// of 32 samples of 1,024 tokens; 36 layers of 1,280: 3.02 GB, less what is not away for long
// enough.
TEST(OffloadRun, MovesActivationsThoughStatesFit) {
  const json r = answer(
      "run gpt3_13b__a100_1x8__tp1_pp1_dp1_greedy --json --set model=gpt2_774m "
      "--set passes.0.offload.activations=cpu");
  ASSERT_EQ(r["offload"].size(), 1u);
  const double kept = 36.0 * 32 * 1024 * 1280 * 2, out = r["offload"][0]["bytes_from_gpu"];
  EXPECT_LE(out, kept * 1.1);
  EXPECT_GT(out, kept * 0.9);
}

// 6.7B, one micro-batch a step, a host of 64 cores and 8 channels: moving the least that fits was
// 14 % slower than StrongHold, which keeps its first layers whole and spares the host their steps.
TEST(OffloadRun, GreedyKeepsUpWithAWindow) {
  const auto seconds = [](const std::string& strategy) {
    return answer(
               "run gpt3_6_7b__a100_40gb_1x8__tp1_pp1_dp1_greedy --json --set job.global_batch=4 "
               "--set cluster.groups.0.type.host.cores=64 "
               "--set cluster.groups.0.type.host.dram_GBps=204.8 "
               "--set passes.0.offload.strategy=" +
               strategy)["iteration_time_s"]
        .get<double>();
  };
  EXPECT_LE(seconds("greedy-unclipped"), 1.005 * seconds("stronghold"));
}

// What was to leave and does not is said: all of a small model fits, and an eighth of a thousandth
// of the states is less than a bucket.
TEST(OffloadRun, SaysWhatDoesNotMove) {
  const std::string job =
      "run gpt3_13b__a100_1x8__tp1_pp1_dp1_greedy --json --set model=gpt2_774m ";
  const auto said = [&](const std::string& changes, const std::string& line) {
    const json warnings = answer(job + changes)["warnings"];
    return std::any_of(warnings.begin(), warnings.end(), [&](const json& w) {
      return w.get<std::string>().find(line) != std::string::npos;
    });
  };
  EXPECT_TRUE(said("", "offload moves nothing: all fits on the GPU"));
  EXPECT_TRUE(said(
      "--set passes.0.offload.strategy=zero-offload-plus --set passes.0.offload.optimizer_share=0",
      "moves no states of the optimizer"));
  // A link of 1 MB/s is too slow for anything to be away for two copies.
  EXPECT_TRUE(
      said("--set passes.0.offload.strategy=none --set passes.0.offload.activations=cpu "
           "--set cluster.groups.0.type.pcie.bandwidth_GBps=0.001",
           "moves no activations"));
  EXPECT_FALSE(said("--set passes.0.offload.strategy=zero-offload", "moves no"));
}

// What fits leaves nothing: greedy is the plan without offload, but for the size of its buckets,
// and so for some kernels of the optimizer.
TEST(OffloadRun, GreedyMovesNothingThatFits) {
  const std::string run =
      "run gpt3_6_7b__a100_40gb_1x8__tp1_pp1_dp1_greedy --json --set model=gpt2_355m ";
  const json greedy = answer(run), none = answer(run + "--set 'passes=[]'");
  const double time = none["iteration_time_s"];
  EXPECT_NEAR(greedy["iteration_time_s"].get<double>(), time, 1e-3 * time);
  EXPECT_FALSE(greedy.contains("offload"));
}

// What fits may still be faster with a host that steps under the backward pass: the GPU spends 2.7
// % of the iteration on it. Only where no step waits for the norm.
TEST(OffloadRun, UnclippedStepsOnAnIdleHost) {
  const std::string run =
      "run gpt3_6_7b__a100_40gb_1x8__tp1_pp1_dp1_greedy --json --set model=bert_1_3b "
      "--set job.sequence=512 ";
  const json none = answer(run + "--set 'passes=[]'");
  const json moved = answer(run + "--set passes.0.offload.strategy=greedy-unclipped");
  EXPECT_LT(moved["iteration_time_s"].get<double>(),
            0.995 * none["iteration_time_s"].get<double>());
  EXPECT_TRUE(moved.contains("offload"));
}

// 6.7B on one GPU of 40 GB: 16 bytes of weights, gradients and states per parameter never fit, so
// that the search tries offload without being asked, and what it ranks first runs to the time it
// gave.
TEST(OffloadSearch, IsTriedWhereNothingFits) {
  const ScratchFolder folder("offload_search");
  const json found = answer(
      "search gpt3_6_7b__a100_40gb_1x8__tp1_pp1_dp1_greedy --gpus 1 --top 2 --json "
      "--set 'passes=[]' --out '" +
      folder.path().string() + "'");
  ASSERT_FALSE(found["best"].empty());
  EXPECT_TRUE(found["best"][0].contains("offload")) << found["best"][0];
  const auto file = folder.path() / "gpt3_6_7b__a100_40gb_1x8__tp1_pp1_dp1_greedy__rank1.json";
  EXPECT_NEAR(answer("run '" + file.string() + "' --json")["iteration_time_s"].get<double>(),
              found["best"][0]["simulated_s"].get<double>(), 1e-9);
}

// The same for 175B on 16 GPUs of 80 GB, where 18 bytes a parameter take 3.2 of 1.3 TB (search_test
// says that 64 GPUs would do): the two hosts have 4 TB.
TEST(OffloadSearch, FindsThePlaceThatGpusLack) {
  const json found = answer(
      "search gpt3_175b__a100_8x8__tp8_pp8_dp1_full --set cluster=a100_2x8 --set layout.pp=2 "
      "--set layout.vpp=1 --set layout.schedule=1f1b --top 1 --json");
  ASSERT_TRUE(found["best"][0].contains("simulated_s"));
  EXPECT_EQ(found["best"][0]["offload"], "greedy");
  EXPECT_LE(found["best"][0]["device_bytes"].get<double>(), 80.0 * (1LL << 30));
}

// The scenario has overlap, compression and offload: the search also ranks layouts without the
// first two, says which combination won, and the winner is no slower than the layout of the file.
TEST(OffloadSearch, ChoosesAmongCombinationsOfPasses) {
  const json found = answer(
      "search megatron_gpt_39b__a100_pcie_1x8__tp2_pp2_dp2_zero1_overlap_compress_greedy "
      "--top 2 --json");
  bool with = false, without = false;
  for (const json& layout : found["best"]) {
    if (!layout.contains("simulated_s")) continue;
    with = with || (layout.contains("compress") && layout.contains("offload"));
    without = without || !layout.contains("compress");
  }
  EXPECT_TRUE(with);
  EXPECT_TRUE(without);
  EXPECT_LE(found["best"][0]["simulated_s"].get<double>(),
            found["given"]["simulated_s"].get<double>());
}

// 175B on 1,024 GPUs fits without offload, so none is looked at.
TEST(OffloadSearch, IsNotTriedWhereLayoutsFit) {
  const json found = answer("search gpt2_124m__a100_1x8__tp1_pp1_dp8 --top 1 --json");
  for (const json& layout : found["pareto"]) EXPECT_FALSE(layout.contains("offload"));
}

// The published curves of one V100 of 32 GB, factors of the stack fitted on them: within 15 % on
// the mean, the order of ZeRO-Offload and L2L right at every size, and the largest model within one
// step of 13B (12.3, 13.3, 15.3).
TEST(OffloadCurves, OfOneV100AreMet) {
  const json scores = answer("validate curves '" + std::string(GPUTWIN_SOURCE_DIR) +
                             "/validation/curves/offload.json' --group zero-offload --group l2l "
                             "--json");
  ASSERT_EQ(scores["curves"].size(), 2u);
  for (const json& curve : scores["curves"]) {
    EXPECT_EQ(curve["n"], 9);
    EXPECT_EQ(curve["predicted"], 9);
    EXPECT_LT(curve["mean"].get<double>(), 0.15) << curve["system"];
    EXPECT_GE(curve["largest_predicted"].get<double>(), 12e9);
    EXPECT_LE(curve["largest_predicted"].get<double>(), 16e9);
  }
  EXPECT_EQ(scores["order_of_systems"]["pairs"], 9);
  EXPECT_EQ(scores["order_of_systems"]["right"], 9);
}

// Rates are 8 x parameters x tokens / time. Without a batch the fastest of several micro-batches
// counts; what a source says does not train has no published rate.
TEST(OffloadCurves, CountFlopsByParametersAndChooseTheMicroBatch) {
  const ScratchFolder folder("curves");
  const json config = json::parse(R"({"device_id": "a100-sxm-80gb", "devices": 1, "nodes": 1,
    "node_size": 8, "devices_per_node": 1,
    "intra": {"kind": "nvswitch", "GBps_per_device_per_direction": 300, "pcie_gen": 4},
    "fabric": {"kind": "none"},
    "precision": {"compute": "fp16", "params": "fp16", "grads": "fp16"},
    "model": {"kind": "decoder", "name": "tiny", "layers": 2, "hidden": 512, "heads": 8,
      "head_dim": 64, "ffn": 2048, "vocab": 1024, "seq": 256, "activation": "gelu",
      "positions": "learned", "tied_embeddings": true},
    "parallel": {"tp": 1, "pp": 1, "dp": 1, "zero": 0, "schedule": "none"},
    "recompute": "full", "attention": "unfused", "optimizer": "adam",
    "stack": "patrickstar-0.4"})");
  json known = config;
  known["batch"] = {{"micro", 4}, {"global", 4}};
  const json rows = {{{"id", "free"},
                      {"group", "g"},
                      {"kind", "k"},
                      {"config", config},
                      {"target", {{"throughput", {{"value", 10}, {"unit", "TFLOP/s/device"}}}}}},
                     {{"id", "four"},
                      {"group", "g"},
                      {"kind", "k"},
                      {"config", known},
                      {"target", {{"time_s", 0.001}}}},
                     {{"id", "not"},
                      {"group", "g"},
                      {"kind", "k"},
                      {"config", known},
                      {"target", {{"trains", false}}}}};
  const auto path = folder.path() / "rows.json";
  std::ofstream(path) << rows.dump();
  const json scores = answer("validate curves '" + path.string() + "' --json");
  ASSERT_EQ(scores["curves"].size(), 1u);
  const json& curve = scores["curves"][0];
  EXPECT_EQ(curve["n"], 2);
  // 2 x (4 x 512^2 + 2 x 512 x 2048) + 1024 x 512 parameters, 4 x 256 tokens in 1 ms.
  const double parameters = 2 * (4 * 512.0 * 512 + 2 * 512.0 * 2048) + 1024 * 512;
  for (const json& p : curve["points"]) {
    if (p["id"] == "four") {
      EXPECT_NEAR(p["published_tflops"].get<double>(), 8 * parameters * 1024 / 1e-3 / 1e12, 1e-6);
      EXPECT_EQ(p["micro_batch"], 4);
    }
    if (p["id"] == "free") {
      EXPECT_GE(p["micro_batch"], 16);  // the launches of small ones take longer than their work
    }
    if (p["id"] == "not") {
      EXPECT_TRUE(p["published_tflops"].is_null());
    }
  }
}

}  // namespace
}  // namespace gputwin
