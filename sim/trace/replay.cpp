#include "sim/trace/replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>

#include "sim/trace/argument_text.h"

namespace gputwin {

namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

/// Something with a beginning and an end: GPU work, a host's call, or the end of a call that waits.
struct Node {
  Ps start = 0, end = 0;  // measured
  SliceId slice = kNoSlice;
  std::uint32_t row = 0;  // stream or host thread
  bool gpu = false;
  double factor = 1;            // on the duration
  Ps begun = 0, ended = 0;      // replayed
  std::size_t decided = kNone;  // what its start came after
};

struct Dependency {
  std::size_t on;
  bool on_start;  // else on its end
  Before kind;
};

class Replayer {
 public:
  Replayer(const Store& store, const ReplayFactors& factors) : store_(store), factors_(factors) {}
  Replay run();
  ReplayCheck check();

 private:
  using Launches = std::vector<std::pair<Ps, std::size_t>>;  // time of launch, node
  void gather();
  void take(const Track& track, std::uint32_t row, bool profile);
  void take_call(SliceId s, std::uint32_t row);
  void link();
  void link_recorded_waits();
  void link_ends_of_waiting_calls();
  void depend(std::size_t node, std::size_t on, bool on_start, Before kind);
  void build();
  void play();
  void measure_gaps(ReplayCheck& out);
  void play_typical(ReplayCheck& out);
  void compare_starts(ReplayCheck& out) const;
  Ps host_of_path() const;
  Ps ready(const Dependency& d) const { return d.on_start ? nodes_[d.on].start : nodes_[d.on].end; }
  Ps replayed(const Dependency& d) const {
    return d.on_start ? nodes_[d.on].begun : nodes_[d.on].ended;
  }
  const Dependency* last_of(std::size_t node) const;

