// Layer graphs without a flush in the steady state.
#include <gtest/gtest.h>

#include "sim/engine/reference_executor.h"
#include "sim/engine/simgrid_executor.h"
#include "tests/joined/pipeline_world.h"

namespace gputwin::test {
namespace {

constexpr Ps kUs = 1'000'000;

// Four linear layers, a unit each, and a loss: a product is 1 us, all else and messages nothing.
LayerGraph chain() {
  LayerGraph g;
  g.name = "chain";
  g.input = {8, 1, 1};
  for (std::int32_t u = 0; u < 4; ++u) {
    GraphLayer l;
    l.name = "linear" + std::to_string(u);
    l.kind = LayerKind::Linear;
    if (u > 0) l.inputs = {u - 1};
    l.output = {8, 1, 1};
    l.unit = u;
    g.layers.push_back(std::move(l));
  }
  GraphLayer loss;
  loss.name = "loss";
  loss.kind = LayerKind::Loss;
  loss.inputs = {3};
  loss.output = {8, 1, 1};
  loss.unit = 3;
  g.layers.push_back(std::move(loss));
  return g;
}

Ps period(Executor& executor, Schedule schedule, std::vector<std::int32_t> replicas,
          std::int64_t micro_batches) {
  Layout layout;
  layout.pp = 2;
  layout.schedule = schedule;
  layout.stage_layers = {3, 1};
  layout.stage_replicas = std::move(replicas);
  const Cluster cluster = small_cluster({.gpus = layout.ranks()});
  Job job = small_job(micro_batches);
  job.optimizer = Optimizer::Sgd;
  const Plan plan = std::get<Plan>(make_plan(chain(), cluster, layout, job));
  const auto outcome = executor.run(plan, LayerCosts(), Topology(cluster), {}, nullptr);
  const auto& run = std::get<Execution>(outcome);
  EXPECT_TRUE(run.period_converged);
  return run.iteration;
}

class EndlessGraph : public ::testing::TestWithParam<Schedule> {};

// The first stage takes 3 us forward and 5 back (nothing is sent back from its first layer), the
// second 1 and 2. Three replicas of the first take 8 / 3 us a micro-batch, so the second binds: 6 x
// 3 us. Two take 4: 4 x 4 us.
TEST_P(EndlessGraph, IsAsFastAsItsSlowestStage) {
  SimgridExecutor simgrid;
  ReferenceExecutor reference;
  for (Executor* executor :
       {static_cast<Executor*>(&simgrid), static_cast<Executor*>(&reference)}) {
    EXPECT_EQ(period(*executor, GetParam(), {3, 1}, 6), 6 * 3 * kUs);
    EXPECT_EQ(period(*executor, GetParam(), {2, 1}, 4), 4 * 4 * kUs);
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, EndlessGraph,
                         ::testing::Values(Schedule::PipedreamStash, Schedule::PipedreamAsync));

}  // namespace
}  // namespace gputwin::test
