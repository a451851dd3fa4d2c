// The interval of an iteration time, from the intervals of its operations.
#include "sim/app/uncertainty.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sim/core/plan_text.h"
#include "tests/support/small_cluster.h"
#include "tests/unit/app/small_costs.h"

namespace gputwin {
namespace {

constexpr const char* kPlan = R"(
arena gpu
buffer x 2x2 f32 class=activations persistent
buffer y 2x2 f32 class=activations persistent
communicator dp0 0 1
program rank
  stream compute compute
  slot data dp
prologue
body
  kernel compute F/L0/fc1 gemm m=2 n=2 k=2 : x x : y
  kernel compute F/L0/fc2 gemm m=2 n=2 k=2 : y x : y
  kernel compute F/L0/clear zero n=4 : : x
  collective compute F/L0/reduce all_reduce slot=data n=4 : x : x
rank rank gpu=0 data=dp0
rank rank gpu=1 data=dp0
)";

Execution execution(Ps iteration, Ps exposed_dp) {
  Execution e;
  e.iteration = iteration;
  e.last_rank = RankId(0);
  e.breakdown.resize(2);
  e.breakdown[0][static_cast<std::size_t>(Part::ExposedDp)] = exposed_dp;
  return e;
}

Uncertainty of(const Execution& e) {
  const Topology topology(test::small_cluster({.gpus = 2}));
  return uncertainty(parse_plan(kPlan), e, test::SmallCosts(), topology);
}

// Two GEMMs of 3 us are one class, their errors add: 0.6 us below, 1.2 us above. The other kernel,
// 1 us: 0.2 below, 0.1 above. The all-reduce, 2 us all exposed: 1.0 below and above. Work 9 us,
// iteration 9 us: low 9 - sqrt(0.36 + 0.04 + 1), high 9 + sqrt(1.44 + 0.01 + 1).
TEST(Uncertainty, AddsWithinClassesAndByRootsBetween) {
  const Uncertainty u = of(execution(9'000'000, 2'000'000));
  EXPECT_NEAR(u.low.value * 1e6, 9 - std::sqrt(1.4), 1e-9);
  EXPECT_NEAR(u.high.value * 1e6, 9 + std::sqrt(2.45), 1e-9);
}

// Half of the all-reduce is hidden: it counts 1 us, with 0.5 us either way; work is 8 us. An
// iteration of 16 us, half of it bubble, stretches the deviations twofold.
TEST(Uncertainty, CountsExposedCommunicationAndStretchesWithTheBubble) {
  const Uncertainty u = of(execution(16'000'000, 1'000'000));
  EXPECT_NEAR(u.low.value * 1e6, 16 - 2 * std::sqrt(0.36 + 0.04 + 0.25), 1e-9);
  EXPECT_NEAR(u.high.value * 1e6, 16 + 2 * std::sqrt(1.44 + 0.01 + 0.25), 1e-9);
}

// A straggler's kernels count as long as they take: with all communication hidden and twice the
// time, work is 2 x 7 = 14 us.
TEST(Uncertainty, FollowsTheStraggler) {
  Plan plan = parse_plan(kPlan);
  plan.ranks[0].slowdown = 2.0;
  const Topology topology(test::small_cluster({.gpus = 2}));
  const Uncertainty u = uncertainty(plan, execution(14'000'000, 0), test::SmallCosts(), topology);
  EXPECT_NEAR(u.low.value * 1e6, 14 - 2 * std::sqrt(0.36 + 0.04), 1e-9);
  EXPECT_NEAR(u.high.value * 1e6, 14 + 2 * std::sqrt(1.44 + 0.01), 1e-9);
}

// A shared deviation of 10 % of 9 us joins the others by its square: 0.81 us^2 either way.
TEST(Uncertainty, TakesASharedDeviationIn) {
  const Topology topology(test::small_cluster({.gpus = 2}));
  const Uncertainty u = uncertainty(parse_plan(kPlan), execution(9'000'000, 2'000'000),
                                    test::SmallCosts(), topology, 0.1);
  EXPECT_NEAR(u.low.value * 1e6, 9 - std::sqrt(1.4 + 0.81), 1e-9);
  EXPECT_NEAR(u.high.value * 1e6, 9 + std::sqrt(2.45 + 0.81), 1e-9);
}

TEST(Uncertainty, NamesWhatIsExtrapolated) {
  EXPECT_EQ(of(execution(9'000'000, 0)).extrapolated, std::vector<std::string>{"clear"});
}

}  // namespace
}  // namespace gputwin