  const Store& store_;
  const ReplayFactors& factors_;
  std::vector<Node> nodes_;
  std::vector<std::vector<Dependency>> needs_;             // by node
  std::vector<ProfileEvent> events_;                       // by definition
  std::vector<SliceId> waits_;                             // "Stream Wait Event"
  std::unordered_map<std::int64_t, std::size_t> call_of_;  // by correlation
  std::map<std::int64_t, Launches> streams_;
  Replay out_;
};

// A call that waits for the GPU is its beginning and, apart, its end.
void Replayer::take_call(SliceId s, std::uint32_t row) {
  const bool waits = store_.definition(s).op.find("Synchronize") != std::string::npos;
  const Ps start = store_.start(s), end = store_.end(s);
  nodes_.push_back({start, waits ? start : end, s, row, false});
  if (waits) nodes_.push_back({end, end, kNoSlice, row, false});
  ++out_.calls;
  if (store_.definition(s).op.find("StreamWaitEvent") != std::string::npos) ++out_.unrecorded;
}

void Replayer::take(const Track& track, std::uint32_t row, bool profile) {
  for (SliceId s = track.first; s < track.first + track.count; ++s) {
    const Definition& d = store_.definition(s);
    const ProfileEvent event = events_[store_.definition_id(s)];
    if (event == ProfileEvent::Sync && d.op == "Stream Wait Event") waits_.push_back(s);
    if (event == ProfileEvent::Call) take_call(s, row);
    if (profile ? !on_gpu(event) : d.kind == SliceKind::Other) continue;
    nodes_.push_back(
        {store_.start(s), store_.end(s), s, row, true, factors_[static_cast<std::size_t>(d.kind)]});
    ++out_.gpu;
  }
}

void Replayer::gather() {
  bool profile = false;
  for (const Definition& d : store_.definitions) {
    events_.push_back(profile_event(d.phase));
    profile = profile || events_.back() != ProfileEvent::None;
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

void Replayer::depend(std::size_t node, std::size_t on, bool on_start, Before kind) {
  const Dependency needed{on, on_start, kind};
  if (on >= node || ready(needed) > nodes_[node].start) {
    ++out_.contradicted;
  } else {
    needs_[node].push_back(needed);
  }
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
      const Before kind = !nodes_[n].gpu ? Before::Host
                          : overlap > 0  ? Before::Overlap
                                         : Before::Stream;
      depend(n, before->second, overlap > 0, kind);
      before->second = n;
    }
    if (!nodes_[n].gpu) continue;
    const std::string_view arguments = store_.arguments(nodes_[n].slice);
    const auto id = number_in(arguments, "correlation"), stream = number_in(arguments, "stream");
    const auto call = id ? call_of_.find(*id) : call_of_.end();
    if (call == call_of_.end()) continue;
    ++out_.launched;
    depend(n, call->second, true, Before::Launch);
    if (stream) streams_[*stream].emplace_back(nodes_[call->second].start, n);
  }
  for (auto& [stream, launches] : streams_) std::sort(launches.begin(), launches.end());
}

// The first work launched into the stream after the wait begins after the last work that the other
// stream had been given when its event was recorded.
void Replayer::link_recorded_waits() {
  for (const SliceId s : waits_) {
    const std::string_view arguments = store_.arguments(s);
    --out_.unrecorded;
    const auto call = call_of_.find(number_in(arguments, "correlation").value_or(-1));
    const auto record =
        call_of_.find(number_in(arguments, "wait_on_cuda_event_record_corr_id").value_or(-1));
    const auto here = streams_.find(number_in(arguments, "stream").value_or(-1));
    const auto there = streams_.find(number_in(arguments, "wait_on_stream").value_or(-1));
    if (call == call_of_.end() || record == call_of_.end() || here == streams_.end() ||
        there == streams_.end()) {
      ++out_.unresolved;
      continue;
    }
    const auto target = std::lower_bound(here->second.begin(), here->second.end(),
                                         std::pair(nodes_[call->second].start, std::size_t{0}));
    const auto after = std::lower_bound(there->second.begin(), there->second.end(),
                                        std::pair(nodes_[record->second].start, std::size_t{0}));
    if (target == here->second.end() || after == there->second.begin()) continue;
    ++out_.waits;
    depend(target->second, std::prev(after)->second, false, Before::Event);
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
      depend(n, work, false, Before::Completion);
  }
}

void Replayer::play() {
  Ps first = std::numeric_limits<Ps>::max(), last = std::numeric_limits<Ps>::min(), ended = last;
  Ps begun = first;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& n = nodes_[i];
    n.begun = n.start;
    if (const Dependency* const decides = last_of(i); decides != nullptr) {
      Ps again = std::numeric_limits<Ps>::min();
      for (const Dependency& d : needs_[i]) again = std::max(again, replayed(d));
      n.begun = again + (n.start - ready(*decides));
    }
    const auto length = static_cast<double>(n.end - n.start);
    n.ended = n.begun + (n.factor == 1 ? n.end - n.start : std::llround(length * n.factor));
    first = std::min(first, n.start);
    last = std::max(last, n.end);
    begun = std::min(begun, n.begun);
    ended = std::max(ended, n.ended);
  }
  out_.measured = nodes_.empty() ? 0 : last - first;
  out_.replayed = nodes_.empty() ? 0 : ended - begun;
}

/// What was ready last of all that a start came after; null: nothing is known.
const Dependency* Replayer::last_of(std::size_t node) const {
  const Dependency* last = nullptr;
  for (const Dependency& d : needs_[node]) {
    if (last == nullptr || ready(d) > ready(*last)) last = &d;
  }
  return last;
}

void Replayer::measure_gaps(ReplayCheck& out) {
  std::array<std::vector<Ps>, kBefores> gaps;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const Dependency* const last = last_of(n);
    if (last == nullptr) continue;
    gaps[static_cast<std::size_t>(last->kind)].push_back(nodes_[n].start - ready(*last));
  }
  for (std::size_t k = 0; k < kBefores; ++k) {
    if (gaps[k].empty()) continue;
    const auto middle = gaps[k].begin() + static_cast<std::ptrdiff_t>((gaps[k].size() - 1) / 2);
    std::nth_element(gaps[k].begin(), middle, gaps[k].end());
    out.gaps[k] = {static_cast<std::int64_t>(gaps[k].size()), *middle};
  }
}

