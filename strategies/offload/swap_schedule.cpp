#include "strategies/offload/swap_schedule.h"

#include <algorithm>
#include <array>
#include <limits>

namespace gputwin {
namespace {

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

struct Slot {
  std::int32_t object = -1;
  std::size_t last_use = kNever;
  double free = 0;   // when its last user has ended
  double ready = 0;  // when its object is there
  bool dirty = false;
};

// State of slots and engines while uses pass by. `decide` picks the slot for a missing object.
class Walk {
 public:
  Walk(const SwapProblem& problem, OffloadPolicy policy)
      : p_(problem), policy_(policy), slots_(at(problem.slots)), where_(at(problem.objects), -1) {}

  double stall() const { return stall_; }
  const std::vector<Slot>& slots() const { return slots_; }
  std::int32_t where(std::int32_t object) const { return where_[at(object)]; }
  double now(std::size_t use) const { return p_.uses[use].begin.value + stall_; }

  // True if no object of the instruction of `use` lies in `slot`.
  bool may_leave(std::size_t slot, std::size_t use) const {
    const Slot& s = slots_[slot];
    return s.last_use == kNever || p_.uses[s.last_use].last < p_.uses[use].first;
  }

  double store_end(std::size_t slot) const {
    const Slot& s = slots_[slot];
    if (!s.dirty) return s.free;
    return std::max(s.free, store_engine_) + p_.store[at(s.object)].value;
  }

  // When the object of `use` would be there if it took `slot`.
  double arrival(std::size_t slot, std::size_t use) const {
    const double empty = store_end(slot);
    if (!p_.uses[use].reads) return empty;
    double start = std::max(empty, load_engine_);
    if (policy_ != OffloadPolicy::Greedy) start = std::max(start, previous_end_);
    return start + p_.load[at(p_.uses[use].object)].value;
  }

  void take(std::size_t slot, std::size_t use, SwapSchedule* out) {
    Slot& s = slots_[slot];
    const SlotUse& u = p_.uses[use];
    const double there = arrival(slot, use);
    if (s.object >= 0) {
      if (s.dirty) {
        store_engine_ = store_end(slot);
        if (out != nullptr) {
          out->stores.push_back({s.object, static_cast<std::int32_t>(slot), s.last_use});
        }
      }
      where_[at(s.object)] = -1;
    }
    if (out != nullptr) {
      out->loads.push_back({u.object, static_cast<std::int32_t>(slot), s.last_use, use, u.reads});
    }
    if (u.reads) load_engine_ = there;
    s = {.object = u.object, .last_use = kNever, .free = 0, .ready = there, .dirty = false};
    where_[at(u.object)] = static_cast<std::int32_t>(slot);
  }

  // The object of `use` is in a slot.
  void pass(std::size_t use, SwapSchedule* out) {
    const SlotUse& u = p_.uses[use];
    const std::int32_t slot = where_[at(u.object)];
    Slot& s = slots_[at(slot)];
    stall_ += std::max(0.0, s.ready - now(use));
    s.last_use = use;
    s.free = u.end.value + stall_;
    s.dirty = (s.dirty || u.writes) && !u.drops;
    previous_end_ = std::max(previous_end_, s.free);
    if (out != nullptr) out->slot_of_use.push_back(slot);
  }

  void finish(SwapSchedule& out) {
    std::vector<SlotStore> left;
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      if (!slots_[s].dirty) continue;
      left.push_back({slots_[s].object, static_cast<std::int32_t>(s), slots_[s].last_use});
    }
    out.stores.insert(out.stores.end(), left.begin(), left.end());
    std::stable_sort(out.stores.begin(), out.stores.end(),
                     [](const SlotStore& a, const SlotStore& b) { return a.after < b.after; });
    out.stall = Seconds(stall_);
  }

 private:
  const SwapProblem& p_;
  OffloadPolicy policy_;
  std::vector<Slot> slots_;
  std::vector<std::int32_t> where_;  // slot of an object, or -1
  double stall_ = 0, load_engine_ = 0, store_engine_ = 0, previous_end_ = 0;
};

// By use: the next use of the same object in another instruction, or kNever.
std::vector<std::size_t> next_uses(const SwapProblem& p) {
  std::vector<std::size_t> next(p.uses.size(), kNever), last(at(p.objects), kNever);
  for (std::size_t i = p.uses.size(); i-- > 0;) {
    std::size_t& l = last[at(p.uses[i].object)];
    next[i] = l;
    l = i;
  }
  return next;
}

// A victim costs what its slot makes the load wait, and `weight` loads for coming back soon. Of
// equal ones the farthest next use leaves, then the slot that lets the load end first: a load that
// still is in time but begins later delays those behind it.
class Greedy {
 public:
  Greedy(const SwapProblem& problem, const std::vector<std::size_t>& next, double weight)
      : p_(problem), next_(next), weight_(weight) {
    end_ = p_.uses.empty() ? 0.0 : p_.uses.back().end.value;
  }

