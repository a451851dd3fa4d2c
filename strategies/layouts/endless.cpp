#include "strategies/layouts/endless.h"

#include <algorithm>
#include <array>
#include <limits>

#include "sim/core/check.h"
#include "strategies/layouts/planners.h"
#include "strategies/layouts/stage_times.h"

namespace gputwin {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();
constexpr std::size_t kMostProposals = 40;

constexpr std::array<EndlessEntry, 4> kPlanners{{
    {"data-parallel-step", "every GPU holds the whole model, a step after every micro-batch",
     Schedule::None, false},
    {"pipedream-stash", "PipeDream's plan without a flush: a step after every micro-batch",
     Schedule::PipedreamStash, true},
    {"hybrid-stash", "all cuts and all replicas, likewise, simulated (one stage is not stale)",
     Schedule::PipedreamStash, true},
    {"pipedream-2bw", "PipeDream's plan without a flush: one step an iteration, two versions",
     Schedule::PipedreamAsync, true},
}};

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// What a step of a stage's replicas takes on top of their passes.
double step_time(const StageTimes& times, const PipelineStage& s, std::int32_t offset) {
  return times.exposed(s.first, s.last, offset, s.replicas) + times.step(s.first, s.last);
}

// `hides`: messages travel under compute.
double stage_time(const StageTimes& times, const PipelineStage& s, std::int32_t offset,
                  double step_s, bool hides = true) {
  const double busy = (times.compute(s.first, s.last) + step_s) / s.replicas;
  const double message = times.leaves(s.last, offset, s.replicas);
  return hides ? std::max(busy, message) : busy + message;
}

// Least time between two micro-batches that `s` and the stage behind it leave each other.
double neighbours_time(const StageTimes& times, const PipelineStage& s, const PipelineStage& next,
                       std::int32_t offset, std::int32_t devices, bool in_rounds) {
  const std::int32_t r = s.replicas;
  const std::int32_t begun = (devices - 1) / r * r;
  std::int32_t needed = (devices - r - 1) / next.replicas * next.replicas;
  const double message = times.leaves(s.last, offset, r);
  double trip = times.compute(s.first, next.last) + 2 * message;
  if (in_rounds && r > 1) {
    const double served = times.compute(next.first, next.last) / next.replicas;
    trip += (needed + r - 1) % r * std::max(served, message);
    trip += times.exposed(s.first, s.last, offset, r);
    needed = (needed + r - 1) / r * r;
  }
  return trip / (begun + r - needed);
}

// Least slowest stage for the units from `first` on the devices from `offset`, by stages left.
class LeastSlowest {
 public:
  LeastSlowest(const PipelineWorld& world, bool hides)
      : times_(world),
        hides_(hides),
        n_(times_.units()),
        d_(world.devices),
        most_(std::min(n_, d_)) {
    best_.assign(at((most_ + 1) * (n_ + 1) * (d_ + 1)), {});
    choice(0, n_, d_).time = 0;
    for (std::int32_t left = 1; left <= most_; ++left) {
      for (std::int32_t first = 0; first < n_; ++first) {
        for (std::int32_t offset = 0; offset < d_; ++offset) fill(left, first, offset);
      }
    }
  }

  std::vector<PipelinePlan> plans() {
    std::vector<PipelinePlan> list;
    for (std::int32_t stages = 2; stages <= most_; ++stages) {
      if (choice(stages, 0, 0).time == kNone) continue;
      PipelinePlan plan;
      for (std::int32_t left = stages, first = 0, offset = 0; left > 0; --left) {
        const Choice& c = choice(left, first, offset);
        plan.push_back({first, c.last, c.replicas});
        first = c.last, offset += c.replicas;
      }
      list.push_back(std::move(plan));
    }
    return list;
  }

