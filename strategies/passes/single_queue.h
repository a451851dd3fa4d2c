// One hardware queue for all streams of a GPU (CUDA_DEVICE_MAX_CONNECTIONS=1): what is issued later
// does not start before what was issued earlier has started, whatever their streams.
#pragma once

#include "sim/core/plan.h"

namespace gputwin {

/// `plan` with an event before every kernel and communication whose successor in the order of issue
/// lies on another stream, for which that one waits. Messages of one group stay together.
Plan single_queue(Plan plan);

}  // namespace gputwin
