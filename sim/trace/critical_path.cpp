#include <algorithm>

#include "sim/trace/queries.h"

namespace gputwin {

namespace {

constexpr std::size_t kMaxSteps = 2'000'000;

class PathFinder {
 public:
  PathFinder(const Store& store, TimeRange range) : store_(store), range_(range) {
    by_process_.resize(store.processes.size());
    for (std::uint32_t t = 0; t < store.tracks.size(); ++t) {
      const Track& track = store.tracks[t];
      if (track.count > 0 && track.depth == 0) by_process_[track.process].push_back(t);
    }
  }

  std::vector<PathStep> find() {
    SliceId now = last();
    std::vector<PathStep> path;
    Ps until = now == kNoSlice ? 0 : std::min(store_.end(now), range_.end);
    while (now != kNoSlice && path.size() < kMaxSteps) {
      const SliceId late = late_peer(now);
      if (late != kNoSlice) {  // its part from the moment that it came decides, on its own row
        now = late;
        continue;
      }
      const Ps begin = std::max(store_.start(now), range_.begin);
      if (until > begin) path.push_back({now, begin, until});
      if (begin <= range_.begin) break;
      const SliceId before = predecessor(now);
      until = before == kNoSlice ? begin : std::min(store_.end(before), begin);
      if (before != kNoSlice && begin > until) path.push_back({kNoSlice, until, begin});
      now = before;
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

 private:
  SliceId last() const {
    SliceId best = kNoSlice;
    for (const Track& track : store_.tracks) {
      if (track.count == 0 || track.depth > 0) continue;
      const auto [from, until] = store_.overlapping(track, range_.begin, range_.end);
      if (from == until) continue;
      if (best == kNoSlice || store_.end(until - 1) > store_.end(best)) best = until - 1;
    }
    return best;
  }

  /// The peer of a communication that began last, if it began later than `s`.
  SliceId late_peer(SliceId s) const {
    SliceId best = kNoSlice;
    Ps latest = store_.start(s);
    for (const std::uint32_t f : store_.flows_to(s)) {
      const SliceId peer = store_.flows()[f].from;
      if (store_.start(peer) > latest && store_.start(peer) < store_.end(s)) {
        latest = store_.start(peer);
        best = peer;
      }
    }
    return best;
  }

  /// Whatever of the process, or of flows to `s`, ended last before `s` began.
  SliceId predecessor(SliceId s) const {
    const Ps start = store_.start(s);
    SliceId best = kNoSlice;
    const auto consider = [&](SliceId other) {
      // Towards the past only, so that slices without duration cannot lead in circles.
      if (store_.end(other) > start || (other + 1 != s && store_.start(other) >= start)) return;
      if (best == kNoSlice || store_.end(other) > store_.end(best)) best = other;
    };
    const std::uint32_t own = store_.track_of(s);
    if (s > store_.tracks[own].first) consider(s - 1);  // its own stream wins ties
    for (const std::uint32_t t : by_process_[store_.tracks[own].process]) {
      const Track& track = store_.tracks[t];
      if (t == own) continue;
      SliceId until = store_.overlapping(track, start, start + 1).first;
      if (until > track.first) consider(until - 1);
    }
    for (const std::uint32_t f : store_.flows_to(s)) consider(store_.flows()[f].from);
    return best;
  }

  const Store& store_;
  TimeRange range_;
  std::vector<std::vector<std::uint32_t>> by_process_;
};

}  // namespace

std::vector<PathStep> critical_path(const Store& store, TimeRange range) {
  return PathFinder(store, range).find();
}

}  // namespace gputwin