 private:
  struct Choice {
    double time = kNone;
    std::int32_t last = 0, replicas = 0;
  };
  Choice& choice(std::int32_t left, std::int32_t first, std::int32_t offset) {
    return best_[at((left * (n_ + 1) + first) * (d_ + 1) + offset)];
  }
  void fill(std::int32_t left, std::int32_t first, std::int32_t offset) {
    Choice& here = choice(left, first, offset);
    for (std::int32_t r = 1; offset + r <= d_; ++r) {
      for (std::int32_t last = first + 1; last <= n_; ++last) {
        const double rest = choice(left - 1, last, offset + r).time;
        if (rest >= here.time) continue;
        const PipelineStage s{first, last, r};
        const double busy = stage_time(times_, s, offset, step_time(times_, s, offset), hides_);
        const double time = std::max(rest, busy);
        if (time < here.time) here = {time, last, r};
      }
    }
  }

  StageTimes times_;
  bool hides_;
  std::int32_t n_, d_, most_;
  std::vector<Choice> best_;
};

}  // namespace

std::span<const EndlessEntry> endless_planners() { return kPlanners; }

Seconds slowest_stage(const PipelineWorld& world, const PipelinePlan& plan) {
  const StageTimes times(world);
  double slowest = 0;
  std::int32_t offset = 0;
  for (const PipelineStage& s : plan) {
    slowest = std::max(slowest, stage_time(times, s, offset, step_time(times, s, offset)));
    offset += s.replicas;
  }
  return Seconds(slowest);
}

Seconds endless_time(const PipelineWorld& world, const PipelinePlan& plan, bool step_every_round) {
  const StageTimes times(world);
  double time = 0;
  std::int32_t offset = 0, devices = 0;  // devices: of this stage and of later ones
  for (const PipelineStage& s : plan) devices += s.replicas;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const PipelineStage& s = plan[i];
    const double step_s = step_every_round ? step_time(times, s, offset) : 0.0;
    time = std::max(time, stage_time(times, s, offset, step_s));
    if (i + 1 < plan.size()) {
      time =
          std::max(time, neighbours_time(times, s, plan[i + 1], offset, devices, step_every_round));
    }
    offset += s.replicas, devices -= s.replicas;
  }
  return Seconds(time);
}

std::vector<PipelinePlan> endless_plans(const PipelineWorld& world) {
  std::vector<PipelinePlan> plans = LeastSlowest(world, true).plans();
  // Many cuts hide their messages equally well by this form; where messages count, few bytes win.
  for (PipelinePlan& plan : LeastSlowest(world, false).plans()) {
    if (std::find(plans.begin(), plans.end(), plan) == plans.end()) plans.push_back(plan);
  }
  std::stable_sort(plans.begin(), plans.end(), [&](const PipelinePlan& a, const PipelinePlan& b) {
    return slowest_stage(world, a) < slowest_stage(world, b);
  });
  return plans;
}

std::vector<PipelinePlan> endless_proposals(const std::string& planner,
                                            const PipelineWorld& world) {
  if (planner == "data-parallel-step") return {plan_by("data-parallel", world)};
  // Machine by machine, and as if all devices hung on the network alike: the published 15-1 on four
  // machines of four is no plan of the first kind.
  PipelineWorld flat = world;
  flat.devices_per_node = 1;
  std::vector<PipelinePlan> plans{plan_by("pipedream", world)};
  if (world.devices_per_node > 1) plans.push_back(plan_by("pipedream", flat));
  if (planner != "hybrid-stash") return plans;
  plans.push_back(plan_by("data-parallel", world));
  std::vector<PipelinePlan> all = endless_plans(world);
  if (all.size() > kMostProposals) all.resize(kMostProposals);
  for (PipelinePlan& plan : all) plans.push_back(std::move(plan));
  return plans;
}

Layout endless_layout(const EndlessEntry& planner, const PipelinePlan& plan, std::int64_t samples) {
  Layout layout;
  place_stages(plan, layout);
  layout.schedule = plan.size() > 1 ? planner.schedule : Schedule::None;
  // With one stage there is nothing to keep full: its replicas share the micro-batch of a step.
  layout.micro_batch = plan.size() > 1 ? samples : samples * plan[0].replicas;
  return layout;
}

}  // namespace gputwin