void Replayer::play_typical(ReplayCheck& out) {
  Ps begun = std::numeric_limits<Ps>::max(), ended = std::numeric_limits<Ps>::min();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& n = nodes_[i];
    n.begun = n.start;
    const Dependency* const last = last_of(i);
    if (last != nullptr) n.begun = std::numeric_limits<Ps>::min();
    for (const Dependency& d : needs_[i]) {
      // The host's own work is known where nothing else came later; else it was hidden.
      const Ps own = &d == last ? n.start - ready(d) : 0;
      const Ps gap =
          d.kind == Before::Host ? own : out.gaps[static_cast<std::size_t>(d.kind)].median;
      if (replayed(d) + gap <= n.begun) continue;
      n.begun = replayed(d) + gap;
      n.decided = d.on;
    }
    n.ended = n.begun + (n.end - n.start);
    begun = std::min(begun, n.begun);
    ended = std::max(ended, n.ended);
    if (last == nullptr || !n.gpu) continue;
    const Ps late = n.start - ready(*last) - out.gaps[static_cast<std::size_t>(last->kind)].median;
    if (late <= kExplained) continue;
    ++out.unexplained;
    out.unexplained_time += late;
    if (late <= out.longest) continue;
    out.longest = late;
    out.example = n.slice;
  }
  out.replayed = nodes_.empty() ? 0 : ended - begun;
}

void Replayer::compare_starts(ReplayCheck& out) const {
  std::vector<Ps> moved;
  for (const Node& n : nodes_) {
    if (n.gpu) moved.push_back(std::abs(n.begun - n.start));
  }
  if (moved.empty()) return;
  std::sort(moved.begin(), moved.end());
  out.moved_p50 = moved[(moved.size() - 1) / 2];
  out.moved_p95 = moved[(moved.size() - 1) * 95 / 100];
}

/// From the last end backwards along what decided each start: the time of the host.
Ps Replayer::host_of_path() const {
  std::size_t at = kNone;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    if (at == kNone || nodes_[n].ended > nodes_[at].ended) at = n;
  }
  Ps host = 0, until = at == kNone ? 0 : nodes_[at].ended;
  for (; at != kNone; at = nodes_[at].decided) {
    const Node& n = nodes_[at];
    const Ps from = n.decided == kNone ? n.begun : std::min(until, nodes_[n.decided].begun);
    const bool by_host = !n.gpu && (n.decided == kNone || !nodes_[n.decided].gpu);
    if (by_host) host += until - from;
    until = from;
  }
  return host;
}

void Replayer::build() {
  gather();
  link();
  link_recorded_waits();
  link_ends_of_waiting_calls();
}

Replay Replayer::run() {
  build();
  play();
  return out_;
}

ReplayCheck Replayer::check() {
  build();
  play();
  ReplayCheck out;
  out.exact = out_;
  measure_gaps(out);
  play_typical(out);
  compare_starts(out);
  out.host = host_of_path();
  return out;
}

}  // namespace

std::string_view label(Before before) {
  switch (before) {
    case Before::Stream: return "the last work of the stream";
    case Before::Overlap: return "the beginning of the stream's last work";
    case Before::Launch: return "the launch";
    case Before::Event: return "work of another stream";
    case Before::Completion: return "the work a call waits for";
    case Before::Host: return "the thread's last call";
  }
  return "";
}

Replay replay(const Store& store, const ReplayFactors& factors) {
  return Replayer(store, factors).run();
}

Replay replay(const Store& store) {
  ReplayFactors ones;
  ones.fill(1);
  return replay(store, ones);
}

ReplayCheck check_replay(const Store& store) {
  ReplayFactors ones;
  ones.fill(1);
  return Replayer(store, ones).check();
}

}  // namespace gputwin
