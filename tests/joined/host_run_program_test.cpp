// gputwin run --executor host, as a person meets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/golden/program.h"

namespace gputwin {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kProgram = std::string("'") + GPUTWIN_PROGRAM + "' ";

/// A GPT of 2 layers on 2 ranks, in a file of the folder; the name of that file.
std::string scenario(const ScratchFolder& folder) {
  const json document = {
      {"name", "small"},
      {"model",
       {{"name", "small"},
        {"layers", 2},
        {"hidden", 32},
        {"heads", 4},
        {"ffn", 128},
        {"vocab", 64},
        {"max_positions", 32},
        {"activation", "gelu"},
        {"positions", "learned"},
        {"norm", "layernorm"},
        {"bias", true},
        {"tied_embeddings", true}}},
      {"cluster", "a100_pcie_1x8"},
      {"job",
       {{"sequence", 32},
        {"global_batch", 4},
        {"precision", {{"compute", "fp32"}, {"params", "fp32"}, {"grads", "fp32"}}}}},
      {"layout", {{"tp", 2}, {"micro_batch", 2}}}};
  const auto path = folder.path() / "small.json";
  std::ofstream(path) << document.dump();
  return "'" + path.string() + "' ";
}

/// (process, thread, name) of every slice of a Perfetto file, once each.
std::set<std::string> slices(const std::filesystem::path& path) {
  std::set<std::string> names;
  const json trace = read_json(path);
  for (const json& e : trace.at("traceEvents")) {
    if (e.value("ph", "") != "X") continue;
    names.insert(e.at("pid").dump() + "/" + e.at("tid").dump() + "/" + e.at("name").dump());
  }
  return names;
}

TEST(HostRunProgram, MeasuresAndDrawsWhatASimulationPredicts) {
  const ScratchFolder folder("host_run");
  const std::string small = scenario(folder);
  const auto predicted = folder.path() / "predicted.json", ran = folder.path() / "ran.json";
  ASSERT_EQ(
      run_command(kProgram + "run " + small + "--fold off --trace " + predicted.string()).exit_code,
      0);
  const ProgramOutput out = run_command(
      kProgram + "run " + small + "--executor host --repeats 3 --json --trace " + ran.string());
  ASSERT_EQ(out.exit_code, 0) << out.text;
  EXPECT_THAT(out.text, HasSubstr("median of 3 iterations"));
  EXPECT_THAT(out.text, HasSubstr("loss 3.90"));  // from about ln 64 = 4.16, four steps on
  EXPECT_EQ(slices(ran), slices(predicted));
}

// 50 ms for every transfer: many of them in an iteration.
TEST(HostRunProgram, LinksCanBeSlowed) {
  const ScratchFolder folder("host_run_links");
  const ProgramOutput out = run_command(kProgram + "run " + scenario(folder) +
                                        "--executor host --repeats 1 --link-latency 50000 --json");
  ASSERT_EQ(out.exit_code, 0) << out.text;
  EXPECT_GT(json::parse(out.text).at("iteration_time_s").get<double>(), 0.5);
}

TEST(HostRunProgram, RefusesWhatItCannotRun) {
  const ScratchFolder folder("host_run_refused");
  const std::string small = kProgram + "run " + scenario(folder);
  const ProgramOutput large =
      run_command(small + "--executor host --set model.hidden=16384 --set model.ffn=65536 2>&1");
  EXPECT_EQ(large.exit_code, 3);
  EXPECT_THAT(large.text, HasSubstr("the host executor needs for 2 ranks "));
  EXPECT_THAT(large.text, HasSubstr("GiB too much"));
  const ProgramOutput dropout = run_command(small + "--executor host --set model.dropout=0.1 2>&1");
  EXPECT_EQ(dropout.exit_code, 3);
  EXPECT_THAT(dropout.text, HasSubstr("model.dropout=0"));
}

// Eight ranks want eight GPUs: a machine with fewer, or a build without CUDA, says what to do.
TEST(HostRunProgram, GpusThatAreNotThereAreRefused) {
  const ScratchFolder folder("cuda_run_refused");
  const ProgramOutput out =
      run_command(kProgram + "run " + scenario(folder) + "--set layout.dp=4 --executor cuda 2>&1");
  if (out.exit_code == 0) GTEST_SKIP() << "eight GPUs";
  EXPECT_EQ(out.exit_code, 2) << out.text;
  EXPECT_THAT(out.text, HasSubstr("--executor: cuda "));
  EXPECT_THAT(out.text, HasSubstr("host"));
}

TEST(HostRunProgram, LeavesNoTraceWhenItIsStoppedOrKilled) {
  const ScratchFolder folder("host_run_stopped");
  const auto trace = folder.path() / "t.gtr";
  const std::string endless = kProgram + "run " + scenario(folder) +
                              "--executor host --repeats 10000 --trace " + trace.string();
  EXPECT_EQ(run_command(endless + " --time-limit 0.5 2>&1").exit_code, 1);
  EXPECT_FALSE(std::filesystem::exists(trace));
  run_command("timeout -s KILL 1 " + endless + " 2>&1");
  EXPECT_FALSE(std::filesystem::exists(trace));
}

}  // namespace
}  // namespace gputwin
