// What a task computes, on the memory of the processor: products of matrices and attention by
// OpenBLAS; norms, softmax, activations, losses, sums, copies and Adam in vector code on F32;
// compression by the real codecs; every other kind by the interpreter's definition, in doubles.
// Results are rounded to the operand's format where they are stored.
#pragma once

#include <vector>

#include "sim/core/codec.h"
#include "validation/executors/host/host_memory.h"
#include "validation/executors/interpreter/interpreter_state.h"

namespace gputwin::executors {

/// Runs one kernel, copy or host task of `rank`. Throws Fault where operands do not fit the op.
void run_kernel(const interpreted::World& world, const interpreted::RankState& rank,
                const HostTask& task);

/// Runs a collective on the parts of all members, in member order. Sums run in that order, in F32.
void run_collective(const Plan& plan, const std::vector<const HostTask*>& members);

/// The codec that Encode and Decode name (op.h, note 17). Throws Fault where it cannot code its
/// rows.
Codec codec_of(const Op& op);

/// What a message moves.
void move_values(const HostOperand& from, const HostOperand& to);

/// One thread for every product of matrices: a stream is a thread already.
void use_one_blas_thread();

}  // namespace gputwin::executors
