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
      if (plan.size() > 1) best = std::min(best, endless_time(w, plan).value);
    });
    const std::vector<PipelinePlan> plans = endless_plans(w);
    ASSERT_EQ(plans.empty(), best == 1e30);
    if (plans.empty()) continue;
    EXPECT_NEAR(endless_time(w, plans[0]).value, best, 1e-12) << trial;
  }
}

// 9 s of work on three devices, 3 s on one: 3 s a micro-batch. Ring of 6 GB over three, 4/3 x 6 = 8
// GB at 1 GB/s, is hidden by a backward pass of 6 s but for 2: (9 + 2) / 3.
TEST(EndlessPlans, HideGradientsUnderTheBackwardPass) {
  PipelineWorld w;
  w.devices = 4;
  w.between = w.in_node = BytesPerSecond(1e9);
  w.units = {{.name = "a",
              .forward = Seconds(3),
              .backward = Seconds(6),
              .output = Bytes(0),
              .weights = Bytes(6'000'000'000),
              .inputs = {}},
             {.name = "b",
              .forward = Seconds(1),
              .backward = Seconds(2),
              .output = Bytes(0),
              .weights = Bytes(0),
              .inputs = {0}}};
  EXPECT_DOUBLE_EQ(endless_time(w, {{0, 1, 3}, {1, 2, 1}}).value, 11.0 / 3);
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
