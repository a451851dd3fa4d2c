// Real memory of one rank, and numbers in it by format.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "sim/core/plan.h"
#include "validation/executors/walker.h"

namespace gputwin::executors {

class MemoryPool;

/// One stay of a buffer. Its bytes come from the pool when a task first asks for them, not when the
/// host issues the allocation: a host that runs ahead of its streams holds no memory for them.
class Chunk {
 public:
  std::int64_t size() const { return size_; }
  std::byte* data();
  ~Chunk();  // gives the bytes back

 private:
  friend class MemoryPool;
  friend std::shared_ptr<Chunk> borrowed(std::byte* bytes, std::int64_t size);
  struct Store;
  Chunk(std::int64_t size, std::shared_ptr<Store> store) : size_(size), store_(std::move(store)) {}

  std::int64_t size_;
  std::shared_ptr<Store> store_;
  std::once_flag taken_;
  std::unique_ptr<std::byte[]> bytes_;
  std::int64_t capacity_ = 0;
  std::byte* lent_ = nullptr;
};
using HostMemory = std::shared_ptr<Chunk>;
using HostOperand = Operand<HostMemory>;
using HostTask = Task<HostMemory>;
using HostMessage = Message<HostMemory>;

/// Gives memory out and takes it back when its last holder (the live table, an issued task) is
/// done; pieces are kept and used again. Safe to use from several threads.
class MemoryPool {
 public:
  /// `poison`: fresh and reused memory holds NaN, so that a read before a write shows in the loss.
  explicit MemoryPool(bool poison);
  HostMemory allocate(std::int64_t bytes);
  /// Most bytes that were in use at one time.
  std::int64_t peak_bytes() const;

 private:
  std::shared_ptr<Chunk::Store> store_;
};

/// A stay in memory of another owner, who keeps it as long.
HostMemory borrowed(std::byte* bytes, std::int64_t size);

/// True for the formats that the processor computes with here: F32 (and TF32 as F32), BF16 and
/// integers.
bool runs_on_host(DType dtype);

/// Elements of an operand, row by row, as `Real` (float or double).
template <class Real>
std::vector<Real> load(const HostOperand& from);
/// Writes them, rounded to the operand's format (BF16: to nearest even).
template <class Real>
void store(const HostOperand& to, const std::vector<Real>& values);
/// The bytes of a view without gaps, for payloads of codecs.
std::uint8_t* bytes_of_operand(const HostOperand& operand);
/// Where the elements lie if they are F32 without gaps; else null.
float* floats_of(const HostOperand& operand);

}  // namespace gputwin::executors
