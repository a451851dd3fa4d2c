#include "sim/trace/flow_arrows.h"

#include <algorithm>
#include <map>
#include <utility>

namespace gputwin {

namespace {

constexpr std::uint64_t kCollectiveBit = std::uint64_t{1} << 63;

bool is_communication(Kind kind) {
  return kind == Kind::Collective || kind == Kind::Send || kind == Kind::Recv;
}

}  // namespace

FlowArrows::FlowArrows(const Plan& plan, const std::vector<RankId>& watched)
    : plan_(&plan),
      watched_(plan.ranks.size(), false),
      numberings_(plan.programs.size()),
      members_(plan.communicators.size(), 0) {
  for (const RankId rank : watched) {
    watched_[rank.value] = true;
    const Rank& row = plan.ranks[rank.value];
    Numbering& numbering = numberings_[row.program.value];
    if (numbering.channel.empty()) {
      numbering = number(plan, plan.programs[row.program.value], row);
    }
  }
  for (std::size_t c = 0; c < plan.communicators.size(); ++c) {
    for (const RankId member : plan.communicators[c].members) {
      if (watched_[member.value]) ++members_[c];
    }
  }
}

// Two slots of a program may mean the same peer (two pipeline stages with several chunks each), so
// channels are what the slots mean to one rank of the program; its other ranks have the same
// coincidences.
FlowArrows::Numbering FlowArrows::number(const Plan& plan, const Program& program,
                                         const Rank& rank) {
  Numbering numbering;
  std::map<std::pair<Kind, std::uint32_t>, std::uint32_t> channels;
  for (const bool prologue : {true, false}) {
    auto& counts = prologue ? numbering.prologue : numbering.body;
    for (const Instruction& instruction : prologue ? program.prologue : program.body) {
      std::uint32_t channel = 0, sequence = 0;
      if (is_communication(instruction.kind)) {
        const std::uint32_t meaning = rank.slots[plan.call(instruction).op.slot.value];
        const auto next = static_cast<std::uint32_t>(channels.size());
        channel = channels.try_emplace({instruction.kind, meaning}, next).first->second;
        if (counts.size() <= channel) counts.resize(channel + 1, 0);
        sequence = counts[channel]++;
      }
      numbering.channel.push_back(channel);
      numbering.in_part.push_back(sequence);
    }
  }
  numbering.prologue.resize(channels.size(), 0);
  numbering.body.resize(channels.size(), 0);
  return numbering;
}

void FlowArrows::add(const OpEvent& event, std::size_t position, std::vector<Arrow>& out) {
  const Rank& rank = plan_->ranks[event.rank.value];
  const std::uint32_t slot = rank.slots[plan_->call(*event.instruction).op.slot.value];
  const bool collective = event.instruction->kind == Kind::Collective;
  const bool sends = event.instruction->kind == Kind::Send;
  if (collective ? members_[slot] < 2 : !watched_[slot]) return;  // the others are not drawn

  const Numbering& numbering = numberings_[rank.program.value];
  const std::uint32_t channel = numbering.channel[position];
  std::uint64_t sequence = numbering.in_part[position];
  if (position >= plan_->programs[rank.program.value].prologue.size()) {
    sequence += numbering.prologue[channel] + std::uint64_t{event.body} * numbering.body[channel];
  }
  const std::uint64_t from = sends ? event.rank.value : slot;
  const std::uint64_t to = sends ? slot : event.rank.value;
  const Key key{collective ? kCollectiveBit | slot : from << 32 | to, sequence};

  auto found = pending_.find(key);
  if (found == pending_.end()) {
    if (pending_.size() >= kPending) {
      ++dropped_;
      return;
    }
    found = pending_.try_emplace(key).first;
  }
  auto& sides = found->second;
  sides.push_back({event.rank, event.instruction->stream, sends, event.start});
  if (sides.size() < (collective ? members_[slot] : 2u)) return;

  // Members end together, so the last start lies inside all of their slices.
  std::sort(sides.begin(), sides.end(),
            [](const Side& a, const Side& b) { return a.rank < b.rank; });
  const auto last = std::max_element(
      sides.begin(), sides.end(), [](const Side& a, const Side& b) { return a.start < b.start; });
  const auto source =
      collective ? last
                 : std::find_if(sides.begin(), sides.end(), [](const Side& s) { return s.sends; });
  if (source != sides.end()) {
    for (const Side& side : sides) {
      if (&side == &*source) continue;
      out.push_back({source->rank, side.rank, source->stream, side.stream, last->start});
    }
  }
  pending_.erase(found);
}

}  // namespace gputwin
