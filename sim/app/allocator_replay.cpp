#include "sim/app/allocator_replay.h"

#include <algorithm>
#include <utility>

namespace gputwin {
namespace {

class Replay {
 public:
  Replay(const Plan& plan, const Program& program, ArenaId arena, const AllocatorSite& site)
      : plan_(plan),
        program_(program),
        arena_(arena),
        site_(site),
        allocator_(site.options, site.capacity.value > 0 ? site.capacity - site.other : Bytes()) {
    number_buffers();
  }

  AllocatorReplay result() {
    constexpr int kIterations = 4;
    for (const BufferId id : program_.buffers) {
      const Buffer& b = plan_.buffers[id.value];
      if (!b.persistent || !counts(b)) continue;
      const std::uint32_t instances = b.framed ? program_.frames : 1;
      for (std::uint32_t f = 0; f < instances; ++f) allocate(b, place(id, f));
    }
    if (site_.workspace.value > 0) hand_out(site_.workspace, MemoryClass::Temporary);
    issue(program_.prologue);
    issue(program_.body);
    for (int i = 1; i < kIterations; ++i) {
      const Bytes before = allocator_.figures().peak_reserved;
      issue(program_.body);
      if (allocator_.figures().peak_reserved == before) break;
    }
    result_.figures = allocator_.figures();
    return std::move(result_);
  }

 private:
  bool counts(const Buffer& b) const { return !b.in_place && b.arena == arena_; }

  // Handles of all instances lie side by side; `first_` is by buffer, from the smallest id on.
  void number_buffers() {
    if (program_.buffers.empty()) return;
    const auto [low, high] = std::minmax_element(program_.buffers.begin(), program_.buffers.end());
    lowest_ = low->value;
    first_.assign(high->value - lowest_ + 1, 0);
    std::uint32_t next = 0;
    for (const BufferId id : program_.buffers) {
      first_[id.value - lowest_] = next;
      next += plan_.buffers[id.value].framed ? std::max(1u, program_.frames) : 1;
    }
    handles_.assign(next, CachingAllocator::kNone);
  }

  CachingAllocator::Handle& place(BufferId id, std::uint32_t frame) {
    const bool framed = plan_.buffers[id.value].framed && frame != kNoFrame;
    return handles_[first_[id.value - lowest_] + (framed ? frame : 0)];
  }

  CachingAllocator::Handle hand_out(Bytes bytes, MemoryClass memory) {
    CachingAllocator::Handle block = allocator_.allocate(bytes);
    if (block == CachingAllocator::kNone) {
      result_.out_of_memory =
          out_of_memory_text(bytes, allocator_.figures(), site_.capacity, site_.other);
      allocator_.set_limit(Bytes());
      block = allocator_.allocate(bytes);
    }
    now_[static_cast<std::size_t>(memory)] += allocator_.size(block);
    if (allocator_.figures().allocated > highest_) {
      highest_ = allocator_.figures().allocated;
      result_.at_peak = now_;
    }
    return block;
  }

  void allocate(const Buffer& b, CachingAllocator::Handle& handle) {
    handle = hand_out(b.bytes, b.memory);
  }

  void issue(const std::vector<Instruction>& instructions) {
    for (const Instruction& in : instructions) {
      if (in.kind != Kind::Alloc && in.kind != Kind::Free) continue;
      const Buffer& b = plan_.buffers[in.call];
      if (!counts(b)) continue;
      CachingAllocator::Handle& handle = place(in.buffer_id(), in.frame());
      if (in.kind == Kind::Alloc) {
        allocate(b, handle);
      } else {
        now_[static_cast<std::size_t>(b.memory)] -= allocator_.size(handle);
        allocator_.free(handle);
      }
    }
  }

  const Plan& plan_;
  const Program& program_;
  const ArenaId arena_;
  const AllocatorSite& site_;
  CachingAllocator allocator_;
  std::uint32_t lowest_ = 0;
  std::vector<std::uint32_t> first_;
  std::vector<CachingAllocator::Handle> handles_;
  std::array<Bytes, kMemoryClasses> now_{};
  Bytes highest_{};
  AllocatorReplay result_;
};

}  // namespace

AllocatorReplay replay_allocator(const Plan& plan, const Program& program, ArenaId arena,
                                 const AllocatorSite& site) {
  return Replay(plan, program, arena, site).result();
}

}  // namespace gputwin
