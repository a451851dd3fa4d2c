// What a task computes, on the memory of the processor: matrix products by OpenBLAS and Adam,
// copies and sums in F32; every other kind by the interpreter's definition, in doubles, rounded to
// the operand's format where it is stored.
#pragma once

#include <vector>

#include "validation/executors/host/host_memory.h"
#include "validation/executors/interpreter/interpreter_state.h"

namespace gputwin::executors {

/// Runs one kernel, copy or host task of `rank`. Throws Fault where operands do not fit the op.
void run_kernel(const interpreted::World& world, const interpreted::RankState& rank,
                const HostTask& task);

/// Runs a collective on the parts of all members, in member order. Sums run in that order, in F32.
void run_collective(const Plan& plan, const std::vector<const HostTask*>& members);

/// One thread for every product of matrices: a stream is a thread already.
void use_one_blas_thread();

}  // namespace gputwin::executors
