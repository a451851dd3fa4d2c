#include "sim/trace/store_builder.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "sim/core/error.h"

namespace gputwin {

namespace {

constexpr std::uint32_t kMaxDepth = 64;  // deeper nesting is drawn in the deepest row's place

}  // namespace

std::uint32_t StoreBuilder::process(TraceProcess process) {
  store_.processes.push_back(std::move(process));
  return static_cast<std::uint32_t>(store_.processes.size() - 1);
}

std::uint32_t StoreBuilder::thread(std::uint32_t process, std::string name, std::int64_t order) {
  threads_.push_back({process, std::move(name), order, {}, {}});
  return static_cast<std::uint32_t>(threads_.size() - 1);
}

std::uint32_t StoreBuilder::definition(Definition definition) {
  store_.definitions.push_back(std::move(definition));
  return static_cast<std::uint32_t>(store_.definitions.size() - 1);
}

void StoreBuilder::slice(std::uint32_t thread, Ps start, Ps duration, std::uint32_t definition,
                         std::uint32_t frame, std::uint32_t body, std::string_view arguments) {
  std::uint32_t argument = kNoText;
  if (!arguments.empty()) {
    argument = store_.texts_.add(arguments);
    own_arguments_ = true;
  }
  const std::uint32_t place = std::min(frame, Store::kFrameMask);
  threads_[thread].rows.push_back(
      {start, duration, definition, place | std::min(body, 15u) << Store::kFrameBits, argument});
  ++slices_;
}

void StoreBuilder::flow(std::uint32_t from_thread, Ps from_at, std::uint32_t to_thread, Ps to_at) {
  pending_.push_back({from_thread, to_thread, from_at, to_at});
}

std::uint32_t StoreBuilder::counter(std::uint32_t process, std::string name, std::string series) {
  store_.counters.push_back({process, std::move(name), std::move(series), {}, {}});
  return static_cast<std::uint32_t>(store_.counters.size() - 1);
}

void StoreBuilder::sample(std::uint32_t counter, Ps at, double value) {
  Counter& c = store_.counters[counter];
  if (!c.at.empty() && c.at.back() == at) {
    c.value.back() = value;
    return;
  }
  c.at.push_back(at);
  c.value.push_back(value);
}

void StoreBuilder::append(const Row& row) {
  const auto id = static_cast<SliceId>(store_.start_.size());
  store_.start_.push_back(row.start);
  const bool is_long = row.duration >= static_cast<Ps>(Store::kLong);
  store_.duration_.push_back(is_long ? Store::kLong : static_cast<std::uint32_t>(row.duration));
  if (is_long) store_.long_.emplace_back(id, row.duration);
  store_.definition_.push_back(row.definition);
  store_.frame_.push_back(row.frame);
  if (own_arguments_) store_.argument_.push_back(row.argument);
}

void StoreBuilder::lay_out(Thread& thread) {
  auto& rows = thread.rows;
  const auto before = [](const Row& a, const Row& b) {
    return a.start != b.start ? a.start < b.start : a.duration > b.duration;
  };
  if (!std::is_sorted(rows.begin(), rows.end(), before)) {
    std::stable_sort(rows.begin(), rows.end(), before);
  }
  // A slice goes into the shallowest row that is free below every open slice around it.
  std::vector<std::vector<std::uint32_t>> deeper;  // by depth - 1: positions in rows
  std::vector<Ps> ends;                            // by depth
  std::vector<std::uint8_t> depth(rows.size(), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::uint32_t d = 0;
    while (d < ends.size() && ends[d] > rows[i].start) ++d;
    if (d >= kMaxDepth) d = kMaxDepth - 1;
    if (d >= ends.size()) ends.resize(d + 1, std::numeric_limits<Ps>::min());
    // In the deepest row slices may still overlap: the later one is cut to start where it is free.
    if (ends[d] > rows[i].start) {
      rows[i].duration = std::max<Ps>(0, rows[i].start + rows[i].duration - ends[d]);
      rows[i].start = ends[d];
    }
    ends[d] = rows[i].start + rows[i].duration;
    depth[i] = static_cast<std::uint8_t>(d);
  }
  for (std::uint32_t d = 0; d < std::max<std::size_t>(1, ends.size()); ++d) {
    Track track{thread.process, thread.name, d, static_cast<SliceId>(store_.start_.size()), 0};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (depth[i] == d) append(rows[i]);
    }
    track.count = static_cast<SliceId>(store_.start_.size()) - track.first;
    thread.tracks.push_back(static_cast<std::uint32_t>(store_.tracks.size()));
    store_.tracks.push_back(std::move(track));
  }
  rows = {};
}

/// The deepest slice of `thread` around `at`; one that ends there counts when none begins.
SliceId StoreBuilder::find(const Thread& thread, Ps at) const {
  for (auto id = thread.tracks.rbegin(); id != thread.tracks.rend(); ++id) {
    const Track& track = store_.tracks[*id];
    if (const SliceId found = store_.at(track, at); found != kNoSlice) return found;
  }
  for (const std::uint32_t id : thread.tracks) {
    const SliceId found = store_.at(store_.tracks[id], at - 1);
    if (found != kNoSlice) return found;
  }
  return kNoSlice;
}

void StoreBuilder::resolve_flows() {
  std::size_t lost = 0;
  for (const Pending& p : pending_) {
    const SliceId from = find(threads_[p.from_thread], p.from_at);
    const SliceId to = find(threads_[p.to_thread], p.to_at);
    if (from == kNoSlice || to == kNoSlice || from == to) {
      ++lost;
    } else {
      store_.flows_.push_back({from, to});
    }
  }
  if (lost > 0) warn(std::to_string(lost) + " flows left out: no slice at one of their ends");
  pending_ = {};
}

void StoreBuilder::finish_counters() {
  for (Counter& c : store_.counters) {
    if (std::is_sorted(c.at.begin(), c.at.end())) continue;
    std::vector<std::size_t> order(c.at.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&c](std::size_t a, std::size_t b) { return c.at[a] < c.at[b]; });
    Counter sorted{c.process, c.name, c.series, {}, {}};
    for (const std::size_t i : order) {
      sorted.at.push_back(c.at[i]);
      sorted.value.push_back(c.value[i]);
    }
    c = std::move(sorted);
  }
}

Store StoreBuilder::finish(std::string title) {
  if (slices_ >= kNoSlice) {
    throw InputError(title, "", std::to_string(slices_), "slices are more than a timeline holds",
                     "trace fewer ranks");
  }
  store_.title = std::move(title);
  std::vector<std::uint32_t> order(threads_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
    const Thread &x = threads_[a], &y = threads_[b];
    return std::pair(x.process, x.order) < std::pair(y.process, y.order);
  });
  store_.start_.reserve(slices_);
  store_.duration_.reserve(slices_);
  store_.definition_.reserve(slices_);
  store_.frame_.reserve(slices_);
  if (own_arguments_) store_.argument_.reserve(slices_);
  for (const std::uint32_t id : order) lay_out(threads_[id]);
  resolve_flows();
  finish_counters();
  store_.index();
  return std::move(store_);
}

}  // namespace gputwin
