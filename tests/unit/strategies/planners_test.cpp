// Planners of chains against exhaustive search and hand-worked cases.
#include "strategies/layouts/planners.h"

#include <gmock/gmock.h>

#include <functional>
#include <random>

#include "strategies/layouts/endless.h"

namespace gputwin {
namespace {

PipelineWorld random_world(std::mt19937& draw) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(draw() % static_cast<std::uint32_t>(n));
  };
  PipelineWorld w;
  const std::int64_t units = 1 + below(5);
  for (std::int64_t u = 0; u < units; ++u) {
    const double t = static_cast<double>(1 + below(20)) * 1e-3;
    w.units.push_back({.name = "u" + std::to_string(u),
                       .forward = Seconds(t),
                       .backward = Seconds(2 * t),
                       .output = Bytes(below(20) * 1'000'000),
                       .weights = Bytes(below(50) * 1'000'000),
                       .inputs = {}});
    if (u > 0) w.units.back().inputs = {static_cast<std::int32_t>(u) - 1};
  }
  w.devices_per_node = below(2) == 0 ? 1 : 2;
  w.devices = w.devices_per_node * static_cast<std::int32_t>(1 + below(2));
  w.in_node = BytesPerSecond(10e9);
  w.between = BytesPerSecond(1.25e9);
  w.micro_batches = static_cast<std::int32_t>(1 + below(8));
  return w;
}

// Calls `visit` with every plan that uses all devices.
void each_plan(const PipelineWorld& w, const std::function<void(const PipelinePlan&)>& visit) {
  const auto n = static_cast<std::int32_t>(w.units.size());
  const std::function<void(PipelinePlan&, std::int32_t, std::int32_t)> extend =
      [&](PipelinePlan& plan, std::int32_t first, std::int32_t left) {
        if (first == n) {
          if (left == 0) visit(plan);
          return;
        }
        for (std::int32_t last = first + 1; last <= n; ++last) {
          for (std::int32_t r = 1; r <= left; ++r) {
            plan.push_back({first, last, r});
            extend(plan, last, left - r);
            plan.pop_back();
          }
        }
      };
  PipelinePlan plan;
  extend(plan, 0, w.devices);
}

// Without gradients the bounded sums are the exact optimum; exposed gradients make them a heuristic
// that is never better than exhaustive search and mostly equal.
TEST(Synchronous, EqualsExhaustiveSearch) {
  std::mt19937 draw(7);
  int equal = 0;
  constexpr int kCases = 500;
  for (int i = 0; i < kCases; ++i) {
    PipelineWorld w = random_world(draw);
    const bool weightless = i % 2 == 0;
    for (LayerCost& u : w.units) {
      if (weightless) u.weights = Bytes(0);
    }
    std::vector<std::int32_t> allowed;
    for (std::int32_t r = 1; r <= w.devices; ++r) allowed.push_back(r);
    Seconds best(1e9);
    each_plan(w, [&](const PipelinePlan& p) { best = std::min(best, synchronous_time(w, p)); });
    const double found = synchronous_time(w, synchronous_plan(w, allowed, 0)).value;
    EXPECT_GE(found, best.value - 1e-12);
    if (weightless) {
      EXPECT_NEAR(found, best.value, 1e-9) << i;
    }
    equal += found < best.value * 1.0001 ? 1 : 0;
  }
  EXPECT_GE(equal, kCases * 95 / 100);
}

// Four units of 1, 1, 1, 3 s on two devices: even by count is 2 | 4 s, by time 3 | 3 s.
TEST(Planners, EvenAndBalanced) {
  PipelineWorld w;
  for (const double t : {1.0, 1.0, 1.0, 3.0}) {
    w.units.push_back({.name = "", .forward = Seconds(t), .backward = {}, .inputs = {}});
  }
  w.devices = 2;
  w.between = BytesPerSecond(1e9);
  w.micro_batches = 4;
  EXPECT_EQ(plan_by("gpipe", w), (PipelinePlan{{0, 2, 1}, {2, 4, 1}}));
  EXPECT_EQ(plan_by("1f1b", w), (PipelinePlan{{0, 3, 1}, {3, 4, 1}}));
  // 6 + 3 x 3 s; without weights data parallelism takes 4 x 3 s.
  EXPECT_NEAR(synchronous_time(w, plan_by("1f1b", w)).value, 15, 1e-9);
  EXPECT_EQ(plan_by("hybrid", w), plan_by("data-parallel", w));
}

