#include "sim/core/progress.h"

#include <map>

#include "sim/core/spelling.h"

namespace gputwin {
namespace {

/// State of one rank: the host position, and per stream the queue of issued instructions.
struct RankState {
  std::vector<const Instruction*> code;  // prologue, then body
  std::size_t host = 0;
  std::vector<std::vector<std::size_t>> queue;            // by stream: indices into code
  std::vector<std::size_t> head;                          // by stream
  std::vector<std::size_t> records_issued, records_done;  // by event
  std::vector<std::size_t> need;  // by index into code: for waits, records_done that releases them
};

class Untimed {
 public:
  explicit Untimed(const Plan& plan) : plan_(plan) {
    for (const Rank& rank : plan.ranks) {
      const Program& p = plan.programs[rank.program.value];
      RankState s;
      for (const auto* list : {&p.prologue, &p.body}) {
        for (const Instruction& i : *list) s.code.push_back(&i);
      }
      s.queue.resize(p.streams.size());
      s.head.assign(p.streams.size(), 0);
      s.records_issued.assign(p.events, 0);
      s.records_done.assign(p.events, 0);
      s.need.assign(s.code.size(), 0);
      ranks_.push_back(std::move(s));
    }
  }

  std::vector<std::string> run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
        moved |= issue(r);
        for (std::size_t s = 0; s < ranks_[r].queue.size(); ++s) moved |= advance(r, s);
      }
    }
    return blocked();
  }

 private:
  // A wait means the latest record issued so far; kPreviousBody means the prologue's, which is
  // first.
  std::size_t record_meant(const RankState& s, const Instruction& i) const {
    return (i.flags & kPreviousBody) != 0 ? 1 : s.records_issued[i.event];
  }

  bool issue(std::uint32_t r) {
    RankState& s = ranks_[r];
    const std::size_t start = s.host;
    for (; s.host < s.code.size(); ++s.host) {
      const Instruction& i = *s.code[s.host];
      if (i.kind == Kind::Alloc || i.kind == Kind::Free) continue;
      if (i.kind == Kind::HostWait) {
        if (s.records_done[i.event] < record_meant(s, i)) break;
        continue;
      }
      if (i.kind == Kind::Record) ++s.records_issued[i.event];
      if (i.kind == Kind::Wait) s.need[s.host] = record_meant(s, i);
      s.queue[i.stream].push_back(s.host);
    }
    return s.host != start;
  }

  bool advance(std::uint32_t r, std::size_t stream) {
    RankState& s = ranks_[r];
    const std::size_t start = s.head[stream];
    while (s.head[stream] < s.queue[stream].size()) {
      const std::size_t at = s.queue[stream][s.head[stream]];
      const Instruction& i = *s.code[at];
      if (i.kind == Kind::Wait && s.records_done[i.event] < s.need[at]) break;
      if (i.kind == Kind::Record) ++s.records_done[i.event];
      if ((i.kind == Kind::Collective || i.kind == Kind::Send || i.kind == Kind::Recv) &&
          !meet(r, stream)) {
        break;
      }
      ++s.head[stream];
    }
    return s.head[stream] != start;
  }

  // Instructions at the head of a stream that start together: one, or a run of grouped sends and
  // receives.
  std::vector<const Instruction*> group(const RankState& s, std::size_t stream) const {
    std::vector<const Instruction*> list;
    for (std::size_t h = s.head[stream]; h < s.queue[stream].size(); ++h) {
      const Instruction& i = *s.code[s.queue[stream][h]];
      const bool message = i.kind == Kind::Send || i.kind == Kind::Recv;
      if (!list.empty() && (!message || (i.flags & kGrouped) == 0)) break;
      list.push_back(&i);
      if (!message || (i.flags & kGrouped) == 0) break;
    }
    return list;
  }

  // Arrivals are counted per communicator and per ordered pair; an arrival stays once made.
  bool meet(std::uint32_t r, std::size_t stream) {
    const RankState& s = ranks_[r];
    bool all = true;
    std::size_t offset = 0;
    for (const Instruction* i : group(s, stream)) {
      const std::size_t index = s.queue[stream][s.head[stream] + offset++];
      const std::uint32_t slot = plan_.calls[i->call].op.slot.value;
      const std::uint32_t target = plan_.ranks[r].slots[slot];
      const auto arrived = arrivals_.try_emplace({r, index}, 0);
      std::size_t& ticket = arrived.first->second;
      if (i->kind == Kind::Collective) {
        auto& counts = collective_[target];
        counts.resize(plan_.communicators[target].members.size());
        std::size_t& mine =
            counts[static_cast<std::size_t>(plan_.member_index(CommunicatorId(target), RankId(r)))];
        if (arrived.second) ticket = ++mine;
        for (const std::size_t other : counts) all &= other >= ticket;
      } else {
        const bool send = i->kind == Kind::Send;
        auto& pair = message_[send ? std::pair{r, target} : std::pair{target, r}];
        if (arrived.second) ticket = ++(send ? pair.first : pair.second);
        all &= (send ? pair.second : pair.first) >= ticket;
      }
    }
    return all;
  }

  std::vector<std::string> blocked() const {
    std::vector<std::string> list;
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
      const RankState& s = ranks_[r];
      const Program& p = plan_.programs[plan_.ranks[r].program.value];
      for (std::size_t stream = 0; stream < s.queue.size(); ++stream) {
        if (s.head[stream] == s.queue[stream].size()) continue;
        const Instruction& i = *s.code[s.queue[stream][s.head[stream]]];
        const bool event = i.kind == Kind::Wait;
        list.push_back("rank " + std::to_string(r) + " stream " + p.streams[stream].name + ": " +
                       std::string(to_string(i.kind)) + " " +
                       (event ? "e" + std::to_string(i.event) : plan_.full_name(i)));
      }
      if (s.host < s.code.size()) list.push_back("rank " + std::to_string(r) + " host: host_wait");
    }
    return list;
  }

  const Plan& plan_;
  std::vector<RankState> ranks_;
  std::map<std::pair<std::uint32_t, std::size_t>, std::size_t>
      arrivals_;  // (rank, code index) -> ticket
  std::map<std::uint32_t, std::vector<std::size_t>> collective_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::pair<std::size_t, std::size_t>> message_;
};

}  // namespace

std::vector<std::string> blocked_ranks(const Plan& plan) { return Untimed(plan).run(); }

}  // namespace gputwin
