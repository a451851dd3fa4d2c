// Fixed addresses for buffers whose lifetimes are known: those that never live together share them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/plan.h"

namespace gputwin {

/// Live in [begin, end); with `begin` > `end` on a cycle: from `begin` to the end of the iteration
/// and on from its start to `end`.
struct Lifetime {
  std::int64_t begin = 0, end = 0;
  std::int64_t bytes = 0;
};

struct Addresses {
  std::vector<std::int64_t> offsets;  // by lifetime
  std::int64_t bytes = 0;             // highest end of any
};

/// The most bytes alive at once: no placement needs less.
std::int64_t lower_bound_bytes(const std::vector<Lifetime>& lifetimes);

/// Slots for buffers of one size: by begin, each takes the lowest free one; as many as are alive at
/// once. On a cycle of `period` > 0 those that cross its end take theirs first and keep them, which
/// needs at most so many more as cross.
struct Slots {
  std::vector<std::int32_t> of;  // by lifetime
  std::int32_t count = 0, most_alive = 0, crossing = 0;
};
Slots colour_slots(const std::vector<Lifetime>& lifetimes, std::int64_t period = 0);

enum class Fit : std::uint8_t { First, Best };

/// Greedy by size (TensorFlow Lite Micro, greedy_memory_planner.cc): largest first, each into the
/// first gap, or the smallest one, between those placed that live with it. Offsets are multiples of
/// `alignment`.
Addresses greedy_by_size(const std::vector<Lifetime>& lifetimes, Fit fit = Fit::First,
                         std::int64_t alignment = 1);
/// The same in order of begin.
Addresses best_fit_in_order(const std::vector<Lifetime>& lifetimes, std::int64_t alignment = 1);

/// Offsets that end at or below `capacity`, if there are any. Branch and bound over orders of
/// placement, each buffer as low as those placed before allow (canonical solutions: MiniMalloc,
/// Moffitt 2023). Gives up after `most_steps`, which `proved` then says.
struct ExactPlacement {
  std::optional<Addresses> addresses;
  bool proved = true;
};
ExactPlacement place_exactly(const std::vector<Lifetime>& lifetimes, std::int64_t capacity,
                             std::int64_t most_steps = 2'000'000);

/// True if no two that live together share a byte.
bool disjoint(const std::vector<Lifetime>& lifetimes, const std::vector<std::int64_t>& offsets);

/// GPU buffers of a program that live between Alloc and Free, by instruction; and the persistent
/// ones, which live all the time. Parallel to `buffers`.
struct BufferLifetimes {
  std::vector<Lifetime> lifetimes;
  std::vector<BufferId> buffers;
};
BufferLifetimes buffer_lifetimes(const Plan& plan, const Program& program, ArenaId arena);

}  // namespace gputwin
