// Who is blocked for ever, on what, and waiting for whom: asked after a run that did not end.
#include <algorithm>
#include <bit>

#include "sim/core/spelling.h"
#include "sim/engine/stream_core.h"

namespace gputwin::engine {
namespace {

std::string rank_name(RankId rank) { return "rank " + std::to_string(rank.value); }

}  // namespace

Deadlock StreamCore::deadlock() const {
  constexpr std::size_t kMostRanks = 16;
  Deadlock result;
  for (const RankState& rank : ranks_) {
    bool done = rank.host.block == Block::Finished;
    for (std::uint32_t mask = rank.present_streams; mask != 0; mask &= mask - 1) {
      const auto s = static_cast<std::uint8_t>(std::countr_zero(mask));
      done = done && stream_of(rank, s).block == Block::Finished;
    }
    if (done) continue;
    ++result.total;
    if (result.ranks.size() == kMostRanks) continue;
    Deadlock::Blocked blocked;
    blocked.rank = rank.rank;
    blocked.waiting_for = stuck_on(rank, blocked);
    result.ranks.push_back(std::move(blocked));
  }
  return result;
}

/// The first thing a rank is stuck on: a communication if there is one, else an event, else its
/// host. Sets `blocked.instruction`; returns what it waits for.
std::string StreamCore::stuck_on(const RankState& rank, Deadlock::Blocked& blocked) const {
  const CompiledProgram& program = *rank.program;
  const auto event_name = [](const EventWait& wait) {
    const std::string name = "event e" + std::to_string(wait.event);
    return wait.kind == WaitKind::Never ? name + ", which is never recorded" : name;
  };
  for (const Block kind : {Block::Meeting, Block::Event}) {
    for (std::uint32_t mask = rank.present_streams; mask != 0; mask &= mask - 1) {
      const auto s = static_cast<std::uint8_t>(std::countr_zero(mask));
      const StreamState& stream = stream_of(rank, s);
      if (stream.block != kind) continue;
      const StreamOp& op = program.streams[s].ops[stream.pc];
      const Instruction& instruction = program.instruction(op.instruction);
      const bool event = kind == Block::Event;
      blocked.instruction =
          event ? "wait e" + std::to_string(instruction.event) : plan_.full_name(instruction);
      blocked.instruction += " on " + program.source->streams[s].name;
      if (event) return event_name(program.waits[op.operand]);
      return missing_partner(rank, op, stream.body);
    }
  }
  if (rank.host.block == Block::Event) {
    const EventWait& wait = program.waits[program.host_waits[rank.host.next_wait]];
    blocked.instruction = "host_wait e" + std::to_string(wait.event) + " on host";
    return event_name(wait);
  }
  blocked.instruction = "host";
  return "room in the launch queue";
}

/// Names the first partner that has not come, or that came with something else.
std::string StreamCore::missing_partner(const RankState& rank, const StreamOp& op,
                                        std::uint16_t body) const {
  const CompiledProgram& program = *rank.program;
  const std::uint32_t later = body > 1 ? body - 1u : 0;
  const auto open = [&](std::uint32_t channel, std::uint32_t sequence) {
    std::uint32_t m = transfers_.channels()[channel].open;
    while (m != kNoRow && meetings_[m].sequence != sequence) m = meetings_[m].next;
    return m;
  };
  if (op.code == OpCode::Collective) {
    const CollectiveOp& collective = program.collectives[op.operand];
    const Site& site = program.sites[collective.site];
    const Binding& binding = bindings_[rank.first_site + collective.site];
    const Channel& channel = transfers_.channels()[binding.channel];
    const std::uint32_t sequence = collective.sequence + later * collective.per_body;
    const std::string what = std::string(to_string(site.op)) + " #" + std::to_string(sequence) +
                             " of " + plan_.communicators[channel.communicator.value].name;
    const std::uint32_t m = open(binding.channel, sequence);
    if (m == kNoRow) return "the end of " + what;
    if (meetings_[m].mismatch) {
      for (const Arrival arrival : meetings_[m].arrivals) {
        const RankState& other = ranks_[arrival.state];
        const StreamState& stream = stream_of(other, arrival.stream);
        const StreamOp& theirs = other.program->streams[arrival.stream].ops[stream.pc];
        const CollectiveOp& call = other.program->collectives[theirs.operand];
        const Site& calls = other.program->sites[call.site];
        if (bindings_[other.first_site + call.site].pattern == binding.pattern) continue;
        return rank_name(other.rank) + " to join " + what + "; it called " +
               std::string(to_string(calls.op)) + " of " + std::to_string(calls.bytes.value) +
               " bytes instead of " + std::to_string(site.bytes.value);
      }
    }
    for (const RankId member : participants_[channel.communicator.value]) {
      const auto came = [&](const Arrival& a) { return ranks_[a.state].rank == member; };
      if (std::ranges::none_of(meetings_[m].arrivals, came)) {
        return rank_name(member) + " to join " + what;
      }
    }
    return "nobody";
  }
  if (op.code == OpCode::Copy) return "the end of a copy";
  const PairGroup group = program.groups[op.operand];
  for (std::uint32_t p = group.first; p < group.first + group.count; ++p) {
    const PairOp& pair = program.pairs[p];
    const Channel& channel = transfers_.channels()[bindings_[rank.first_site + pair.site].channel];
    const std::uint32_t sequence = pair.sequence + later * pair.per_body;
    if (open(bindings_[rank.first_site + pair.site].channel, sequence) == kNoRow) continue;
    const bool sends = program.sites[pair.site].kind == Kind::Send;
    return rank_name(sends ? channel.to : channel.from) + " to " + (sends ? "receive" : "send") +
           " #" + std::to_string(sequence);
  }
  return "the end of a transfer";
}

}  // namespace gputwin::engine
