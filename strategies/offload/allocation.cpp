#include "strategies/offload/allocation.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace gputwin {
namespace {

bool together(const Lifetime& a, const Lifetime& b) { return a.begin < b.end && b.begin < a.end; }

std::int64_t aligned(std::int64_t offset, std::int64_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

// Places buffers one after another into the gaps that those before leave.
class Placer {
 public:
  Placer(const std::vector<Lifetime>& lifetimes, Fit fit, std::int64_t alignment)
      : lifetimes_(lifetimes), fit_(fit), alignment_(alignment) {
    out_.offsets.assign(lifetimes.size(), 0);
  }

  void place(std::size_t i) {
    const Lifetime& l = lifetimes_[i];
    std::int64_t free = 0, found = -1, smallest = 0;
    for (const std::size_t k : by_offset_) {
      if (!together(lifetimes_[k], l)) continue;
      const std::int64_t start = aligned(free, alignment_);
      const std::int64_t gap = out_.offsets[k] - start;
      if (gap >= l.bytes && (found < 0 || gap < smallest)) {
        found = start;
        smallest = gap;
        if (fit_ == Fit::First) break;
      }
      free = std::max(free, out_.offsets[k] + lifetimes_[k].bytes);
    }
    out_.offsets[i] = found >= 0 ? found : aligned(free, alignment_);
    out_.bytes = std::max(out_.bytes, out_.offsets[i] + l.bytes);
    const auto after = std::upper_bound(
        by_offset_.begin(), by_offset_.end(), i,
        [&](std::size_t a, std::size_t b) { return out_.offsets[a] < out_.offsets[b]; });
    by_offset_.insert(after, i);
  }
  Addresses take() { return std::move(out_); }

 private:
  const std::vector<Lifetime>& lifetimes_;
  Fit fit_;
  std::int64_t alignment_;
  Addresses out_;
  std::vector<std::size_t> by_offset_;
};

// Depth first over the order in which buffers settle at their lowest place.
class Search {
 public:
  Search(const std::vector<Lifetime>& lifetimes, std::int64_t capacity, std::int64_t steps)
      : l_(lifetimes), capacity_(capacity), steps_(steps) {
    floor_.assign(l_.size(), 0);
    placed_.assign(l_.size(), 0);
    order_.resize(l_.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    // Those with most at stake first: large and long.
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      return l_[a].bytes * (l_[a].end - l_[a].begin) > l_[b].bytes * (l_[b].end - l_[b].begin);
    });
  }

  bool run() { return settle(0, 0); }
  bool gave_up() const { return steps_ <= 0; }
  Addresses addresses() const {
    Addresses a{.offsets = floor_, .bytes = 0};
    for (std::size_t i = 0; i < l_.size(); ++i)
      a.bytes = std::max(a.bytes, floor_[i] + l_[i].bytes);
    return a;
  }

 private:
  // In a canonical solution offsets never fall in the order of placement.
  bool settle(std::size_t count, std::int64_t lowest) {
    if (count == l_.size()) return true;
    if (--steps_ <= 0) return false;
    for (std::size_t i = 0; i < l_.size(); ++i) {
      if (placed_[i] == 0 && std::max(floor_[i], lowest) + l_[i].bytes > capacity_) return false;
    }
    for (const std::size_t i : order_) {
      if (placed_[i] != 0 || floor_[i] < lowest) continue;
      const std::vector<std::int64_t> saved = floor_;
      placed_[i] = 1;
      const std::int64_t top = floor_[i] + l_[i].bytes;
      for (std::size_t k = 0; k < l_.size(); ++k) {
        if (placed_[k] == 0 && together(l_[i], l_[k])) floor_[k] = std::max(floor_[k], top);
      }
      if (settle(count + 1, saved[i])) return true;
      placed_[i] = 0;
      floor_ = saved;
      if (steps_ <= 0) return false;
    }
    return false;
  }

  const std::vector<Lifetime>& l_;
  std::int64_t capacity_, steps_;
  std::vector<std::int64_t> floor_;  // lowest offset that those placed below allow
  std::vector<char> placed_;
  std::vector<std::size_t> order_;
};

}  // namespace

std::int64_t lower_bound_bytes(const std::vector<Lifetime>& lifetimes) {
  std::map<std::int64_t, std::int64_t> change;
  for (const Lifetime& l : lifetimes) {
    change[l.begin] += l.bytes;
    change[l.end] -= l.bytes;
  }
  std::int64_t now = 0, most = 0;
  for (const auto& [when, bytes] : change) most = std::max(most, now += bytes);
  return most;
}

