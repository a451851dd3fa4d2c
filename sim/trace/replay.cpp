#include "sim/trace/replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>

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

struct Dependency {
  std::size_t on;
  bool on_start;  // else on its end
};

bool on_gpu(const Definition& d) {
  return d.phase == "kernel" || d.phase == "gpu_memcpy" || d.phase == "gpu_memset";
}

bool is_call(const Definition& d) { return d.phase == "cuda_runtime" || d.phase == "cuda_driver"; }

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
  void depend(std::size_t node, std::size_t on, bool on_start);
  void play();

  const Store& store_;
  const ReplayFactors& factors_;
  std::vector<Node> nodes_;
  std::vector<std::vector<Dependency>> needs_;             // by node
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
}

void Replayer::take(const Track& track, std::uint32_t row, bool profile) {
  for (SliceId s = track.first; s < track.first + track.count; ++s) {
    const Definition& d = store_.definition(s);
    if (profile && d.op == "Stream Wait Event") waits_.push_back(s);
    if (profile && is_call(d)) take_call(s, row);
    if (profile ? !on_gpu(d) : d.kind == SliceKind::Other) continue;
    nodes_.push_back(
        {store_.start(s), store_.end(s), s, row, true, factors_[static_cast<std::size_t>(d.kind)]});
    ++out_.gpu;
  }
}

void Replayer::gather() {
  bool profile = false;
  for (const Definition& d : store_.definitions) profile = profile || on_gpu(d);
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

void Replayer::depend(std::size_t node, std::size_t on, bool on_start) {
  const Ps ready = on_start ? nodes_[on].start : nodes_[on].end;
  if (on >= node || ready > nodes_[node].start) {
    ++out_.contradicted;
  } else {
    needs_[node].push_back({on, on_start});
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
      depend(n, before->second, overlap > 0);
      before->second = n;
    }
    if (!nodes_[n].gpu) continue;
    const std::string_view arguments = store_.arguments(nodes_[n].slice);
    const auto id = number_in(arguments, "correlation"), stream = number_in(arguments, "stream");
    const auto call = id ? call_of_.find(*id) : call_of_.end();
    if (call == call_of_.end()) continue;
    ++out_.launched;
    depend(n, call->second, true);
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
    depend(target->second, std::prev(after)->second, false);
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
    if (work < n && end >= nodes_[needs_[n].front().on].start) depend(n, work, false);
  }
}

void Replayer::play() {
  Ps first = std::numeric_limits<Ps>::max(), last = std::numeric_limits<Ps>::min(), ended = last;
  Ps begun = first;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& n = nodes_[i];
    n.begun = n.start;
    if (!needs_[i].empty()) {
      Ps ready = std::numeric_limits<Ps>::min(), was = ready;
      for (const Dependency& d : needs_[i]) {
        const Node& on = nodes_[d.on];
        ready = std::max(ready, d.on_start ? on.begun : on.ended);
        was = std::max(was, d.on_start ? on.start : on.end);
      }
      n.begun = ready + (n.start - was);
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

Replay Replayer::run() {
  gather();
  link();
  link_recorded_waits();
  link_ends_of_waiting_calls();
  play();
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
