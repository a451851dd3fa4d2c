// Which kernel of a GPU does what an op says: cuBLASLt's products, kernels.h, the codecs.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "validation/executors/cuda/gemm.h"
#include "validation/executors/interpreter/interpreter_state.h"

namespace gputwin::executors {

/// An operand as it lies in memory: the first byte of its buffer, and a view of it.
struct Placed {
  std::byte* memory = nullptr;
  View view;
};

/// A kernel or copy with its operands, and what its meaning needs besides.
struct KernelWork {
  const Op& op;
  std::vector<Placed> reads, writes;
  std::int64_t member = 0;  // in op.slot
  int step = 1;             // of the optimizer
  InterpretOptions values{};
  /// Gradient elements whose square another rank adds to the norm; null: none.
  const std::set<interpreted::Place>* elsewhere = nullptr;
};

/// What a stream has for its kernels.
struct Lane {
  cuda::Stream& stream;
  cuda::Gemm* products;  // where needs_products
  std::byte* scratch;    // as much as the largest PreparedKernel asks for
};

struct PreparedKernel {
  std::size_t scratch = 0;  // bytes
  std::function<void(const Lane&)> enqueue;
};

/// True if the op is a product of matrices.
bool needs_products(const Op& op);

/// Throws Fault with the reason if no kernel here does what `work` asks for. Looks at views alone,
/// so that a plan can be tried before there is memory: then `memory` is null.
PreparedKernel prepare_kernel(const KernelWork& work);

/// The work of a kernel or copy of `rank`, before there is memory.
KernelWork work_without_memory(const Plan& plan, RankId rank, const Instruction& i);

/// Likewise for NCCL: elements and format. A view with gaps cannot be sent.
ncclDataType_t collective_type(DType dtype);
std::byte* without_gaps(const Placed& operand);

}  // namespace gputwin::executors
