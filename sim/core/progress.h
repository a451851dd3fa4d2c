// Untimed execution of a plan: which ranks can never finish. Finds every deadlock that an order of
// streams, events and rendezvous makes unavoidable, without costs and without an engine.
#pragma once

#include <string>
#include <vector>

#include "sim/core/plan.h"

namespace gputwin {

/// Runs prologue and one body of every rank as far as they get. Returns one description per blocked
/// stream
/// ("rank 1 stream tp: F/L0/fc1 waits for rank 0"), empty if all end. The host never waits for
/// queue space.
std::vector<std::string> blocked_ranks(const Plan& plan);

}  // namespace gputwin
