// Real memory of one rank, and numbers in it by format.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "sim/core/plan.h"
#include "validation/executors/walker.h"

namespace gputwin::executors {

struct Chunk {
  std::unique_ptr<std::byte[]> bytes;
  std::int64_t size = 0;
};
using HostMemory = std::shared_ptr<Chunk>;
using HostOperand = Operand<HostMemory>;
using HostTask = Task<HostMemory>;
using HostMessage = Message<HostMemory>;

/// Gives memory out and takes it back when its last holder (the live table, an issued task) is
/// done; chunks are kept by size and used again. Safe to use from several threads.
class MemoryPool {
 public:
  /// `poison`: fresh and reused memory holds NaN, so that a read before a write shows in the loss.
  explicit MemoryPool(bool poison);
  HostMemory allocate(std::int64_t bytes);
  std::int64_t peak_bytes() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// True for the formats that the processor computes with here: F32 (and TF32 as F32), BF16 and
/// integers.
bool runs_on_host(DType dtype);

/// Elements of an operand, row by row, as `Real` (float or double).
template <class Real>
std::vector<Real> load(const HostOperand& from);
/// Writes them, rounded to the operand's format (BF16: to nearest even).
template <class Real>
void store(const HostOperand& to, const std::vector<Real>& values);
/// Where the elements lie if they are F32 without gaps; else null.
float* floats_of(const HostOperand& operand);

}  // namespace gputwin::executors
