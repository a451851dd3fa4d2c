// Figures of the reference executor: ends of bodies, breakdown, and who waits in a deadlock.
#include <algorithm>
#include <string>

#include "sim/core/spelling.h"
#include "sim/engine/reference_run.h"

namespace gputwin::reference {

/// One rank has issued all of `body`, or one of its tasks is over.
void Run::body_left(int body) {
  const auto b = static_cast<std::size_t>(body);
  if (--open_[b] > 0) return;
  GPUTWIN_CHECK(body_end_.size() == b, "bodies end in order");
  body_end_.push_back(calendar_.now());
  stop_ = body + 1 == bodies_wanted_;
  if (bodies_wanted_ == 1 || b < 2) return;
  const Ps last = body_end_[b] - body_end_[b - 1], before = body_end_[b - 1] - body_end_[b - 2];
  converged_ = std::abs(last - before) <= 1;
  stop_ = stop_ || converged_;
}

Part Run::part_of(RankId r, const Instruction& instruction) const {
  switch (instruction.kind) {
    case Kind::Kernel:
    case Kind::HostTask:
      return plan_.names.size() > instruction.name &&
                     plan_.names[instruction.name].phase == Phase::Optimizer
                 ? Part::Optimizer
                 : Part::Compute;
    case Kind::Copy: return Part::CopyStall;
    case Kind::Collective:
    case Kind::Send:
    case Kind::Recv: {
      const SlotId slot = plan_.call(instruction).op.slot;
      switch (ranks_[r.value].program->slots[slot.value].domain) {
        case Domain::Tp: return Part::ExposedTp;
        case Domain::Dp: return Part::ExposedDp;
        case Domain::Pp: return Part::ExposedPp;
        case Domain::Ep: return Part::ExposedEp;
        case Domain::Cp: return Part::ExposedCp;
      }
      break;
    }
    case Kind::Alloc:
    case Kind::Free:
    case Kind::Record:
    case Kind::Wait:
    case Kind::HostWait: break;
  }
  return Part::Bubble;
}

/// Splits [begin, end): at every moment the first of compute, optimizer, communication, copies and
/// host that is active; bubble where none is.
Breakdown Run::breakdown(const RankState& rank, Ps begin, Ps end) const {
  static constexpr Part kOrder[] = {Part::Compute,   Part::Optimizer, Part::ExposedTp,
                                    Part::ExposedDp, Part::ExposedPp, Part::ExposedEp,
                                    Part::ExposedCp, Part::CopyStall, Part::Host};
  std::vector<std::tuple<Ps, int, std::size_t>> edges;
  for (const Interval& i : rank.intervals) {
    const Ps from = std::clamp(i.start, begin, end), to = std::clamp(i.end, begin, end);
    if (from >= to) continue;
    edges.emplace_back(from, +1, static_cast<std::size_t>(i.part));
    edges.emplace_back(to, -1, static_cast<std::size_t>(i.part));
  }
  std::sort(edges.begin(), edges.end());
  Breakdown result{};
  std::array<int, kParts> active{};
  Ps at = begin;
  const auto spend = [&](Ps until) {
    std::size_t part = static_cast<std::size_t>(Part::Bubble);
    for (const Part p : kOrder) {
      if (active[static_cast<std::size_t>(p)] == 0) continue;
      part = static_cast<std::size_t>(p);
      break;
    }
    result[part] += until - at;
    at = until;
  };
  for (const auto& [time, by, part] : edges) {
    spend(time);
    active[part] += by;
  }
  spend(end);
  return result;
}

Execution Run::execution() const {
  Execution result;
  result.engine = stats_;
  result.engine.simulated_ranks = static_cast<std::int32_t>(ranks_.size());
  result.engine.bodies = static_cast<std::int32_t>(body_end_.size());
  result.period_converged = converged_;
  if (body_end_.empty()) return result;
  const std::size_t n = body_end_.size();
  result.makespan = body_end_.back();
  for (const RankState& rank : ranks_) result.rank_end.push_back(rank.body_end[n - 1]);
  const auto last = std::max_element(result.rank_end.begin(), result.rank_end.end());
  result.last_rank = RankId(static_cast<std::uint32_t>(last - result.rank_end.begin()));
  result.iteration = n == 1 ? result.makespan : body_end_[n - 1] - body_end_[n - 2];
  for (const RankState& rank : ranks_) {
    const Ps end = body_end_.back();
    result.breakdown.push_back(breakdown(rank, end - result.iteration, end));
  }
  return result;
}

// ---- deadlock -----------------------------------------------------------------------------------

Deadlock Run::deadlock() const {
  Deadlock result;
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    const RankState& rank = ranks_[r];
    if (rank.host_done && rank.over.empty()) continue;
    ++result.total;
    if (result.ranks.size() < 16) result.ranks.push_back(blocked(RankId(r)));
  }
  return result;
}

/// The first thing this rank is stuck on: a communication if there is one, else an event, else its
/// host.
Deadlock::Blocked Run::blocked(RankId r) const {
  const RankState& rank = ranks_[r.value];
  const StreamItem* stuck = nullptr;
  for (const StreamState& stream : rank.streams) {
    if (!stream.queue.empty() && (stuck == nullptr || stream.busy)) stuck = &stream.queue.front();
    if (stream.busy) break;
  }
  if (stuck != nullptr) {
    const Instruction& instruction = *stuck->front().instruction;
    return {r,
            plan_.full_name(instruction) + " on " + rank.program->streams[instruction.stream].name,
            waiting_for(r, *stuck)};
  }
  const std::size_t prologue = rank.program->prologue.size();
  const Instruction& next = rank.next < prologue ? rank.program->prologue[rank.next]
                                                 : rank.program->body[rank.next - prologue];
  return {r, std::string(to_string(next.kind)) + " on host",
          "event e" + std::to_string(next.event)};
}

std::string Run::waiting_for(RankId r, const StreamItem& item) const {
  const Instruction& first = *item.front().instruction;
  if (first.kind == Kind::Wait) return "event e" + std::to_string(first.event);
  const Op& op = plan_.call(first).op;
  if (first.kind == Kind::Collective) {
    const CommunicatorId c = plan_.communicator(r, op.slot);
    const auto found = collectives_.find({c.value, item.front().sequence});
    for (const RankId member : plan_.communicators[c.value].members) {
      const auto is_member = [member](const auto& a) { return a.first == member; };
      if (found != collectives_.end() &&
          std::any_of(found->second.arrived.begin(), found->second.arrived.end(), is_member)) {
        continue;
      }
      return "rank " + std::to_string(member.value) + " to join " +
             std::string(to_string(op.kind)) + " #" + std::to_string(item.front().sequence) +
             " of " + plan_.communicators[c.value].name;
    }
  }
  for (const Issued& task : item) {
    const bool sends = task.instruction->kind == Kind::Send;
    const RankId peer = plan_.peer(r, plan_.call(*task.instruction).op.slot);
    const std::tuple key(sends ? r.value : peer.value, sends ? peer.value : r.value, task.sequence);
    if (!transfers_.contains(key)) continue;
    return "rank " + std::to_string(peer.value) + " to " + (sends ? "receive" : "send") + " #" +
           std::to_string(task.sequence);
  }
  return "nobody";
}

}  // namespace gputwin::reference
