// Runs a job with its passes and without, and keeps the faster where the choice was ours.
#pragma once

#include <functional>
#include <variant>

#include "hwmodels/hardware_model.h"
#include "sim/app/scenario.h"
#include "sim/core/executor.h"
#include "sim/core/run_result.h"

namespace gputwin {

/// The plan of a layout, simulated, or why there is none.
using Simulated = std::variant<Execution, Infeasible, Deadlock, Cancelled>;
using LayoutTrial = std::function<Simulated(const Layout&, Plan&)>;

struct PassComparison {
  Layout layout;  // with the choice, so that a plan can be made of it
  PassFigures figures;
};

/// What the passes of `scenario` choose and gain over the same job without them. Searched chunks
/// are run beside 2 to max_chunks equal ones, since the costs of a middle layer chose them; what
/// was searched for and comes out slower than blocking is dropped.
std::variant<PassComparison, Infeasible, Deadlock, Cancelled> compare_passes(
    const Scenario& scenario, const CostModel& costs, const Topology& topology,
    const LayoutTrial& trial);

}  // namespace gputwin