Slots colour_slots(const std::vector<Lifetime>& lifetimes, std::int64_t period) {
  Slots out;
  out.of.assign(lifetimes.size(), -1);
  std::vector<std::size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return lifetimes[a].begin < lifetimes[b].begin;
  });
  std::vector<std::int64_t> free_at, taken_from;  // by slot; from when it is another's again
  std::map<std::int64_t, std::int32_t> alive;
  for (const std::size_t i : order) {
    const Lifetime& l = lifetimes[i];
    ++alive[l.begin];
    --alive[l.end];
    if (period <= 0 || l.begin <= l.end) continue;
    out.of[i] = out.crossing++;
    ++alive[0];
    free_at.push_back(l.end);
    taken_from.push_back(l.begin);
  }
  for (const std::size_t i : order) {
    if (out.of[i] >= 0) continue;
    const Lifetime& l = lifetimes[i];
    std::size_t s = 0;
    const auto fits = [&] {
      return free_at[s] <= l.begin && (taken_from[s] < 0 || l.end <= taken_from[s]);
    };
    while (s < free_at.size() && !fits()) ++s;
    if (s == free_at.size()) {
      free_at.push_back(0);
      taken_from.push_back(-1);
    }
    free_at[s] = l.end;
    out.of[i] = static_cast<std::int32_t>(s);
  }
  out.count = static_cast<std::int32_t>(free_at.size());
  std::int32_t now = 0;
  for (const auto& [when, change] : alive) out.most_alive = std::max(out.most_alive, now += change);
  return out;
}

Addresses greedy_by_size(const std::vector<Lifetime>& lifetimes, Fit fit, std::int64_t alignment) {
  std::vector<std::size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return lifetimes[a].bytes > lifetimes[b].bytes;
  });
  Placer placer(lifetimes, fit, alignment);
  for (const std::size_t i : order) placer.place(i);
  return placer.take();
}

Addresses best_fit_in_order(const std::vector<Lifetime>& lifetimes, std::int64_t alignment) {
  std::vector<std::size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return lifetimes[a].begin < lifetimes[b].begin;
  });
  Placer placer(lifetimes, Fit::Best, alignment);
  for (const std::size_t i : order) placer.place(i);
  return placer.take();
}

ExactPlacement place_exactly(const std::vector<Lifetime>& lifetimes, std::int64_t capacity,
                             std::int64_t most_steps) {
  if (lower_bound_bytes(lifetimes) > capacity) return {};
  Search search(lifetimes, capacity, most_steps);
  if (search.run()) return {.addresses = search.addresses(), .proved = true};
  return {.addresses = std::nullopt, .proved = !search.gave_up()};
}

bool disjoint(const std::vector<Lifetime>& lifetimes, const std::vector<std::int64_t>& offsets) {
  for (std::size_t a = 0; a < lifetimes.size(); ++a) {
    for (std::size_t b = a + 1; b < lifetimes.size(); ++b) {
      if (!together(lifetimes[a], lifetimes[b])) continue;
      if (offsets[a] < offsets[b] + lifetimes[b].bytes &&
          offsets[b] < offsets[a] + lifetimes[a].bytes) {
        return false;
      }
    }
  }
  return true;
}

BufferLifetimes buffer_lifetimes(const Plan& plan, const Program& program, ArenaId arena) {
  BufferLifetimes out;
  const auto end = static_cast<std::int64_t>(program.body.size());
  const auto counts = [&](const Buffer& b) { return !b.in_place && b.arena == arena; };
  for (const BufferId id : program.buffers) {
    const Buffer& b = plan.buffers[id.value];
    if (!b.persistent || !counts(b)) continue;
    const std::uint32_t copies = b.framed ? program.frames : 1;
    for (std::uint32_t k = 0; k < copies; ++k) {
      out.lifetimes.push_back({0, end, b.bytes.value});
      out.buffers.push_back(id);
    }
  }
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> open;
  for (std::int64_t i = 0; i < end; ++i) {
    const Instruction& in = program.body[static_cast<std::size_t>(i)];
    if (in.kind != Kind::Alloc && in.kind != Kind::Free) continue;
    const Buffer& b = plan.buffers[in.call];
    if (!counts(b)) continue;
    if (in.kind == Kind::Alloc) {
      open[{in.call, in.frame()}] = out.lifetimes.size();
      out.lifetimes.push_back({i, end, b.bytes.value});
      out.buffers.push_back(in.buffer_id());
    } else {
      out.lifetimes[open.at({in.call, in.frame()})].end = i;
    }
  }
  return out;
}

}  // namespace gputwin
