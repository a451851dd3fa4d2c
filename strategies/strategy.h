// From a job and a layout to a plan: lowering, recomputation, schedule, and what CUDA needs beyond
// order.
#pragma once

#include <string>
#include <vector>

#include "sim/core/cluster.h"
#include "sim/core/cost_model.h"
#include "sim/core/error.h"
#include "sim/core/job.h"
#include "sim/core/layout.h"
#include "sim/core/plan.h"
#include "sim/core/workload.h"
#include "strategies/plugin_steps.h"

namespace gputwin {

/// One entry of the table of steps and schedules.
struct StepInfo {
  std::string name;
  std::string what;          // one clause
  bool is_schedule = false;  // a choice for layout.schedule; else a step of make_plan
};

/// The steps of make_plan in order, then the schedules.
std::vector<StepInfo> steps();

/// Wall time of one step of make_plan.
struct StepTime {
  std::string name;
  Seconds time{};
};

/// The plan of one training iteration. Infeasible: the layout cannot be, or is not lowered yet.
/// Each step's plan is verified. `times`: filled with one entry per step, if given. `costs`: what
/// the schedules that weigh their passes (zb-1p, zb-2p) weigh them by, as their schedulers do by a
/// profile; without it all passes count alike. `plugins`: steps of others, each after ours.
Outcome<Plan> make_plan(const Workload& workload, const Cluster& cluster, const Layout& layout,
                        const Job& job, std::vector<StepTime>* times = nullptr,
                        const CostModel* costs = nullptr, Plugins plugins = {});

/// What make_plan assumes where it does not know, for the reader of a result; one sentence each.
std::vector<std::string> assumptions(const Layout& layout, const Job& job);

}  // namespace gputwin
