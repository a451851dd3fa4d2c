// What-ifs by path, each with the direction of its effect and, where a closed form exists, its
// size. One sweep per test: points of a list, in order.
#include <gmock/gmock.h>

#include <fstream>

#include "tests/golden/program.h"

namespace gputwin {
namespace {

using nlohmann::json;

// Four ranks of data parallelism on two nodes of two GPUs with an adapter each. 50 M parameters
// with gradients in 4 bytes are reduced after the backward pass, nothing under it.
constexpr const char* kJob = R"({
  "model": {"layers": 4, "hidden": 1024, "heads": 8, "ffn": 4096, "vocab": 1024,
            "activation": "gelu", "positions": "rope"},
  "cluster": {"groups": [{"count": 2, "type": {"device": "a100-sxm-80gb", "gpus": 2,
      "intra": {"kind": "nvswitch", "bandwidth_GBps": 300},
      "pcie": {"bandwidth_GBps": 31.5},
      "host": {"cores": 64, "memory_GiB": 1024, "dram_GBps": 400},
      "nics": {"per_node": 2, "each_Gbps": 10, "efficiency": 1}}}],
    "fabric": {"kind": "infiniband", "levels": [{"nodes_per_group": 1}, {"nodes_per_group": 2}]}},
  "job": {"sequence": 256, "global_batch": 8, "stack": "megatron-core"},
  "layout": {"dp": 4, "overlap_grad_reduce": false}
})";

// The points of `list`, one a line, swept in order.
std::vector<json> swept(const std::string& list, const std::string& more = "") {
  const ScratchFolder folder("what_if");
  std::ofstream(folder.path() / "job.json") << kJob;
  std::ofstream(folder.path() / "points.txt") << list;
  const ProgramOutput out = run_command(
      std::string("'") + GPUTWIN_PROGRAM + "' sweep '" + (folder.path() / "job.json").string() +
      "' --json --list '" + (folder.path() / "points.txt").string() + "' " + more + " 2>/dev/null");
  EXPECT_EQ(out.exit_code, 0) << out.text;
  std::vector<json> points = json::parse(out.text)["points"];
  for (const json& p : points) EXPECT_EQ(p["status"], "ok") << p.dump(2);
  return points;
}

double time_of(const json& point) { return point["iteration_time_s"].get<double>(); }
double dp_of(const json& point) { return point["breakdown_s"]["exposed_dp"].get<double>(); }

// T = L + X / b: from full to half to a quarter of the bandwidth the step doubles, and X is the
// load of an adapter: of two nodes each is the other's only neighbour in NCCL's tree, which passes
// S each way at 92 % of the rate, half of it over each adapter; S = 4 bytes x parameters.
TEST(WhatIfPaths, LinkBandwidthActsThroughTheBytesOfTheTree) {
  const auto p = swept(
      "cluster.groups.0.type.nics.each_Gbps=10\n"
      "cluster.groups.0.type.nics.each_Gbps=5\n"
      "cluster.groups.0.type.nics.each_Gbps=2.5Gbps\n");
  const double step = dp_of(p[1]) - dp_of(p[0]);
  EXPECT_NEAR((dp_of(p[2]) - dp_of(p[1])) / step, 2.0, 0.01);
  const double parameters = 4 * (12.0 * 1024 * 1024 + 13 * 1024) + 1024 * 1024 + 2 * 1024;
  const double load = 4 * parameters / 0.92 / 2;
  EXPECT_NEAR(step / (load / 1.25e9), 1.0, 0.05);
}

// A dead adapter sends its GPU to the other one, which then carries both halves: as if that one
// had half its speed, and as if a node had one adapter. A slow one holds up its half of the ring.
TEST(WhatIfPaths, AFailedAdapterCostsWhatAHalvedOneDoes) {
  const std::string nic = "what_if.nics.0.node=1 what_if.nics.0.nic=0 what_if.nics.0.speed=";
  const auto p = swept(nic + "1\n" + nic + "0.5\n" + nic + "0\n" + nic +
                       "0.25\n"
                       "cluster.groups.0.type.nics.each_Gbps=10\n"
                       "cluster.groups.0.type.nics.each_Gbps=5\n");
  EXPECT_EQ(time_of(p[0]), time_of(p[4]));
  EXPECT_NEAR(dp_of(p[1]) / dp_of(p[5]), 1.0, 0.01);
  EXPECT_NEAR(dp_of(p[2]) / dp_of(p[1]), 1.0, 0.01);
  EXPECT_NEAR((dp_of(p[3]) - dp_of(p[1])) / (dp_of(p[1]) - dp_of(p[0])), 2.0, 0.02);
}