// What hybrid leaves to the simulation: its own choice first, every number of stages once but for
// the others' plans, in ascending closed form, no plan twice, all of them runnable.
TEST(Planners, HybridProposesAPlanForEachNumberOfStages) {
  std::mt19937 draw(5);
  for (int i = 0; i < 40; ++i) {
    PipelineWorld w = random_world(draw);
    w.samples = 12;
    const std::vector<PipelinePlan> plans = proposals_by("hybrid", w);
    ASSERT_FALSE(plans.empty());
    EXPECT_LE(plans.size(), 10u);
    EXPECT_LE(synchronous_time(w, plans[0]), synchronous_time(w, plan_by("hybrid", w)));
    for (std::size_t k = 0; k < plans.size(); ++k) {
      if (k > 0) {
        EXPECT_LE(synchronous_time(w, plans[k - 1]), synchronous_time(w, plans[k]));
      }
      EXPECT_EQ(std::count(plans.begin(), plans.end(), plans[k]), 1);
      for (const PipelineStage& s : plans[k]) EXPECT_EQ(w.samples % s.replicas, 0);
    }
    EXPECT_EQ(proposals_by("dapple", w), std::vector<PipelinePlan>{plan_by("dapple", w)});
  }
}

TEST(Planners, AllUseAllDevicesAndAllUnits) {
  std::mt19937 draw(3);
  for (int i = 0; i < 40; ++i) {
    const PipelineWorld w = random_world(draw);
    for (const PlannerEntry& planner : planners()) {
      const PipelinePlan plan = plan_by(planner.name, w);
      std::int32_t unit = 0, devices = 0;
      for (const PipelineStage& s : plan) {
        EXPECT_EQ(s.first, unit) << planner.name;
        EXPECT_GT(s.last, s.first);
        unit = s.last, devices += s.replicas;
      }
      EXPECT_EQ(unit, static_cast<std::int32_t>(w.units.size())) << planner.name;
      EXPECT_LE(devices, w.devices) << planner.name;
      const Layout l = layout_of(planner.name, plan, 8);
      EXPECT_EQ(l.ranks(), devices);
    }
  }
}

// The slowest stage is least over all plans of two stages and more.
TEST(EndlessPlans, EqualExhaustiveSearch) {
  std::mt19937 draw(11);
  for (int trial = 0; trial < 200; ++trial) {
    const PipelineWorld w = random_world(draw);
    double best = 1e30;
    each_plan(w, [&](const PipelinePlan& plan) {
      if (plan.size() > 1) best = std::min(best, slowest_stage(w, plan).value);
    });
    const std::vector<PipelinePlan> plans = endless_plans(w);
    ASSERT_EQ(plans.empty(), best == 1e30);
    if (plans.empty()) continue;
    EXPECT_NEAR(slowest_stage(w, plans[0]).value, best, 1e-12) << trial;
  }
}

// Units a (F 3, B 4, 3 GB), b (0, 2, 3 GB) on three devices and c (F 1, B 2) on one: rings of
// 4/3 x 3 = 4 s each at 1 GB/s. Each unit a bucket: b is reduced 2 to 6 s into the backward pass of
// 6 s, a from 6 to 10: 4 s are left, (9 + 4) / 3. Both in one bucket: 6 to 14, (9 + 8) / 3.
PipelineWorld three_units() {
  PipelineWorld w;
  w.devices = 4;
  w.between = w.in_node = BytesPerSecond(1e9);
  const auto unit = [](const char* name, double f, double b, std::int64_t weights) {
    LayerCost cost;
    cost.name = name;
    cost.forward = Seconds(f), cost.backward = Seconds(b);
    cost.weights = Bytes(weights);
    return cost;
  };
  w.units = {unit("a", 3, 4, 3'000'000'000), unit("b", 0, 2, 3'000'000'000), unit("c", 1, 2, 0)};
  w.units[1].inputs = {0}, w.units[2].inputs = {1};
  return w;
}

