// The closed form of the search against the executors, and its pieces against worked numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "hwmodels/hardware_model.h"
#include "sim/app/run.h"
#include "sim/engine/reference_executor.h"
#include "strategies/search/balance.h"
#include "strategies/search/layout_space.h"
#include "tests/joined/pipeline_world.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;

const std::vector<fs::path> kData{fs::path(GPUTWIN_SOURCE_DIR) / "scenarios"};

// One node whose GPUs, links and launches cost nothing but 4 us forward and 8 us backward a layer.
struct SmallWorld {
  SmallWorld(std::int64_t layers, const Layout& layout, std::int64_t global_batch)
      : model(test::small_gpt(layers)),
        cluster(test::small_cluster({.gpus = layout.ranks()})),
        job(test::small_job(global_batch)),
        topology(cluster) {}

  Estimate estimate(const Layout& layout) { return std::get<Estimate>(estimator.estimate(layout)); }
  double executed(const Layout& layout) {
    const Plan plan = std::get<Plan>(make_plan(model, cluster, layout, job));
    const ExecutionOutcome outcome = ReferenceExecutor().run(plan, costs, topology, {}, nullptr);
    return to_seconds(std::get<Execution>(outcome).iteration).value;
  }

  Transformer model;
  Cluster cluster;
  Job job;
  Topology topology;
  test::LayerCosts costs;
  LayoutEstimator estimator{model, cluster, job, costs, topology};
};

Layout pipeline(std::int32_t pp, Schedule schedule, std::int32_t vpp = 1) {
  Layout l;
  l.pp = pp;
  l.vpp = vpp;
  l.schedule = pp > 1 ? schedule : Schedule::None;
  return l;
}

// 8 layers on 4 stages: F = 8 us, B = 16 us, 8 micro-batches. (M + p - 1)(F + B) = 264 us;
// interleaved twice M (F + B) + (p - 1)(f + b) = 192 + 36 = 228 us.
TEST(LayoutEstimate, IsTheBubbleFormulaOfEvenStages) {
  SmallWorld w(8, pipeline(4, Schedule::Gpipe), 8);
  EXPECT_NEAR(w.estimate(pipeline(4, Schedule::Gpipe)).iteration.value, 264e-6, 1e-11);
  EXPECT_NEAR(w.estimate(pipeline(4, Schedule::OneFOneB)).iteration.value, 264e-6, 1e-11);
  EXPECT_NEAR(w.estimate(pipeline(4, Schedule::Interleaved, 2)).iteration.value, 228e-6, 1e-11);
}

// Uneven stages, with the slowest at the front, in the middle and at the end: as executed.
TEST(LayoutEstimate, FollowsUnevenStages) {
  const std::vector<std::vector<std::int32_t>> cuts{{2, 2, 2, 2}, {5, 1, 1, 1}, {1, 4, 2, 1},
                                                    {1, 1, 1, 5}, {1, 2, 3, 2}, {3, 2, 2, 1}};
  SmallWorld w(8, pipeline(4, Schedule::Gpipe), 12);
  for (const Schedule schedule : {Schedule::Gpipe, Schedule::OneFOneB}) {
    for (const std::vector<std::int32_t>& cut : cuts) {
      Layout l = pipeline(4, schedule);
      l.stage_layers = cut;
      const double executed = w.executed(l);
      EXPECT_NEAR(w.estimate(l).iteration.value, executed, 0.02 * executed)
          << static_cast<int>(schedule) << " " << cut[0] << cut[1] << cut[2] << cut[3];
    }
  }
}

// Full recomputation repeats the forward pass: F = 4, B = 12 us a layer; block that of 1 of 2
// layers.
TEST(LayoutEstimate, CountsRecomputation) {
  SmallWorld w(8, pipeline(4, Schedule::Gpipe), 8);
  Layout l = pipeline(4, Schedule::OneFOneB);
  l.recompute = Recompute::Full;
  EXPECT_NEAR(w.estimate(l).iteration.value, w.executed(l), 1e-11);
  l.recompute = Recompute::Block;
  l.recompute_layers = {1};
  EXPECT_NEAR(w.estimate(l).iteration.value, w.executed(l), 1e-11);
}

class ShippedEstimate : public ::testing::TestWithParam<const char*> {};