TEST(WhatIfPaths, FewerAdaptersPerNodeTakeLonger) {
  const auto p = swept(
      "cluster.groups.0.type.nics.per_node=2\n"
      "cluster.groups.0.type.nics.per_node=1\n");
  EXPECT_NEAR(dp_of(p[1]) / dp_of(p[0]), 2.0, 0.05);
}

// Latency is paid once per step of a collective: linear in it, whatever the number of steps.
TEST(WhatIfPaths, LatencyActsLinearly) {
  const auto p = swept(
      "cluster.fabric.added_latency_us=0\ncluster.fabric.added_latency_us=500us\n"
      "cluster.fabric.added_latency_us=1ms\n");
  const double step = dp_of(p[1]) - dp_of(p[0]);
  EXPECT_GT(step, 500e-6);
  EXPECT_NEAR((dp_of(p[2]) - dp_of(p[1])) / step, 1.0, 0.01);
}

// Each node is a leaf of its own: at 4:1 its uplink has half an adapter's speed for two.
TEST(WhatIfPaths, OversubscriptionSlowsWhatCrossesIt) {
  const auto p = swept(
      "cluster.fabric.levels.0.oversubscription=1\n"
      "cluster.fabric.levels.0.oversubscription=2\n"
      "cluster.fabric.levels.0.oversubscription=4\n");
  EXPECT_NEAR(dp_of(p[1]) / dp_of(p[0]), 2.0, 0.05);
  EXPECT_NEAR(dp_of(p[2]) / dp_of(p[0]), 4.0, 0.1);
}

// Four GPUs in one node need no network; another GPU has another speed. Linked values: one count
// of GPUs per node goes with one count of nodes.
TEST(WhatIfPaths, GpusPerNodeAndTheirKind) {
  const std::string two = "cluster.fabric.levels=[{\"nodes_per_group\":2}] ";
  const std::string one = "cluster.fabric.levels=[{\"nodes_per_group\":1}] ";
  const auto p = swept(two + "cluster.groups.0.type.gpus=2 cluster.groups.0.count=2\n" + one +
                       "cluster.groups.0.type.gpus=4 cluster.groups.0.count=1\n" + two +
                       "cluster.groups.0.type.device=h100-sxm-80gb\n");
  EXPECT_LT(dp_of(p[1]), dp_of(p[0]) / 20);
  EXPECT_LT(p[2]["breakdown_s"]["compute"], 0.8 * p[0]["breakdown_s"]["compute"].get<double>());
}

// One rank of one GPU whose kernels take twice as long: so does what the report calls compute. In
// a job of four it holds up the others: the iteration grows by as much.
TEST(WhatIfPaths, ASlowGpuHoldsUpTheOthers) {
  const std::string slow = "what_if.stragglers.0.rank=3 what_if.stragglers.0.slowdown=";
  const auto p = swept(slow + "1\n" + slow + "2\n" + slow + "3\n");
  const double compute =
      p[0]["breakdown_s"]["compute"].get<double>() + p[0]["breakdown_s"]["optimizer"].get<double>();
  EXPECT_NEAR((time_of(p[1]) - time_of(p[0])) / compute, 1.0, 0.15);
  EXPECT_NEAR((time_of(p[2]) - time_of(p[1])) / compute, 1.0, 0.15);
}

TEST(WhatIfPaths, JitterHasASeed) {
  const auto p = swept(
      "what_if.jitter.sigma=0\nwhat_if.jitter.sigma=0.2 what_if.jitter.seed=1\n"
      "what_if.jitter.sigma=0.2 what_if.jitter.seed=2\n");
  const auto again = swept("what_if.jitter.sigma=0.2 what_if.jitter.seed=1\n");
  EXPECT_EQ(time_of(again[0]), time_of(p[1]));
  EXPECT_NE(time_of(p[1]), time_of(p[2]));
  EXPECT_GT(time_of(p[1]), time_of(p[0]));  // the slowest of four ranks is waited for
}

// Twice the samples in as many micro-batches of twice the size: gradients are reduced once either
// way.
TEST(WhatIfPaths, BatchAndLayout) {
  const auto p = swept(
      "job.global_batch=8 layout.micro_batch=2\n"
      "job.global_batch=16 layout.micro_batch=4\n"
      "layout.dp=2 layout.tp=2\n");
  EXPECT_NEAR(dp_of(p[1]) / dp_of(p[0]), 1.0, 0.02);
  EXPECT_GT(p[1]["tokens_per_s"], p[0]["tokens_per_s"]);
  EXPECT_LT(dp_of(p[2]), dp_of(p[0]));
  EXPECT_GT(p[2]["breakdown_s"]["exposed_tp"], p[0]["breakdown_s"]["exposed_tp"]);
}

}  // namespace
}  // namespace gputwin
