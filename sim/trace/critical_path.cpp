#include <algorithm>

#include "sim/trace/queries.h"

namespace gputwin {

namespace {

constexpr std::size_t kMaxSteps = 2'000'000;

class PathFinder {
 public:
  PathFinder(const Store& store, TimeRange range) : store_(store), range_(range) {
    by_process_.resize(store.processes.size());
    std::vector<char> around;
    for (const Definition& d : store.definitions) {
      around.push_back(profile_event(d.phase) == ProfileEvent::Range ? 1 : 0);
    }
    for (std::uint32_t t = 0; t < store.tracks.size();) {
      std::uint32_t end = t + 1;
      while (end < store.tracks.size() && store.tracks[end].depth > 0) ++end;
      add_thread(t, end, around);
      t = end;
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
  /// The work of one stream or thread, without what lies within other work. Where no range stands
  /// around work, that is its first track; else a list, since the ranges push work deeper.
  struct Row {
    const Track* track;
    bool listed = false;
    std::vector<SliceId> list;
  };

  void add_thread(std::uint32_t first, std::uint32_t end, const std::vector<char>& around) {
    Row row{&store_.tracks[first], false, {}};
    const auto is_around = [&](SliceId s) { return around[store_.definition_id(s)] != 0; };
    for (std::uint32_t t = first; t < end && !row.listed; ++t) {
      const Track& track = store_.tracks[t];
      for (SliceId s = track.first; s < track.first + track.count && !row.listed; ++s) {
        row.listed = is_around(s);
      }
    }
    for (std::uint32_t t = first; row.listed && t < end; ++t) {
      const Track& track = store_.tracks[t];
      for (SliceId s = track.first; s < track.first + track.count; ++s) {
        if (!is_around(s)) row.list.push_back(s);
      }
    }
    std::stable_sort(row.list.begin(), row.list.end(), [this](SliceId x, SliceId y) {
      return store_.start(x) != store_.start(y) ? store_.start(x) < store_.start(y)
                                                : store_.end(x) > store_.end(y);
    });
    std::vector<SliceId> outer;
    for (const SliceId s : row.list) {
      if (outer.empty() || store_.start(s) >= store_.end(outer.back())) outer.push_back(s);
    }
    row.list = std::move(outer);
    row_of_track_.resize(end, static_cast<std::uint32_t>(rows_.size()));
    by_process_[row.track->process].push_back(static_cast<std::uint32_t>(rows_.size()));
    rows_.push_back(std::move(row));
  }

  SliceId last_begun(const Row& row, Ps until) const {
    if (row.listed) {
      const auto at = std::partition_point(row.list.begin(), row.list.end(),
                                           [&](SliceId s) { return store_.start(s) < until; });
      return at == row.list.begin() ? kNoSlice : *std::prev(at);
    }
    const auto [from, end] = store_.overlapping(*row.track, range_.begin, until);
    return from == end ? kNoSlice : end - 1;
  }

  SliceId last_ended(const Row& row, Ps time) const {
    if (row.listed) {
      const auto at = std::partition_point(row.list.begin(), row.list.end(),
                                           [&](SliceId s) { return store_.end(s) <= time; });
      return at == row.list.begin() ? kNoSlice : *std::prev(at);
    }
    const SliceId until = store_.overlapping(*row.track, time, time + 1).first;
    return until > row.track->first ? until - 1 : kNoSlice;
  }

  SliceId previous_in(const Row& row, SliceId s) const {
    if (!row.listed) {
      const Track& own = store_.tracks[store_.track_of(s)];  // a flow may lead into a deeper one
      return s > own.first ? s - 1 : kNoSlice;
    }
    const auto at = std::partition_point(row.list.begin(), row.list.end(), [&](SliceId other) {
      return store_.start(other) < store_.start(s) ||
             (store_.start(other) == store_.start(s) && store_.end(other) > store_.end(s));
    });
    return at == row.list.begin() ? kNoSlice : *std::prev(at);
  }

  SliceId last() const {
    SliceId best = kNoSlice;
    for (const Row& row : rows_) {
      const SliceId s = last_begun(row, range_.end);
      if (s == kNoSlice || store_.end(s) <= range_.begin) continue;
      if (best == kNoSlice || store_.end(s) > store_.end(best)) best = s;
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
      if (store_.end(other) > start || store_.start(other) >= start) return;
      if (best == kNoSlice || store_.end(other) > store_.end(best)) best = other;
    };
    const std::uint32_t own = row_of_track_[store_.track_of(s)];
    if (const SliceId previous = previous_in(rows_[own], s); previous != kNoSlice) {
      if (store_.end(previous) <= start) best = previous;  // its own stream wins ties
    }
    for (const std::uint32_t r : by_process_[rows_[own].track->process]) {
      if (r == own) continue;
      if (const SliceId other = last_ended(rows_[r], start); other != kNoSlice) consider(other);
    }
    for (const std::uint32_t f : store_.flows_to(s)) consider(store_.flows()[f].from);
    return best;
  }

  const Store& store_;
  TimeRange range_;
  std::vector<Row> rows_;
  std::vector<std::uint32_t> row_of_track_;
  std::vector<std::vector<std::uint32_t>> by_process_;  // rows
};

}  // namespace

std::vector<PathStep> critical_path(const Store& store, TimeRange range) {
  return PathFinder(store, range).find();
}

}  // namespace gputwin
