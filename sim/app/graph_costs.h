// What each unit of a layer graph costs on a device, as the planners of strategies/layouts need it.
#pragma once

#include "sim/core/cost_model.h"
#include "sim/core/job.h"
#include "sim/core/workload.h"
#include "strategies/layouts/layer_costs.h"

namespace gputwin {

/// Forward and backward time of every unit for a micro-batch of `samples`, its weights and their
/// share of the optimizer's step, and the bytes that cross the cut behind it. Times are sums of the
/// kernels that a plan of one stage runs, so that a planner and the simulator price the same.
LayerCosts unit_costs(const LayerGraph& graph, const Job& job, std::int64_t samples,
                      const CostModel& costs, DeviceKindId device);

}  // namespace gputwin