  std::size_t victim(const Walk& walk, std::size_t use) const {
    std::size_t best = kNever;
    double least = std::numeric_limits<double>::infinity();
    std::size_t farthest = 0;
    double earliest = 0;
    for (std::size_t s = 0; s < walk.slots().size(); ++s) {
      if (!walk.may_leave(s, use)) continue;
      const Slot& slot = walk.slots()[s];
      const std::size_t again = slot.last_use == kNever ? kNever : next_[slot.last_use];
      if (again != kNever && p_.uses[again].first <= p_.uses[use].first) continue;
      const double cost = price(walk, s, use, again), there = walk.arrival(s, use);
      const bool first = again > farthest || (again == farthest && there < earliest);
      if (cost < least || (cost == least && first)) {
        best = s;
        least = cost;
        farthest = again;
        earliest = there;
      }
    }
    return best;
  }

 private:
  double price(const Walk& walk, std::size_t s, std::size_t use, std::size_t again) const {
    const Slot& slot = walk.slots()[s];
    if (weight_ < 0) return again == kNever ? -1e30 : -static_cast<double>(again);  // Belady
    const double stall = std::max(0.0, walk.arrival(s, use) - walk.now(use));
    if (slot.object < 0 || again == kNever) return stall;
    const double here = p_.uses[use].begin.value;
    const double left = std::max(end_ - here, 1e-30);
    const double soon = 1.0 - (p_.uses[again].begin.value - here) / left;
    return stall + weight_ * soon * p_.load[at(slot.object)].value;
  }

  const SwapProblem& p_;
  const std::vector<std::size_t>& next_;
  double weight_;
  double end_ = 0;
};

SwapSchedule walk_greedily(const SwapProblem& p, const std::vector<std::size_t>& next,
                           OffloadPolicy policy, double weight) {
  SwapSchedule out;
  Walk walk(p, policy);
  const Greedy greedy(p, next, weight);
  for (std::size_t u = 0; u < p.uses.size(); ++u) {
    if (walk.where(p.uses[u].object) < 0) {
      const std::size_t slot = greedy.victim(walk, u);
      if (slot == kNever) {
        out.feasible = false;
        return out;
      }
      walk.take(slot, u, &out);
    }
    walk.pass(u, &out);
  }
  walk.finish(out);
  return out;
}

void try_all(const SwapProblem& p, Walk walk, std::size_t use, double& best) {
  for (; use < p.uses.size(); ++use) {
    if (walk.stall() >= best) return;
    if (walk.where(p.uses[use].object) < 0) {
      for (std::size_t s = 0; s < walk.slots().size(); ++s) {
        if (!walk.may_leave(s, use)) continue;
        Walk branch = walk;
        branch.take(s, use, nullptr);
        branch.pass(use, nullptr);
        try_all(p, std::move(branch), use + 1, best);
      }
      return;
    }
    walk.pass(use, nullptr);
  }
  best = std::min(best, walk.stall());
}

}  // namespace

SwapSchedule plan_swaps(const SwapProblem& problem, OffloadPolicy policy) {
  const std::vector<std::size_t> next = next_uses(problem);
  constexpr double kBelady = -1.0;
  if (policy != OffloadPolicy::Greedy) return walk_greedily(problem, next, policy, kBelady);
  constexpr std::array<double, 6> kWeights{0.0, 0.1, 0.3, 1.0, 3.0, kBelady};
  SwapSchedule best;
  best.stall = Seconds(std::numeric_limits<double>::infinity());
  for (const double weight : kWeights) {
    SwapSchedule one = walk_greedily(problem, next, policy, weight);
    if (!one.feasible) return one;
    const bool fewer = one.stall == best.stall && one.loads.size() < best.loads.size();
    if (one.stall < best.stall || fewer) best = std::move(one);
  }
  return best;
}

Seconds least_stall(const SwapProblem& problem) {
  double best = std::numeric_limits<double>::infinity();
  try_all(problem, Walk(problem, OffloadPolicy::Greedy), 0, best);
  return Seconds(best);
}

}  // namespace gputwin
