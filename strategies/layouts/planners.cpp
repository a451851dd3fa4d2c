#include "strategies/layouts/planners.h"

#include <algorithm>
#include <array>

#include "sim/core/check.h"
#include "strategies/layouts/pipedream.h"

namespace gputwin {
namespace {

constexpr std::array<PlannerEntry, 7> kPlanners{{
    {"data-parallel", "every GPU holds the whole model"},
    {"gpipe", "one stage per GPU, units even by count, all forwards before all backwards"},
    {"1f1b", "one stage per GPU, the slowest as fast as can be, one forward one backward"},
    {"pipedream", "PipeDream's hierarchical dynamic programme, its plan run with a flush"},
    {"dapple", "DAPPLE's choice among one stage, straight pipeline and all cuts in two"},
    {"alpa", "Alpa's inter-operator programme: replicas are powers of two or whole nodes"},
    {"hybrid", "all cuts and all replicas, by time with a flush and exposed gradients, simulated"},
}};

std::int32_t units(const PipelineWorld& world) {
  return static_cast<std::int32_t>(world.units.size());
}

constexpr std::size_t kMostProposals = 10;

bool divides(const PipelineWorld& world, std::int32_t replicas) {
  return world.samples % replicas == 0;
}

std::vector<std::int32_t> any_replicas(const PipelineWorld& world) {
  std::vector<std::int32_t> list;
  for (std::int32_t r = 1; r <= world.devices; ++r) {
    if (divides(world, r)) list.push_back(r);
  }
  return list;
}

// An inner stage has its own replicas in each machine of the outer stage it belongs to.
void spread_over_machines(const PipelineWorld& world, const std::vector<PlannedStage>& outer,
                          PipelinePlan& stages) {
  std::int32_t machine = 0;
  for (const PlannedStage& o : outer) {
    std::int32_t within = 0;
    for (PipelineStage& s : stages) {
      if (s.first < o.first || o.last < s.last) continue;
      for (std::int32_t m = machine; m < machine + o.replicas; ++m) {
        for (std::int32_t r = 0; r < s.replicas; ++r) {
          s.devices.push_back(m * world.devices_per_node + within + r);
        }
      }
      within += s.replicas;
      s.replicas *= o.replicas;
    }
    machine += o.replicas;
  }
}

PipelinePlan pipedream(const PipelineWorld& world) {
  std::vector<PlannerLevel> levels;
  if (world.devices_per_node > 1) levels.push_back({world.devices_per_node, world.in_node});
  const std::int32_t nodes = world.devices / world.devices_per_node;
  if (nodes > 1 || levels.empty()) levels.push_back({nodes, world.between});
  const PipeDreamPlan plan = pipedream_plan(antichain_states(world.units), levels);
  PipelinePlan stages;
  for (const PlannedStage& s : plan.levels.front()) {
    stages.push_back({s.first, s.last, s.replicas});
  }
  if (plan.levels.size() > 1) spread_over_machines(world, plan.top(), stages);
  return stages;
}

// One stage, the straight pipeline, and every cut in two with every split of the devices.
PipelinePlan dapple(const PipelineWorld& world) {
  std::vector<PipelinePlan> plans{{{0, units(world), world.devices}}, balanced_plan(world)};
  for (std::int32_t cut = 1; cut < units(world); ++cut) {
    for (std::int32_t left = 1; left < world.devices; ++left) {
      if (!divides(world, left) || !divides(world, world.devices - left)) continue;
      plans.push_back({{0, cut, left}, {cut, units(world), world.devices - left}});
    }
  }
  return *std::min_element(plans.begin(), plans.end(),
                           [&](const PipelinePlan& a, const PipelinePlan& b) {
                             return synchronous_time(world, a) < synchronous_time(world, b);
                           });
}

std::vector<std::int32_t> submeshes(const PipelineWorld& world) {
  std::vector<std::int32_t> sizes;
  for (std::int32_t r = 1; r <= world.devices_per_node; r *= 2) sizes.push_back(r);
  for (std::int32_t r = world.devices_per_node; r <= world.devices; r += world.devices_per_node) {
    if (r > sizes.back()) sizes.push_back(r);
  }
  std::erase_if(sizes, [&](std::int32_t r) { return !divides(world, r); });
  return sizes;
}

}  // namespace

std::span<const PlannerEntry> planners() { return kPlanners; }

PipelinePlan plan_by(const std::string& planner, const PipelineWorld& world) {
  if (planner == "data-parallel") return {{0, units(world), world.devices}};
  if (planner == "gpipe") return even_plan(world);
  if (planner == "1f1b") return balanced_plan(world);
  if (planner == "pipedream") return pipedream(world);
  if (planner == "dapple") return dapple(world);
  if (planner == "alpa") return synchronous_plan(world, submeshes(world));
  GPUTWIN_CHECK(planner == "hybrid", "there is no such planner");
  return synchronous_plan(world, any_replicas(world));
}

std::vector<PipelinePlan> proposals_by(const std::string& planner, const PipelineWorld& world) {
  if (planner != "hybrid") return {plan_by(planner, world)};
  std::vector<PipelinePlan> plans = synchronous_plans(world, any_replicas(world));
  for (const PlannerEntry& other : kPlanners) {
    if (other.name == planner || other.name == std::string("gpipe")) continue;
    PipelinePlan plan = plan_by(other.name, world);
    const bool runs = std::all_of(plan.begin(), plan.end(), [&](const PipelineStage& s) {
      return divides(world, s.replicas);
    });
    if (runs && std::find(plans.begin(), plans.end(), plan) == plans.end()) {
      plans.push_back(std::move(plan));
    }
  }
  std::stable_sort(plans.begin(), plans.end(), [&](const PipelinePlan& a, const PipelinePlan& b) {
    return synchronous_time(world, a) < synchronous_time(world, b);
  });
  if (plans.size() > kMostProposals) plans.resize(kMostProposals);
  return plans;
}

void place_stages(const PipelinePlan& plan, Layout& layout) {
  layout.pp = static_cast<std::int32_t>(plan.size());
  for (const PipelineStage& s : plan) {
    layout.stage_layers.push_back(s.last - s.first);
    layout.stage_replicas.push_back(s.replicas);
    for (const std::int32_t d : s.devices) {
      layout.devices.push_back(GpuId(static_cast<std::uint32_t>(d)));
    }
  }
}

Layout layout_of(const std::string& planner, const PipelinePlan& plan, std::int64_t samples) {
  Layout layout;
  place_stages(plan, layout);
  layout.micro_batch = samples;
  layout.schedule = planner == "gpipe" ? Schedule::Gpipe
                    : plan.size() == 1 ? Schedule::None
                                       : Schedule::OneFOneB;
  return layout;
}

}  // namespace gputwin
