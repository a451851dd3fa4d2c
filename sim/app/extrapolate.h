// Runs with many micro-batches from two short ones.
#pragma once

#include "sim/app/run.h"

namespace gputwin {

/// As run(), but where a pipeline of p stages has more than 4 p micro-batches, 2 p and 3 p of them
/// are simulated and the rest follows on the line through both: once the pipeline is full, every
/// further p micro-batches take the same time. With offload 4 p and 8 p of more than 8 p. If a
/// stage computes for longer than that (some zero-bubble schedules), all of them are simulated.
/// Traces are not written.
///
/// Exact where durations do not vary (tests/joined compares), with offload within 2 %; with jitter,
/// several bodies or offload whose strategy chooses what leaves run() is called. `engine` counts
/// what was simulated.
RunOutcome run_extrapolated(const Scenario& scenario, const RunRequest& request);

}  // namespace gputwin
