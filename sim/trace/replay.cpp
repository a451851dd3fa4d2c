#include "sim/trace/replay.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>

#include "sim/core/median.h"
#include "sim/trace/argument_text.h"

namespace gputwin {

namespace {

/// Something with a beginning and an end: GPU work, a host's call, or the end of a call that waits.
struct Node {
  Ps start = 0, end = 0;  // measured
  SliceId slice = kNoSlice;
  std::uint32_t row = 0;  // stream or host thread
  bool gpu = false;
  double factor = 1;        // on the duration
  Ps begun = 0, ended = 0;  // replayed
};

enum class Tie : std::uint8_t { Row, Launch, OtherStream };
constexpr std::size_t kTies = 3;

struct Dependency {
  std::size_t on;
  bool on_start;  // else on its end
  Tie tie;
};

constexpr Ps kLate = 10'000'000;

bool is_on_gpu(const Definition& d) { return on_gpu(profile_event(d.phase)); }
bool is_call(const Definition& d) { return profile_event(d.phase) == ProfileEvent::Call; }

class Replayer {
 public:
  Replayer(const Store& store, const ReplayFactors& factors) : store_(store), factors_(factors) {}
  Replay run();

 private:
  using Launches = std::vector<std::pair<Ps, std::size_t>>;  // time of launch, node
  void gather();
  void take(const Track& track, std::uint32_t row, bool profile);
  void take_call(SliceId s, std::uint32_t row);
  void link();
  void link_recorded_waits();
  void link_ends_of_waiting_calls();
  void depend(std::size_t node, std::size_t on, bool on_start, Tie tie);
  Ps ready(const Dependency& d) const;
  const Dependency& last_of(std::size_t node) const;
  void take_typical_gaps();
  Ps begin_of(std::size_t node, bool typical) const;
  Ps play(bool typical);

  const Store& store_;
  const ReplayFactors& factors_;
  std::vector<Node> nodes_;
  std::vector<std::vector<Dependency>> needs_;             // by node
  std::vector<SliceId> waits_;                             // "Stream Wait Event"
  std::unordered_map<std::int64_t, std::size_t> call_of_;  // by correlation
  std::map<std::int64_t, Launches> streams_;
  std::array<Ps, kTies> gap_{};  // typical, by the dependency that was last
  Replay out_;
};

// A call that waits for the GPU is its beginning and, apart, its end.
void Replayer::take_call(SliceId s, std::uint32_t row) {
  const bool waits = store_.definition(s).op.find("Synchronize") != std::string::npos;
  const Ps start = store_.start(s), end = store_.end(s);
  nodes_.push_back({start, waits ? start : end, s, row, false});
  if (waits) nodes_.push_back({end, end, kNoSlice, row, false});
  ++out_.calls;
}

void Replayer::take(const Track& track, std::uint32_t row, bool profile) {
  for (SliceId s = track.first; s < track.first + track.count; ++s) {
    const Definition& d = store_.definition(s);
    if (profile && d.op == "Stream Wait Event") waits_.push_back(s);
    if (profile && is_call(d)) take_call(s, row);
    if (profile ? !is_on_gpu(d) : d.kind == SliceKind::Other) continue;
    nodes_.push_back(
        {store_.start(s), store_.end(s), s, row, true, factors_[static_cast<std::size_t>(d.kind)]});
    ++out_.gpu;
  }
}

void Replayer::gather() {
  bool profile = false;
  for (const Definition& d : store_.definitions) {
    profile = profile || profile_event(d.phase) != ProfileEvent::None;
  }
  std::map<std::pair<std::uint32_t, std::string>, std::uint32_t> rows;  // whatever the depth
  for (const Track& track : store_.tracks) {
    const auto next = static_cast<std::uint32_t>(rows.size());
    take(track, rows.try_emplace({track.process, track.name}, next).first->second, profile);
  }
  std::stable_sort(nodes_.begin(), nodes_.end(), [](const Node& a, const Node& b) {
    return a.start != b.start ? a.start < b.start : a.gpu < b.gpu;
  });
  needs_.resize(nodes_.size());
}

void Replayer::depend(std::size_t node, std::size_t on, bool on_start, Tie tie) {
  const Dependency d{on, on_start, tie};
  if (on >= node || ready(d) > nodes_[node].start) {
    ++out_.contradicted;
  } else {
    needs_[node].push_back(d);
  }
}

Ps Replayer::ready(const Dependency& d) const {
  return d.on_start ? nodes_[d.on].start : nodes_[d.on].end;
}

// Of the dependencies of a node, which has some, the one that was measured last.
const Dependency& Replayer::last_of(std::size_t node) const {
  return *std::max_element(
      needs_[node].begin(), needs_[node].end(),
      [&](const Dependency& x, const Dependency& y) { return ready(x) < ready(y); });
}

void Replayer::link() {
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].gpu || nodes_[n].slice == kNoSlice) continue;
    const auto id = number_in(store_.arguments(nodes_[n].slice), "correlation");
    if (id) call_of_.emplace(*id, n);
  }
  std::unordered_map<std::uint32_t, std::size_t> last;  // of a row
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const auto [before, first] = last.try_emplace(nodes_[n].row, n);
    if (!first) {
      // Work that overlaps the last of its stream, and calls within calls, begin after its start.
      const Ps overlap = nodes_[before->second].end - nodes_[n].start;
      if (nodes_[n].gpu) out_.overlapping += std::max<Ps>(0, overlap);
      depend(n, before->second, overlap > 0, Tie::Row);
      before->second = n;
    }
    if (!nodes_[n].gpu) continue;
    const std::string_view arguments = store_.arguments(nodes_[n].slice);
    const auto id = number_in(arguments, "correlation"), stream = number_in(arguments, "stream");
    const auto call = id ? call_of_.find(*id) : call_of_.end();
    if (call == call_of_.end()) continue;
    ++out_.launched;
    depend(n, call->second, true, Tie::Launch);
    if (stream) streams_[*stream].emplace_back(nodes_[call->second].start, n);
  }
  for (auto& [stream, launches] : streams_) std::sort(launches.begin(), launches.end());
}

