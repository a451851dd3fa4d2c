// Kernels bound by memory, on F32: operands of an op brought to the loops of host_loops.h.
#pragma once

#include "validation/executors/host/host_memory.h"
#include "validation/executors/interpreter/interpreter_state.h"

namespace gputwin::executors {

/// Runs the kernel if it is one of: norms, softmax, activations, residual additions, sums over
/// tokens, embedding, positions, rotary embedding, logits and cross entropy. False if not, or if it
/// asks for more than these do: a cut sequence, dropout, weighted rows. `member`: in op.slot.
bool run_pointwise(const Op& op, const HostTask& task, std::int64_t member);

}  // namespace gputwin::executors
