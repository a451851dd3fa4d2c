// Which of several equal slots of GPU memory each object occupies when, and what that stalls.
//
// Objects (buckets of parameters or of gradients) are used in a known order. A use needs its object
// in a slot; what is not there is loaded, and an object that was written is stored before another
// takes its slot. Loads go one after another on one copy engine, in order of use, stores on a
// second one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/core/offload.h"
#include "sim/core/units.h"

namespace gputwin {

/// An object is needed by instructions `first` to `last`, from `begin` to `end` if nothing stalls.
/// Uses that share an instruction need their objects at once.
struct SlotUse {
  std::int32_t object = 0;
  std::uint32_t first = 0, last = 0;
  Seconds begin{}, end{};
  bool reads = true;  // false: what was there is overwritten, so that nothing is loaded
  bool writes = false;
  bool drops = false;  // what it holds is not needed any more: nothing is stored
};

struct SwapProblem {
  std::vector<SlotUse> uses;  // in order of issue; `begin` never falls
  std::int32_t objects = 0;
  std::int32_t slots = 0;
  std::vector<Seconds> load, store;  // by object
};

inline constexpr std::size_t kNever = static_cast<std::size_t>(-1);

/// An object takes a slot. It may as soon as use `after` has ended (kNever: from the start), and
/// must before use `before` begins.
struct SlotLoad {
  std::int32_t object = 0, slot = 0;
  std::size_t after = kNever, before = 0;
  bool copies = true;
};
/// What was written goes home after use `after`.
struct SlotStore {
  std::int32_t object = 0, slot = 0;
  std::size_t after = 0;
};

struct SwapSchedule {
  std::vector<SlotLoad> loads;    // in order of use
  std::vector<SlotStore> stores;  // in order of their uses
  std::vector<std::int32_t> slot_of_use;
  Seconds stall{};
  bool feasible = true;  // false: one instruction needs more objects than there are slots
};

/// The greedy schedule: of several ways to weigh a victim's stall against its next use, the one
/// that stalls least; OnDemand evicts the farthest next use. O(uses x slots).
SwapSchedule plan_swaps(const SwapProblem& problem, OffloadPolicy policy = OffloadPolicy::Greedy);

/// The least stall of any choice of victims, by trying all of them. For small problems.
Seconds least_stall(const SwapProblem& problem);

}  // namespace gputwin