TEST(EndlessPlans, HideGradientsUnderTheBackwardPassByBucket) {
  PipelineWorld w = three_units();
  EXPECT_DOUBLE_EQ(slowest_stage(w, {{0, 2, 3}, {2, 3, 1}}).value, 13.0 / 3);
  w.bucket = Bytes(5'000'000'000);
  EXPECT_DOUBLE_EQ(slowest_stage(w, {{0, 2, 3}, {2, 3, 1}}).value, 17.0 / 3);
}

// Three stages a | b | c on a device each, no gradients, 2 GB behind a: messages of 2 s hide under
// no stage. b lets one micro-batch more go forward, a two: a's q goes back after b has had q + 1,
// which a begins after the end of q - 1. (3 + 4 + 2 x 2 + 2) / (2 + 1 - 1) = 6.5 s for 7 s of work
// in a: compute decides. With 3 GB: 15 / 2.
TEST(EndlessPlans, MakeNeighboursWaitForMessages) {
  PipelineWorld w = three_units();
  w.devices = 3;
  w.units[0].output = Bytes(2'000'000'000);
  const PipelinePlan plan{{0, 1, 1}, {1, 2, 1}, {2, 3, 1}};
  EXPECT_DOUBLE_EQ(endless_time(w, plan, true).value, 7.0);
  w.units[0].output = Bytes(3'000'000'000);
  EXPECT_DOUBLE_EQ(endless_time(w, plan, true).value, 7.5);
  EXPECT_DOUBLE_EQ(endless_time(w, plan, false).value, 7.5);
}

// a on two devices, b, c: A = (4 - 1) / 2 x 2 = 2, A of b 1. With a step every round the ring of
// 2/2 x 3 = 3 s comes after a's only unit, and b's q goes back after q + 1 went forward, one of the
// next round: (3 + 4 + 2 x 3 + 2 + 3) / (2 + 2 - 2) = 9. Without: (3 + 4 + 2 x 3 + 2) / (2 + 2 - 1)
// = 5.
TEST(EndlessPlans, KeepReplicasInRoundsWithAStepInEach) {
  PipelineWorld w = three_units();
  w.units[0].output = Bytes(3'000'000'000);
  const PipelinePlan plan{{0, 1, 2}, {1, 2, 1}, {2, 3, 1}};
  EXPECT_DOUBLE_EQ(endless_time(w, plan, true).value, 9.0);
  EXPECT_DOUBLE_EQ(endless_time(w, plan, false).value, 5.0);
}

// Two machines of two. The outer level cuts nothing, so both machines hold both inner stages, and a
// replica finds its neighbour on its own machine: the first stage on GPUs 0 and 2.
TEST(PipeDreamPlan, ReplicasOfAnInnerStageStandOnEveryMachine) {
  PipelineWorld w;
  w.devices = 4;
  w.devices_per_node = 2;
  w.in_node = BytesPerSecond(1e10);
  w.between = BytesPerSecond(1e13);
  // Replicas exchange 100 TB of weights, stages next to nothing: slow within a machine alone.
  for (const char* name : {"a", "b"}) {
    w.units.push_back({.name = name,
                       .forward = Seconds(100),
                       .backward = Seconds(200),
                       .output = Bytes(1),
                       .weights = Bytes(100'000'000'000'000),
                       .inputs = {}});
  }
  w.units[1].inputs = {0};
  const PipelinePlan plan = plan_by("pipedream", w);
  EXPECT_EQ(plan, (PipelinePlan{{0, 1, 2, {0, 2}}, {1, 2, 2, {1, 3}}}));
  const Layout layout = layout_of("pipedream", plan, 4);
  EXPECT_EQ(layout.devices, (std::vector<GpuId>{GpuId(0), GpuId(2), GpuId(1), GpuId(3)}));
}

}  // namespace
}  // namespace gputwin
