// What slices are called and what stands in their arguments, alike in every kind of trace.
#pragma once

#include <string>

#include "sim/core/cost.h"
#include "sim/core/plan.h"

namespace gputwin {

/// Plan::full_name in pieces, so that it is spelt once for all micro-batches.
struct SliceName {
  std::string before, after;  // the micro-batch stands between them; empty if it does not appear
  std::string plain;          // outside micro-batches
};
SliceName slice_name(const Plan& plan, const Instruction& instruction);

/// Members of a JSON object without braces: op, dtype, shape, bytes, flops, and the terms of `cost`
/// unless it is null.
std::string slice_arguments(const Call& call, const Cost* cost);

}  // namespace gputwin
