// Where the power of a run's timeline comes from: the limits of its devices and the costs of its
// kernels.
#pragma once

#include "hwmodels/hardware_model.h"
#include "sim/core/plan.h"
#include "sim/core/topology.h"
#include "sim/trace/power_timeline.h"

namespace gputwin {

/// All must outlive the source.
PowerSource power_source(const Plan& plan, const Topology& topology, const HardwareModel& costs);

}  // namespace gputwin
