// Allocated memory of one rank over time, from the tasks it ran and the Alloc and Free between
// them.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <queue>
#include <vector>

#include "sim/core/plan.h"

namespace gputwin {

/// Bytes allocated in one arena, by memory class, from `at` on.
struct MemorySample {
  Ps at = 0;
  ArenaId arena{};
  std::array<std::int64_t, kMemoryClasses> bytes{};
};

/// A buffer with an address of its own came into use, or went out of it.
struct PlacementSample {
  Ps at = 0;
  BufferId buffer{};
  std::int32_t instances = 0;  // live from `at` on
};

/// Follows a rank through its program. Alloc and Free carry no time of their own, so one takes
/// effect when the next task in issue order starts on the device; what the memory holds then is
/// what that task sees. Tasks may be told in any order: those ahead of the issue order wait, at
/// most kAhead of them.
class MemoryTimeline {
 public:
  static constexpr std::size_t kAhead = 1 << 16;

  MemoryTimeline(const Plan& plan, const Program& program);

  /// Figures before the first instruction: the persistent buffers. One sample per arena that is
  /// used.
  std::vector<MemorySample> initial() const;
  bool uses(ArenaId arena, MemoryClass memory) const {
    return used_[arena.value][static_cast<std::size_t>(memory)];
  }
  /// Task at `position` of the prologue followed by the body ran. Appends what changed to `out`.
  void ran(std::uint32_t body, std::size_t position, Ps start, Ps end,
           std::vector<MemorySample>& out);
  /// Changes of buffers whose address the plan gives, since the last call; by time.
  std::vector<PlacementSample> take_placements();
  /// The run is over: applies what follows the last task of its body.
  void finish(std::vector<MemorySample>& out);

 private:
  struct Ahead {
    std::uint64_t order;
    Ps start;
    bool operator>(const Ahead& other) const { return order > other.order; }
  };
  const Instruction& at(std::uint64_t order) const;
  void apply(const Instruction& instruction);
  void emit(std::vector<MemorySample>& out);

  const Plan* plan_;
  const Program* program_;
  std::vector<std::array<std::int64_t, kMemoryClasses>> now_;  // by arena
  std::vector<std::bitset<kMemoryClasses>> used_;              // by arena
  std::vector<bool> changed_;                                  // by arena
  std::vector<std::int32_t> instances_;                        // by BufferId, of placed buffers
  std::vector<BufferId> moved_;                                // since the last emit
  std::vector<PlacementSample> placements_;
  std::priority_queue<Ahead, std::vector<Ahead>, std::greater<>> ahead_;
  std::uint64_t cursor_ = 0;  // next instruction in issue order, counted over bodies
  Ps frontier_ = 0, last_end_ = 0;
};

}  // namespace gputwin