// The first work launched into the stream after the wait begins after the last work that the other
// stream had been given when its event was recorded.
void Replayer::link_recorded_waits() {
  for (const SliceId s : waits_) {
    const std::string_view arguments = store_.arguments(s);
    const auto call = call_of_.find(number_in(arguments, "correlation").value_or(-1));
    const auto record =
        call_of_.find(number_in(arguments, "wait_on_cuda_event_record_corr_id").value_or(-1));
    const auto here = streams_.find(number_in(arguments, "stream").value_or(-1));
    const auto there = streams_.find(number_in(arguments, "wait_on_stream").value_or(-1));
    if (call == call_of_.end() || record == call_of_.end() || here == streams_.end() ||
        there == streams_.end()) {
      continue;
    }
    const auto target = std::lower_bound(here->second.begin(), here->second.end(),
                                         std::pair(nodes_[call->second].start, std::size_t{0}));
    const auto after = std::lower_bound(there->second.begin(), there->second.end(),
                                        std::pair(nodes_[record->second].start, std::size_t{0}));
    if (target == here->second.end() || after == there->second.begin()) continue;
    ++out_.waits;
    depend(target->second, std::prev(after)->second, false, Tie::OtherStream);
  }
}

// Such a call ends after the work that ended last while it waited, on whatever stream: which one it
// waited for is not always recorded.
void Replayer::link_ends_of_waiting_calls() {
  std::vector<std::pair<Ps, std::size_t>> ends;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].gpu) ends.emplace_back(nodes_[n].end, n);
  }
  std::sort(ends.begin(), ends.end());
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].gpu || nodes_[n].slice != kNoSlice || needs_[n].empty()) continue;
    const auto after =
        std::upper_bound(ends.begin(), ends.end(), std::pair(nodes_[n].start, nodes_.size()));
    if (after == ends.begin()) continue;
    const auto [end, work] = *std::prev(after);
    if (work < n && end >= nodes_[needs_[n].front().on].start)
      depend(n, work, false, Tie::OtherStream);
  }
}

// Work that overlaps the last of its stream has no gap.
void Replayer::take_typical_gaps() {
  std::array<std::vector<double>, kTies> gaps;
  const auto each = [&](const auto& take) {
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (!nodes_[n].gpu || needs_[n].empty()) continue;
      const Dependency& last = last_of(n);
      if (last.tie == Tie::Row && last.on_start) continue;
      take(static_cast<std::size_t>(last.tie), nodes_[n].start - ready(last));
    }
  };
  each([&](std::size_t tie, Ps gap) { gaps[tie].push_back(static_cast<double>(gap)); });
  for (std::size_t tie = 0; tie < kTies; ++tie) {
    gap_[tie] = static_cast<Ps>(median(std::move(gaps[tie])));
  }
  each([&](std::size_t tie, Ps gap) {
    if (gap < gap_[tie] + kLate) return;
    ++out_.late;
    out_.late_by += gap - gap_[tie];
  });
}

Ps Replayer::begin_of(std::size_t node, bool typical) const {
  const Node& n = nodes_[node];
  if (needs_[node].empty()) return n.start;
  const Ps measured_gap = n.start - ready(last_of(node));
  Ps begin = std::numeric_limits<Ps>::min();
  for (const Dependency& d : needs_[node]) {
    const bool overlaps = d.tie == Tie::Row && d.on_start;
    const Ps gap = !typical || !n.gpu ? measured_gap
                   : overlaps         ? n.start - ready(d)
                                      : gap_[static_cast<std::size_t>(d.tie)];
    begin = std::max(begin, (d.on_start ? nodes_[d.on].begun : nodes_[d.on].ended) + gap);
  }
  return begin;
}

// First begin to last end.
Ps Replayer::play(bool typical) {
  if (nodes_.empty()) return 0;
  Ps begun = std::numeric_limits<Ps>::max(), ended = std::numeric_limits<Ps>::min();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& n = nodes_[i];
    n.begun = begin_of(i, typical);
    const auto length = static_cast<double>(n.end - n.start);
    n.ended = n.begun + (n.factor == 1 ? n.end - n.start : std::llround(length * n.factor));
    begun = std::min(begun, n.begun);
    ended = std::max(ended, n.ended);
  }
  return ended - begun;
}

Replay Replayer::run() {
  gather();
  link();
  link_recorded_waits();
  link_ends_of_waiting_calls();
  take_typical_gaps();
  Ps first = std::numeric_limits<Ps>::max(), last = std::numeric_limits<Ps>::min();
  for (const Node& n : nodes_) first = std::min(first, n.start), last = std::max(last, n.end);
  out_.measured = nodes_.empty() ? 0 : last - first;
  out_.explained = play(true);
  out_.replayed = play(false);
  return out_;
}

}  // namespace

Replay replay(const Store& store, const ReplayFactors& factors) {
  return Replayer(store, factors).run();
}

Replay replay(const Store& store) {
  ReplayFactors ones;
  ones.fill(1);
  return replay(store, ones);
}

}  // namespace gputwin