// Time within 3 % of the event simulator's, memory within 3 % of what the allocator hands out plus
// context and communicators. Printed for the record.
TEST_P(ShippedEstimate, AgreesWithTheSimulator) {
  const Scenario s = load_scenario(GetParam(), {}, kData);
  const Topology topology(s.cluster);
  const HardwareModel costs(topology, s.job, fs::path(GPUTWIN_SOURCE_DIR) / "hwmodels");
  LayoutEstimator estimator(std::get<Transformer>(s.workload), s.cluster, s.job, costs, topology);
  const Estimate e = std::get<Estimate>(estimator.estimate(s.layout));
  const RunOutcome outcome = run(s, {});
  const RunResult& result = std::get<RunResult>(outcome);
  const double simulated = to_seconds(result.execution.iteration).value;
  std::int64_t allocated = 0;
  for (const RoleMemory& role : result.memory) {
    const MemoryFigures& f = role.figures;
    allocated = std::max(allocated, (f.allocated + f.device - f.reserved).value);
  }
  std::printf("  %s: closed form %.4f s, simulated %.4f s (%+.2f %%); memory %+.2f %%\n",
              GetParam(), e.iteration.value, simulated, 100 * (e.iteration.value / simulated - 1),
              100.0 * (static_cast<double>(e.memory.value) / static_cast<double>(allocated) - 1));
  EXPECT_NEAR(e.iteration.value, simulated, 0.03 * simulated);
  EXPECT_NEAR(static_cast<double>(e.memory.value), static_cast<double>(allocated),
              0.06 * static_cast<double>(allocated));
}

INSTANTIATE_TEST_SUITE_P(Runs, ShippedEstimate,
                         ::testing::Values("gpt2_124m__a100_1x8__tp1_pp1_dp8",
                                           "gpt2_1_5b__a100_25gbe_4x8__tp1_pp1_dp32",
                                           "gpt3_13b__a100_4x8__tp4_pp4_dp2_gpipe",
                                           "gpt3_175b__a100_128x8__tp8_pp16_dp8",
                                           "gpt3_175b__a100_8x8__tp8_pp8_dp1_sp_selective",
                                           "gpt_22b__a100_1x8__tp8_pp1_dp1_full",
                                           "llama2_7b__a100_1x8__tp1_pp1_dp8_zero1",
                                           "llama2_7b__a100_1x8__tp1_pp1_dp8_zero3",
                                           "llama3_70b__b200_8x8__tp4_pp4_dp4_zero1",
                                           "llama3_8b__h100_1x8__tp2_pp2_dp2_block",
                                           "llama3_8b__h100_4x8__tp2_pp1_dp4_cp4"));

// 7 equal layers on 3 stages: no cut has a slowest stage of fewer than 3 layers.
TEST(Balanced, CutsTheChainOfTheLayout) {
  SmallWorld w(7, pipeline(3, Schedule::OneFOneB), 6);
  const Layout even = pipeline(3, Schedule::OneFOneB);
  const auto moved = balanced(even, w.model, w.cluster, w.job, w.topology, w.costs, w.estimator);
  ASSERT_TRUE(moved.has_value());
  const std::vector<std::int32_t>& cut = moved->stage_layers;
  ASSERT_EQ(cut.size(), 3u);
  EXPECT_EQ(cut[0] + cut[1] + cut[2], 7);
  EXPECT_EQ(*std::max_element(cut.begin(), cut.end()), 3);
}

// Every layout of a tiny job is looked at once, and what is refused is counted under its reason: of
// the divisors of 8 GPUs tp = 8 alone does not divide 4 heads.
TEST(LayoutSpace, CountsReasons) {
  SmallWorld w(8, pipeline(8, Schedule::OneFOneB), 16);
  std::int64_t found = 0;
  const SpaceWatcher watcher{.found = [&](const Layout&, const Estimate&) { ++found; },
                             .keep_on = [](double) { return true; }};
  const SpaceCount count = enumerate({}, Layout{}, w.model, w.cluster, w.job, w.estimator, watcher);
  EXPECT_EQ(count.feasible, found);
  std::int64_t rejected = 0;
  for (const auto& [reason, r] : count.rejected) rejected += r.layouts;
  EXPECT_EQ(count.looked_at, found + rejected);
  const auto heads = count.rejected.find("tp # does not divide the attention heads (#)");
  ASSERT_NE(heads, count.rejected.end());
  EXPECT_NE(heads->second.example.find("tp8"), std::string::npos);
}

}  // namespace
}  // namespace gputwin
