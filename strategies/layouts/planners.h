// Planners by name: how methods from the literature would cut a layer graph over a cluster.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/core/layout.h"
#include "strategies/layouts/synchronous.h"

namespace gputwin {

struct PlannerEntry {
  const char* name;
  const char* what;
};

/// data-parallel, gpipe, 1f1b, pipedream, dapple, alpa, hybrid; the last is the one to beat them.
std::span<const PlannerEntry> planners();

/// The stages that a planner chooses, by closed form. Unknown names are a programming error.
PipelinePlan plan_by(const std::string& planner, const PipelineWorld& world);

/// What a planner leaves to a simulation to choose from: of `hybrid` at most ten plans, ascending
/// by closed form, the best for each number of stages and what the others choose that can run with
/// a flush; of the others their plan.
std::vector<PipelinePlan> proposals_by(const std::string& planner, const PipelineWorld& world);

/// Stages, replicas and devices of a plan into a layout.
void place_stages(const PipelinePlan& plan, Layout& layout);

/// The layout of a plan: stages, replicas and schedule ("gpipe" for the planner of that name).
/// `samples` of a micro-batch.
Layout layout_of(const std::string& planner, const PipelinePlan& plan, std::int64_t samples);

}  // namespace gputwin
