// Meetings and transfers of the stream core: who waits for whom, which flows have their links to
// themselves, and which must be shared by SimGrid.
#include <algorithm>
#include <cmath>

#include "sim/core/check.h"
#include "sim/engine/stream_core.h"

namespace gputwin::engine {
namespace {

/// A flow that ends within a nanosecond may already have ended for SimGrid.
constexpr Ps kWorthTakingBack = 1'000;

}  // namespace

/// A communication or copy is reached. False: the stream has to wait for its end.
bool StreamCore::arrive(RankState& rank, StreamState& stream, const StreamOp& op, std::uint8_t s) {
  const std::uint32_t task = task_number(rank, stream.body, op.task);
  if (task >= rank.host.task) {
    stream.block = Block::Issue;
    rank.on_issue |= 1u << s;
    return false;
  }
  const Ps issued = ~issue_or_end(rank, task);
  if (issued > stream.free) {
    if (s == rank.program->compute_stream) {
      rank.parts[static_cast<std::size_t>(Part::Host)] += issued - stream.free;
    } else {
      stream.history.add(Part::Host, stream.free);
    }
    stream.free = issued;
  }
  stream.op_start = stream.op_end = stream.free;
  stream.block = Block::Meeting;
  const CompiledProgram& program = *rank.program;
  const std::uint32_t later = stream.body > 1 ? stream.body - 1u : 0;
  if (op.code == OpCode::Collective) {
    const CollectiveOp& collective = program.collectives[op.operand];
    stream.open_transfers = 1;
    const bool overlaps = calendar_ || (op.flags & kMayOverlap) != 0;
    join(rank, s, bindings_[rank.first_site + collective.site], program.sites[collective.site],
         collective.sequence + later * collective.per_body, overlaps && rank.careful);
  } else if (op.code == OpCode::Copy) {
    stream.open_transfers = 1;
    join(rank, s, bindings_[rank.first_site + op.operand], program.sites[op.operand], 0, false);
  } else {
    const PairGroup group = program.groups[op.operand];
    stream.open_transfers = group.count;
    for (std::uint32_t p = group.first; p < group.first + group.count; ++p) {
      const PairOp& pair = program.pairs[p];
      join(rank, s, bindings_[rank.first_site + pair.site], program.sites[pair.site],
           pair.sequence + later * pair.per_body, false);
    }
  }
  return stream.block == Block::Ready;
}

void StreamCore::join(RankState& rank, std::uint8_t s, const Binding& binding, const Site& site,
                      std::uint32_t sequence, bool interferes) {
  const bool copy = site.kind == Kind::Copy;
  const std::uint32_t m = open_meeting(copy ? kNoRow : binding.channel, sequence);
  Meeting& meeting = meetings_[m];
  const StreamState& stream = stream_of(rank, s);
  if (binding.pattern != kNoRow) {
    meeting.mismatch |= meeting.pattern != kNoRow && meeting.pattern != binding.pattern;
    meeting.pattern = binding.pattern;
  }
  meeting.body = stream.body;
  meeting.interferes |= interferes;
  meeting.ready = std::max(meeting.ready, stream.free);
  meeting.arrivals.push_back({static_cast<std::uint32_t>(&rank - ranks_.data()), s});
  const std::uint32_t needed = copy ? 1 : transfers_.channels()[binding.channel].participants;
  if (meeting.arrivals.size() < needed || meeting.mismatch) return;
  if (!copy) close_meeting(m);
  launch(m);
}

/// The meeting of that number, made if nobody came yet. A copy (no channel) meets nobody.
std::uint32_t StreamCore::open_meeting(std::uint32_t channel, std::uint32_t sequence) {
  if (channel != kNoRow) {
    for (std::uint32_t m = transfers_.channels()[channel].open; m != kNoRow;
         m = meetings_[m].next) {
      if (meetings_[m].sequence == sequence) return m;
    }
  }
  std::uint32_t m = static_cast<std::uint32_t>(meetings_.size());
  if (free_meetings_.empty()) {
    meetings_.emplace_back();
  } else {
    m = free_meetings_.back();
    free_meetings_.pop_back();
  }
  Meeting& meeting = meetings_[m];
  meeting.channel = channel;
  meeting.sequence = sequence;
  if (channel == kNoRow) return m;
  meeting.next = transfers_.channels()[channel].open;
  transfers_.channels()[channel].open = m;
  return m;
}

void StreamCore::close_meeting(std::uint32_t m) {
  std::uint32_t* link = &transfers_.channels()[meetings_[m].channel].open;
  while (*link != m) link = &meetings_[*link].next;
  *link = meetings_[m].next;
}

/// All partners are there. What has its links to itself for certain is worked out at once.
void StreamCore::launch(std::uint32_t m) {
  Meeting& meeting = meetings_[m];
  const Pattern& pattern = transfers_.pattern(meeting.pattern);
  flows_[meeting.body] += pattern.flows;
  if (meeting.interferes) return push(meeting.ready, EventKind::Activate, m, meeting.version);
  meeting.start = meeting.ready + pattern.latency;
  if (calendar_ || all_simgrid_ || !pattern.exclusive) {
    return push(meeting.start, EventKind::Start, m, meeting.version);
  }
  report_lone_flows(meeting);
  finish_transfer(m, meeting.start + pattern.moving);
}

/// The flows begin at `now`: alone, where nothing else is on their links, else in SimGrid.
void StreamCore::start_flows(std::uint32_t m, Ps now) {
  const Pattern& pattern = transfers_.pattern(meetings_[m].pattern);
  meetings_[m].start = now;
  const std::span<const PatternFlow> flows = transfers_.flows(pattern);
  const bool all = all_simgrid_ || (!pattern.exact && !pattern.exclusive) ||
                   (!pattern.disjoint && !pattern.exclusive && must_share(m, now));
  if (!all && pattern.exclusive) {
    meetings_[m].lone_end = now + pattern.moving;
    return push(meetings_[m].lone_end, EventKind::LoneEnd, m, meetings_[m].version);
  }
  for (std::uint32_t f = 0; f < flows.size(); ++f) {
    const bool wire = flows[f].links > 0 || flows[f].rate > 0;
    if (wire && (all || must_share(meetings_[m], flows[f], now))) {
      promote_occupants(flows[f], now);
      share(m, f, static_cast<double>(flows[f].bytes.value));
      continue;
    }
    occupy(m, f, now + flows[f].alone);
  }
  schedule_lone_end(m, now);
}

/// The flow has its links to itself until `end`.
void StreamCore::occupy(std::uint32_t m, std::uint32_t flow, Ps end) {
  const PatternFlow& what = transfers_.flows(transfers_.pattern(meetings_[m].pattern))[flow];
  for (const LinkId link : transfers_.links(what)) {
    if (!transfers_.shared(link)) continue;
    Occupant& occupant = occupants_[link.value];
    if (occupant.meeting == m && occupant.end >= end) continue;  // of several, the last to end
    occupant.meeting = m;
    occupant.flow = flow;
    occupant.end = end;
  }
}

Ps StreamCore::lone_end_of(const Meeting& meeting, std::uint32_t flow) const {
  if (!meeting.lone_ends.empty()) return meeting.lone_ends[flow];
  return meeting.start + transfers_.flows(transfers_.pattern(meeting.pattern))[flow].alone;
}

bool StreamCore::must_share(std::uint32_t m, Ps now) const {
  const Meeting& meeting = meetings_[m];
  const Pattern& pattern = transfers_.pattern(meeting.pattern);
  if (all_simgrid_) return true;
  if (pattern.exclusive) return false;
  if (!pattern.exact) return true;
  for (const PatternFlow& flow : transfers_.flows(pattern)) {
    if (must_share(meeting, flow, now)) return true;
  }
  return false;
}

bool StreamCore::must_share(const Meeting& meeting, const PatternFlow& flow, Ps now) const {
  for (const LinkId link : transfers_.links(flow)) {
    const Occupant& occupant = occupants_[link.value];
    if (occupant.simgrid_flows > 0) return true;
    if (occupant.end > now && &meetings_[occupant.meeting] != &meeting) return true;
  }
  return false;
}

/// Hands a flow over to SimGrid with the bytes it still has to move.
void StreamCore::share(std::uint32_t m, std::uint32_t flow, double bytes) {
  Meeting& meeting = meetings_[m];
  const Pattern& pattern = transfers_.pattern(meeting.pattern);
  const PatternFlow& what = transfers_.flows(pattern)[flow];
  const std::span<const PatternFlow> flows = transfers_.flows(pattern);
  if (meeting.promoted.empty()) {
    meeting.promoted.assign(pattern.flows, false);
    meeting.lone_ends.resize(pattern.flows);
    for (std::uint32_t f = 0; f < pattern.flows; ++f) {
      meeting.lone_ends[f] = meeting.start + flows[f].alone;
    }
  }
  meeting.promoted[flow] = true;
  ++meeting.simgrid_flows;
  const bool first_time = meeting.lone_ends[flow] == meeting.start + what.alone;
  if (first_time) ++simgrid_flows_[meeting.body];
  const std::uint64_t id = (std::uint64_t{m} << 32) | flow;
  for (const LinkId link : transfers_.links(what)) {
    ++occupants_[link.value].simgrid_flows;
    occupants_[link.value].simgrid_ids ^= id;
  }
  started_.push_back({id, transfers_.links(what), bytes, pattern.rate_cap});
}

void StreamCore::promote_occupants(const PatternFlow& flow, Ps now) {
  for (const LinkId link : transfers_.links(flow)) {
    const Occupant occupant = occupants_[link.value];
    if (occupant.end > now) promote(occupant.meeting, occupant.flow, now);
  }
}

/// A flow that had its links to itself gets company. Flows that share links within a meeting go
/// together.
void StreamCore::promote(std::uint32_t m, std::uint32_t flow, Ps now) {
  const Pattern& pattern = transfers_.pattern(meetings_[m].pattern);
  if (pattern.disjoint) {
    promote_one(m, flow, now);
  } else {
    for (std::uint32_t f = 0; f < pattern.flows; ++f) promote_one(m, f, now);
  }
  schedule_lone_end(m, now);
}

void StreamCore::promote_one(std::uint32_t m, std::uint32_t flow, Ps now) {
  const Meeting& meeting = meetings_[m];
  const PatternFlow& what = transfers_.flows(transfers_.pattern(meeting.pattern))[flow];
  const Ps end = lone_end_of(meeting, flow);
  if (end <= now || (!meeting.promoted.empty() && meeting.promoted[flow])) return;
  for (const LinkId link : transfers_.links(what)) {
    Occupant& occupant = occupants_[link.value];
    if (occupant.meeting == m) occupant.end = now;
  }
  const double left = static_cast<double>(end - now) / static_cast<double>(what.alone);
  share(m, flow, static_cast<double>(what.bytes.value) * left);
}

/// Enters the end of the flows of a meeting that are not in SimGrid; an entry made before counts no
/// more.
void StreamCore::schedule_lone_end(std::uint32_t m, Ps now) {
  Meeting& meeting = meetings_[m];
  const Pattern& pattern = transfers_.pattern(meeting.pattern);
  Ps end = meeting.start;
  if (meeting.simgrid_flows == 0 && meeting.promoted.empty()) {
    end += pattern.moving;
  } else {
    const std::span<const PatternFlow> flows = transfers_.flows(pattern);
    for (std::uint32_t f = 0; f < flows.size(); ++f) {
      if (!meeting.promoted[f]) end = std::max(end, lone_end_of(meeting, f));
    }
  }
  meeting.lone_end = end;
  push(std::max(end, now), EventKind::LoneEnd, m, ++meeting.version);
}

void StreamCore::flow_done(std::uint64_t id, Ps now) {
  const auto m = static_cast<std::uint32_t>(id >> 32);
  const auto f = static_cast<std::uint32_t>(id);
  Meeting& meeting = meetings_[m];
  const PatternFlow& flow = transfers_.flows(transfers_.pattern(meeting.pattern))[f];
  leave_simgrid(id);
  report_flow(meeting, flow, meeting.start, now);
  if (--meeting.simgrid_flows > 0 || !meeting.lone_done) return;
  finish_transfer(m, now);
  drain();
}

/// The flow is no longer in SimGrid; whoever is now alone on its links is noted.
void StreamCore::leave_simgrid(std::uint64_t id) {
  const Pattern& pattern = transfers_.pattern(meetings_[id >> 32].pattern);
  const PatternFlow& flow = transfers_.flows(pattern)[static_cast<std::uint32_t>(id)];
  for (const LinkId link : transfers_.links(flow)) {
    --occupants_[link.value].simgrid_flows;
    occupants_[link.value].simgrid_ids ^= id;
  }
  for (const LinkId link : transfers_.links(flow)) {
    const Occupant& occupant = occupants_[link.value];
    if (occupant.simgrid_flows == 1) note_alone(occupant.simgrid_ids);
  }
}

// Only flows whose rate alone is known by themselves can go back: those of a pattern without shared
// links.
void StreamCore::note_alone(std::uint64_t id) {
  const Pattern& pattern = transfers_.pattern(meetings_[id >> 32].pattern);
  if (all_simgrid_ || !pattern.exact || !pattern.disjoint) return;
  const PatternFlow& flow = transfers_.flows(pattern)[static_cast<std::uint32_t>(id)];
  for (const LinkId link : transfers_.links(flow)) {
    if (occupants_[link.value].simgrid_flows != 1) return;
  }
  alone_again_.push_back(id);
}

bool StreamCore::flow_alone(std::uint64_t id, double bytes, Ps now) {
  const auto m = static_cast<std::uint32_t>(id >> 32);
  const auto f = static_cast<std::uint32_t>(id);
  Meeting& meeting = meetings_[m];
  const PatternFlow& flow = transfers_.flows(transfers_.pattern(meeting.pattern))[f];
  const double share = bytes / static_cast<double>(flow.bytes.value);
  const Ps left = std::llround(static_cast<double>(flow.alone) * share);
  if (left < kWorthTakingBack) return false;
  leave_simgrid(id);
  --meeting.simgrid_flows;
  meeting.promoted[f] = false;
  meeting.lone_ends[f] = now + left;
  meeting.lone_done = false;
  occupy(m, f, now + left);
  schedule_lone_end(m, now);
  return true;
}

void StreamCore::finish_transfer(std::uint32_t m, Ps end) {
  if (meetings_[m].interferes) activate(m, -1, end);
  Meeting& meeting = meetings_[m];
  const Ps ready = meeting.ready;
  for (const Arrival arrival : meeting.arrivals) finish_communication(arrival, ready, end);
  meeting.arrivals.clear();
  meeting.promoted.clear();
  const std::uint32_t version = meeting.version + 1;
  std::vector<Arrival> arrivals = std::move(meeting.arrivals);
  meeting = Meeting{};
  meeting.version = version;  // entries of the calendar that still name it count no more
  meeting.arrivals = std::move(arrivals);
  free_meetings_.push_back(m);
}

/// One side of a transfer is over; with its last transfer the operation is.
void StreamCore::finish_communication(Arrival arrival, Ps ready, Ps end) {
  RankState& rank = ranks_[arrival.state];
  StreamState& stream = stream_of(rank, arrival.stream);
  stream.op_start = std::max(stream.op_start, ready);
  stream.op_end = std::max(stream.op_end, end);
  if (--stream.open_transfers > 0) return;
  const CompiledProgram& program = *rank.program;
  const StreamOp& op = program.streams[arrival.stream].ops[stream.pc];
  const Ps began = stream.op_start, ended = stream.op_end;
  if (op.code == OpCode::PointToPoint) {
    const PairGroup group = program.groups[op.operand];
    const Part what = program.sites[program.pairs[group.first].site].part;
    for (std::uint32_t p = group.first; p < group.first + group.count; ++p) {
      const PairOp& pair = program.pairs[p];
      finish_task(rank, stream, task_number(rank, stream.body, pair.task), pair.instruction, what,
                  began, ended);
    }
  } else {
    const std::uint32_t site =
        op.code == OpCode::Copy ? op.operand : program.collectives[op.operand].site;
    finish_task(rank, stream, task_number(rank, stream.body, op.task), op.instruction,
                program.sites[site].part, began, ended);
  }
  stream.block = Block::Ready;
  ++stream.pc;
  rank.awake |= 1u << arrival.stream;
  wake(arrival.state);
}

// ---- calendar
// -----------------------------------------------------------------------------------------

void StreamCore::push(Ps time, EventKind kind, std::uint32_t id, std::uint32_t version) {
  calendar_entries_.push_back({time, kind, id, version});
  std::push_heap(calendar_entries_.begin(), calendar_entries_.end(), std::greater<>{});
}

std::optional<Ps> StreamCore::advance(Ps horizon) {
  while (!calendar_entries_.empty() && !stopped()) {
    const Entry entry = calendar_entries_.front();
    if (calendar_ || entry.time > horizon) return entry.time;
    const bool shares = entry.kind == EventKind::Start &&
                        entry.version == meetings_[entry.id].version &&
                        must_share(entry.id, entry.time);
    if (shares) return entry.time;
    std::pop_heap(calendar_entries_.begin(), calendar_entries_.end(), std::greater<>{});
    calendar_entries_.pop_back();
    handle(entry);
  }
  return std::nullopt;
}

void StreamCore::at(Ps now) {
  while (!calendar_entries_.empty() && !stopped()) {
    const Entry entry = calendar_entries_.front();
    if (entry.time > now) return;
    std::pop_heap(calendar_entries_.begin(), calendar_entries_.end(), std::greater<>{});
    calendar_entries_.pop_back();
    handle(entry);
  }
}

void StreamCore::handle(const Entry& entry) {
  const bool kernel = entry.kind == EventKind::KernelEnd;
  const std::uint32_t version = kernel ? streams_[entry.id].version : meetings_[entry.id].version;
  if (entry.version != version) return;
  switch (entry.kind) {
    case EventKind::KernelEnd:
      if (streams_[entry.id].block == Block::Running) finish_kernel(entry.id, entry.time);
      break;
    case EventKind::Activate: {
      activate(entry.id, +1, entry.time);
      Meeting& meeting = meetings_[entry.id];
      meeting.start = meeting.ready + transfers_.pattern(meeting.pattern).latency;
      push(meeting.start, EventKind::Start, entry.id, meeting.version);
      break;
    }
    case EventKind::Start: start_flows(entry.id, entry.time); break;
    case EventKind::LoneEnd: {
      Meeting& meeting = meetings_[entry.id];
      report_lone_flows(meeting);
      meeting.lone_done = true;
      if (meeting.simgrid_flows == 0) finish_transfer(entry.id, entry.time);
      break;
    }
  }
  drain();
}

}  // namespace gputwin::engine
