// Checks that a plan is one that CUDA and NCCL could run. Called after every strategy step.
#pragma once

#include <string>
#include <vector>

#include "sim/core/plan.h"

namespace gputwin {

enum class Depth : std::uint8_t {
  Structure,  // linear: ids, matching sequences, events, liveness, bytes
  Races  // also: conflicting accesses are ordered, and no cycle over streams and ranks (deadlock)
};

struct Violation {
  std::string rule;   // "wait-without-record", "collective-mismatch", …
  std::string where;  // program and instruction, or communicator and sequence number
  std::string what;   // one sentence
};

/// Returns every broken rule, at most 100, in a fixed order; empty means the plan is sound.
///
/// Rules: ids in range; per communicator the same sequence (kind, bytes) on all members; Send n of
/// an ordered pair meets Recv n with the same bytes; every Wait has an earlier Record (with
/// kPreviousBody: one in the body, and one in the prologue); buffers live when used; Alloc and Free
/// balanced over a body; views inside their buffers; reads and writes of a collective conserve
/// bytes.
std::vector<Violation> verify(const Plan& plan, Depth depth = Depth::Structure);

/// Throws InvariantBroken naming `step` and the first violations.
void verify_or_throw(const Plan& plan, const std::string& step, Depth depth = Depth::Structure);

}  // namespace gputwin
