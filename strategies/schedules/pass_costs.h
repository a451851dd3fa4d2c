// What the passes of a lowered job take and hold, for schedules that weigh them.
#pragma once

#include "sim/core/cost_model.h"
#include "sim/core/segment.h"
#include "sim/core/topology.h"
#include "strategies/schedules/table.h"

namespace gputwin {

/// By model chunk, but the median of all: seconds of the kernels of each pass, one after the other,
/// on the first GPU of the stage. It stands for the profiling run of the zero-bubble scheduler,
/// which takes medians too and counts a micro-batch as held until its weight gradient is done.
/// Collectives, hidden or not, are left out.
std::vector<PassCosts> pass_costs(const Lowered& lowered, const CostModel& costs,
                                  const Topology& topology);

/// Seconds from the end of a pass to the arrival of its message at the next stage, on free links.
double message_seconds(const Lowered& lowered, const CostModel& costs, const Topology& topology);

}  // namespace gputwin
