// PyTorch's caching allocator of GPU memory: which block a request gets, what is reserved from the
// driver for it, and what is left in pieces that nobody can use.
//
// Source  c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.6, from knowledge of the code: rounding to
//         512 B; requests up to 1 MiB from segments of 2 MiB, others below 10 MiB from segments of
//         20 MiB, larger ones from segments of their own, rounded up to 2 MiB; best fit by (size,
//         address) in the pool of the stream; splitting where more than 1 MiB is left (small pool
//         and expandable segments: 512 B); neighbours join when freed; unused segments are given
//         back when the device is full. These rules and constants are the same since 1.10,
//         expandable segments came with 2.1.
// Not modelled: private pools of CUDA graphs, garbage_collection_threshold (it acts only below a
//         memory fraction that the job sets), other processes on the GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/units.h"

namespace gputwin {

/// PYTORCH_CUDA_ALLOC_CONF.
struct AllocatorOptions {
  bool expandable_segments = false;
  Bytes max_split_size{};                     // 0: blocks of any size are split
  std::int32_t roundup_power2_divisions = 0;  // a power of two; 0 or 1: blocks are not rounded so
  bool operator==(const AllocatorOptions&) const = default;
};

/// Figures that torch.cuda.memory_stats() has too.
struct AllocatorFigures {
  Bytes allocated{}, reserved{};  // now
  Bytes peak_allocated{}, peak_reserved{};
  Bytes reserved_at_peak{};   // when `peak_allocated` was reached first
  std::int64_t segments = 0;  // held now; expandable: ranges of addresses
  std::int64_t peak_segments = 0;
  std::int64_t retries = 0;  // cached segments were given back because the device was full
  bool operator==(const AllocatorFigures&) const = default;
};

class CachingAllocator {
 public:
  using Handle = std::uint32_t;
  static constexpr Handle kNone = 0xffffffffu;

  /// `limit`: bytes that the driver gives at most; 0: any.
  explicit CachingAllocator(const AllocatorOptions& options, Bytes limit = {});

  /// A block of at least `bytes` for use on `stream`; kNone if the device is full even without
  /// cached segments. A request of 0 bytes takes a block too. O(log free blocks + their move).
  Handle allocate(Bytes bytes, std::uint32_t stream = 0);
  /// Gives a block back: to its pool, or, if other streams use it, when their work has happened.
  void free(Handle block);
  /// Tensor.record_stream: work on `stream` uses the block, too.
  void record_stream(Handle block, std::uint32_t stream);
  /// All work issued on `stream` until now has happened.
  void complete(std::uint32_t stream);
  /// Gives back every segment (expandable: page) in which nothing lives; torch.cuda.empty_cache.
  void empty_cache();
  /// From now on the driver gives `limit` at most.
  void set_limit(Bytes limit) { limit_ = limit.value; }

  Bytes size(Handle block) const { return Bytes(blocks_[block].size); }
  /// Where the block lies; no two live blocks overlap.
  std::int64_t address(Handle block) const { return blocks_[block].address; }
  const AllocatorFigures& figures() const { return figures_; }

  /// Size of the block that a request takes at least.
  Bytes rounded(Bytes request) const;

 private:
  struct Block {
    std::int64_t address = 0, size = 0;
    Handle before = kNone, after = kNone;  // neighbours in the segment
    std::uint32_t pool = 0;
    bool allocated = false, mapped = true, expandable = false;
    std::vector<std::uint32_t> users;  // streams of record_stream
  };
  struct Free {
    std::int64_t size, address;
    Handle block;
  };
  struct Pool {
    std::uint32_t stream = 0;
    bool small = false;
    std::vector<Free> free;        // by (size, address)
    std::vector<Handle> unmapped;  // by address
    std::int64_t page() const;
  };

  std::uint32_t pool_of(std::int64_t size, std::uint32_t stream);
  Handle make_block(std::uint32_t pool, std::int64_t address, std::int64_t size);
  void drop_block(Handle block);
  void insert_free(Handle block);
  void erase_free(Handle block);
  void insert_unmapped(Handle block);
  void erase_unmapped(Handle block);
  Handle best_fit(std::uint32_t pool, std::int64_t size);
  std::int64_t size_to_grow(Handle block) const;
  bool should_split(const Block& block, std::int64_t size) const;
  Handle hand_out(Handle block, std::int64_t size);
  void split(Handle block, std::int64_t size);
  bool mergeable(Handle block, Handle neighbour) const;
  void merge(Handle block);
  void release(Handle block);
  bool take(std::int64_t bytes);
  Handle new_segment(std::uint32_t pool, std::int64_t size);
  Handle grow(std::uint32_t pool, std::int64_t size);
  Handle place_to_grow(std::uint32_t pool, std::int64_t size);
  Handle map(Handle block, std::int64_t size);
  void unmap(Handle block);
  bool release_oversized(std::uint32_t pool, std::int64_t size);
  void give_back(Handle segment);
  void note_reserved();

  AllocatorOptions options_;
  std::int64_t limit_ = 0, max_split_ = 0;
  std::int64_t next_address_ = 0;
  AllocatorFigures figures_;
  std::vector<Block> blocks_;
  std::vector<Handle> unused_;
  std::vector<Pool> pools_;
  std::vector<Handle> pending_;  // freed, but used on other streams
};

/// What PyTorch says when a request fails. `capacity`: of the device; `other`: bytes of the process
/// beside the allocator (context, communicators).
std::string out_of_memory_text(Bytes request, const AllocatorFigures& at, Bytes capacity,
                               Bytes other);

}  // namespace gputwin
