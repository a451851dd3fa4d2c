#include "sim/core/hazards.h"

#include <algorithm>

namespace gputwin {
namespace {

constexpr std::uint32_t kUntracked = 0xffffffffu;

std::int64_t end_of(const View& v) { return v.offset + (v.rows - 1) * v.ld + v.cols; }

/// True if every element of `inner` surely lies in `outer`.
bool contains(const View& outer, const View& inner) {
  if (outer == inner) return true;
  const bool solid = outer.rows == 1 || outer.ld == outer.cols;
  if (solid) return outer.offset <= inner.offset && end_of(inner) <= end_of(outer);
  if (outer.ld != inner.ld || outer.ld <= 0) return false;
  const std::int64_t row = inner.offset / inner.ld - outer.offset / outer.ld;
  const std::int64_t col = inner.offset % inner.ld - outer.offset % outer.ld;
  return row >= 0 && row + inner.rows <= outer.rows && col >= 0 && col + inner.cols <= outer.cols;
}

}  // namespace

HazardTracker::HazardTracker(const Plan& plan, const Program& program,
                             const std::vector<Instruction>& body)
    : plan_(plan), program_(program), body_(body) {
  const std::size_t streams = program.streams.size();
  clocks_.assign(streams, Clock(streams, 0));
  host_.assign(streams, 0);
  issued_.assign(streams, 0);
  needed_.assign(streams, 0);
  task_clock_.assign(body.size(), kUntracked);
  find_tracked_buffers();
}

// A buffer touched by a single stream is ordered by that stream. Streams are collected per call
// first, since all micro-batches share a call.
void HazardTracker::find_tracked_buffers() {
  std::vector<std::uint32_t> call_streams(plan_.calls.size(), 0),
      buffer_streams(plan_.buffers.size(), 0);
  for (const Instruction& i : body_) {
    if (is_task(i.kind)) call_streams[i.call] |= 1u << i.stream;
  }
  for (std::size_t c = 0; c < plan_.calls.size(); ++c) {
    if (call_streams[c] == 0) continue;
    for (const View& v : plan_.calls[c].reads) buffer_streams[v.buffer.value] |= call_streams[c];
    for (const View& v : plan_.calls[c].writes) buffer_streams[v.buffer.value] |= call_streams[c];
  }
  const auto shared = [&](BufferId b) {
    const std::uint32_t s = buffer_streams[b.value];
    return (s & (s - 1)) != 0;
  };
  first_state_.assign(plan_.buffers.size(), kUntracked);
  std::uint32_t states = 0;
  for (std::uint32_t b = 0; b < plan_.buffers.size(); ++b) {
    if (!shared(BufferId(b))) continue;
    first_state_[b] = states;
    states += plan_.buffers[b].framed ? program_.frames : 1;
  }
  states_.resize(states);
  call_tracked_.assign(plan_.calls.size(), 0);
  for (std::size_t c = 0; c < plan_.calls.size(); ++c) {
    const auto tracked = [&](const View& v) { return first_state_[v.buffer.value] != kUntracked; };
    const Call& call = plan_.calls[c];
    call_tracked_[c] =
        call_streams[c] != 0 && (std::any_of(call.reads.begin(), call.reads.end(), tracked) ||
                                 std::any_of(call.writes.begin(), call.writes.end(), tracked));
  }
}

std::vector<HazardTracker::Access>* HazardTracker::accesses(const View& view, std::uint32_t frame) {
  const std::uint32_t first = first_state_[view.buffer.value];
  if (first == kUntracked) return nullptr;
  const bool framed = plan_.buffers[view.buffer.value].framed;
  if (framed && frame >= program_.frames) return nullptr;  // verify() reports it
  return &states_[first + (framed ? frame : 0)];
}

void HazardTracker::collect(const View& view, std::uint32_t frame, std::uint8_t stream,
                            bool write) {
  const std::vector<Access>* list = accesses(view, frame);
  if (list == nullptr) return;
  for (const Access& a : *list) {
    if (a.stream == stream || !(write || a.write)) continue;
    if (a.sequence <= clocks_[stream][a.stream] || !overlap(a.view, view)) continue;
    needed_[a.stream] = std::max(needed_[a.stream], a.index + 1);
  }
}

const std::vector<std::uint32_t>& HazardTracker::before(std::uint32_t index) {
  const Instruction& i = body_[index];
  found_.clear();
  join(clocks_[i.stream], host_);
  if (!call_tracked_[i.call]) return found_;
  std::fill(needed_.begin(), needed_.end(), 0);
  for (const View& v : plan_.calls[i.call].reads) collect(v, i.frame(), i.stream, false);
  for (const View& v : plan_.calls[i.call].writes) collect(v, i.frame(), i.stream, true);
  for (const std::uint32_t n : needed_) {
    if (n != 0) found_.push_back(n - 1);
  }
  // A later conflict may already be ordered after an earlier one of a third stream; latest first
  // finds that.
  std::sort(found_.begin(), found_.end(), std::greater<>());
  Clock clock = clocks_[i.stream];
  std::erase_if(found_, [&](std::uint32_t f) {
    const std::uint32_t row = task_clock_[f];
    const std::uint8_t stream = body_[f].stream;
    if (saved_[row + stream] <= clock[stream]) return true;
    for (std::size_t s = 0; s < clock.size(); ++s) clock[s] = std::max(clock[s], saved_[row + s]);
    return false;
  });
  return found_;
}

void HazardTracker::order(std::uint8_t stream, std::uint32_t index) {
  const std::uint32_t row = task_clock_[index];
  for (std::size_t s = 0; s < clocks_.size(); ++s) {
    clocks_[stream][s] = std::max(clocks_[stream][s], saved_[row + s]);
  }
}

void HazardTracker::add(std::uint32_t index) {
  const Instruction& i = body_[index];
  clocks_[i.stream][i.stream] = ++issued_[i.stream];
  if (!call_tracked_[i.call]) return;
  task_clock_[index] = static_cast<std::uint32_t>(saved_.size());
  saved_.insert(saved_.end(), clocks_[i.stream].begin(), clocks_[i.stream].end());
  for (const View& v : plan_.calls[i.call].reads) insert(v, index, false);
  for (const View& v : plan_.calls[i.call].writes) insert(v, index, true);
}

void HazardTracker::insert(const View& view, std::uint32_t index, bool write) {
  const Instruction& i = body_[index];
  std::vector<Access>* list = accesses(view, i.frame());
  if (list == nullptr) return;
  // What the new access supersedes: everything under a write, and the same stream's weaker
  // accesses.
  std::erase_if(*list, [&](const Access& a) {
    return (write || (a.stream == i.stream && !a.write)) && contains(view, a.view);
  });
  list->push_back({view, index, issued_[i.stream], i.stream, write});
}

void HazardTracker::join(Clock& into, const Clock& from) const {
  for (std::size_t s = 0; s < into.size(); ++s) into[s] = std::max(into[s], from[s]);
}

void HazardTracker::record(const Instruction& i) {
  if (event_clocks_.size() <= i.event) event_clocks_.resize(i.event + 1);
  event_clocks_[i.event] = clocks_[i.stream];
}

void HazardTracker::wait(const Instruction& i) {
  if ((i.flags & kPreviousBody) != 0 || i.event >= event_clocks_.size()) return;
  if (!event_clocks_[i.event].empty()) join(clocks_[i.stream], event_clocks_[i.event]);
}

void HazardTracker::host_wait(const Instruction& i) {
  if ((i.flags & kPreviousBody) != 0 || i.event >= event_clocks_.size()) return;
  if (!event_clocks_[i.event].empty()) join(host_, event_clocks_[i.event]);
}

}  // namespace gputwin
