// What would make a job fit that needs more memory than there is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hwmodels/hardware_model.h"
#include "sim/app/memory_figures.h"
#include "sim/app/scenario.h"

namespace gputwin {

/// The plan of `scenario` with another layout.
Outcome<Plan> plan_of(const Scenario& scenario, const Layout& layout, const CostModel& costs);

/// Memory of each program of `plan`, with the allocator of the scenario's stack and job.
std::vector<RoleMemory> memory_of(const Scenario& scenario, const Plan& plan,
                                  const HardwareModel& costs, const Topology& topology);

/// A change to a layout, as a person would write it.
struct LayoutChange {
  std::string what;  // only the keys that change
  Layout layout;
  Bytes host{};  // memory of the fullest node's host
};

/// Changes of sharding, micro-batch, recomputation and offload that make the job fit on its GPUs,
/// in the order in which they usually cost time; the first only, or all. Empty: none does.
std::vector<LayoutChange> fitting_changes(const Scenario& scenario, const HardwareModel& costs,
                                          const Topology& topology, bool all);

/// The first of them as text, and the fewest more GPUs of the cluster that make the model fit.
std::string what_fits(const Scenario& scenario, const HardwareModel& costs,
                      const Topology& topology);

/// The first change of one key (sp, tp_overlap, zero, schedule, offload) that turns a layout which
/// cannot be lowered into one that can, whether or not memory suffices. Nothing: the layout can be
/// lowered, or no such change helps.
std::optional<LayoutChange> legal_change(const Scenario& scenario, const CostModel& costs);

/// Of all changes that fit, the one with the shortest iteration.
std::optional<LayoutChange> cheapest_fit(const Scenario& scenario, const HardwareModel& costs,
                                         const Topology& topology);

}  // namespace gputwin
