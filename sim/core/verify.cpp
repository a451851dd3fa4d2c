#include "sim/core/verify.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "sim/core/check.h"
#include "sim/core/hazards.h"
#include "sim/core/progress.h"
#include "sim/core/spelling.h"

namespace gputwin {
namespace {

constexpr std::size_t kMaxViolations = 100;

/// Without scales of blocks, whose last one a view may hold in part.
std::int64_t bits_of(const std::vector<View>& views) {
  std::int64_t n = 0;
  for (const View& v : views) n += v.elements() * bits(v.dtype);
  return n;
}

class Verifier {
 public:
  explicit Verifier(const Plan& plan) : plan_(plan) {}

  std::vector<Violation> run(Depth depth) {
    if (tables()) {
      list_buffers_of_calls();
      for (const Program& p : plan_.programs) program(p);
      // Sequences and races read ids freely, so they need the rules above to hold.
      if (violations_.empty()) collectives();
      if (violations_.empty()) messages();
      if (violations_.empty() && depth == Depth::Races) races();
      if (violations_.empty() && depth == Depth::Races) deadlock();
    }
    return std::move(violations_);
  }

 private:
  void report(const char* rule, std::string where, std::string what) {
    if (violations_.size() < kMaxViolations) {
      violations_.push_back({rule, std::move(where), std::move(what)});
    }
  }

  std::string at(const Program& p, std::size_t i) const {
    const Instruction& in = p.body[i];
    return p.name + " body[" + std::to_string(i) + "] " + std::string(to_string(in.kind)) + " " +
           plan_.full_name(in);
  }

  // ---- ids and shapes of the tables

  bool tables() {
    for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
      const Rank& rank = plan_.ranks[r];
      const std::string where = "rank " + std::to_string(r);
      if (rank.program.value >= plan_.programs.size()) {
        report("id", where, "names no program");
        continue;
      }
      const Program& p = plan_.programs[rank.program.value];
      if (rank.slots.size() != p.slots.size())
        report("id", where, "does not fill its program's slots");
      for (std::size_t s = 0; s < std::min(rank.slots.size(), p.slots.size()); ++s) {
        const std::uint32_t v = rank.slots[s];
        if (v == SlotId::kNone) continue;
        const std::size_t limit = p.slots[s].peer ? plan_.ranks.size() : plan_.communicators.size();
        if (v >= limit) report("id", where, "slot " + p.slots[s].name + " names nobody");
      }
    }
    for (std::size_t c = 0; c < plan_.calls.size(); ++c) {
      for (const auto* list : {&plan_.calls[c].reads, &plan_.calls[c].writes}) {
        for (const View& v : *list) view(c, v);
      }
    }
    for (const Communicator& c : plan_.communicators) {
      for (const RankId m : c.members) {
        if (m.value >= plan_.ranks.size()) report("id", c.name, "has a member that is no rank");
      }
    }
    return violations_.empty();
  }

  void view(std::size_t call, const View& v) {
    const std::string where = "call " + std::to_string(call);
    if (v.buffer.value >= plan_.buffers.size()) return report("id", where, "names no buffer");
    const Buffer& b = plan_.buffers[v.buffer.value];
    const std::int64_t end = v.rows == 0 ? 0 : v.offset + (v.rows - 1) * v.ld + v.cols;
    const bool inside = v.offset >= 0 && v.rows >= 0 && v.cols >= 0 &&
                        (v.rows <= 1 || v.ld >= v.cols) &&
                        (end * bits(v.dtype) + 7) / 8 <= b.bytes.value;
    if (!inside) report("view-outside-buffer", where, "reaches outside buffer " + b.name);
  }

  // ---- one program

  void program(const Program& p) {
    std::vector<char> recorded_before(p.events, 0), recorded_ever(p.events, 0),
        recorded_prologue(p.events, 0);
    mark_records(p, p.prologue, recorded_prologue);
    mark_records(p, p.body, recorded_ever);
    Liveness live(plan_, p);
    for (const Instruction& in : p.prologue) live.act(in);
    const Liveness start = live;
    for (std::size_t i = 0; i < p.body.size() && violations_.size() < kMaxViolations; ++i) {
      const Instruction& in = p.body[i];
      if (in.kind != Kind::HostWait && in.kind != Kind::Alloc && in.kind != Kind::Free &&
          in.stream >= p.streams.size()) {
        report("id", p.name + " body[" + std::to_string(i) + "]", "names no stream");
        continue;
      }
      switch (in.kind) {
        case Kind::Record:
          if (in.event < p.events) recorded_before[in.event] = 1;
          break;
        case Kind::Wait:
        case Kind::HostWait: wait(p, i, recorded_before, recorded_ever, recorded_prologue); break;
        case Kind::Alloc:
        case Kind::Free: memory(p, i, live); break;
        case Kind::Kernel:
        case Kind::Collective:
        case Kind::Send:
        case Kind::Recv:
        case Kind::Copy:
        case Kind::HostTask: task(p, i, live); break;
      }
    }
    const std::string left = live.first_unlike(start, 1);
    if (!left.empty())
      report("alloc-without-free", p.name, "buffer " + left + " is live at the end of the body");
    const std::string lost = live.first_unlike(start, 0);
    if (!lost.empty()) {
      report("free-without-alloc", p.name,
             "buffer " + lost + " is live at the start of the body, not at its end");
    }
  }

  void mark_records(const Program& p, const std::vector<Instruction>& list,
                    std::vector<char>& marks) {
    for (const Instruction& in : list) {
      if (has_event(in.kind) && in.event >= p.events) {
        report("id", p.name, "uses an event beyond its count");
      }
      if (in.kind == Kind::Record && in.event < p.events) marks[in.event] = 1;
    }
  }

  void wait(const Program& p, std::size_t i, const std::vector<char>& before,
            const std::vector<char>& ever, const std::vector<char>& prologue) {
    const Instruction& in = p.body[i];
    if (in.event >= p.events) return;
    const std::string event = "event e" + std::to_string(in.event);
    if ((in.flags & kPreviousBody) != 0) {
      if (!ever[in.event])
        report("wait-without-record", at(p, i), event + " is recorded nowhere in the body");
      if (!prologue[in.event]) {
        report("wait-without-record", at(p, i), event + " is not recorded by the prologue");
      }
    } else if (!before[in.event]) {
      report("wait-without-record", at(p, i), event + " is not recorded before it");
    }
  }

  /// Which (buffer, frame) instances are live while walking a body.
  class Liveness {
   public:
    Liveness(const Plan& plan, const Program& p) : plan_(plan), frames_(std::max(1u, p.frames)) {
      first_.assign(plan.buffers.size(), 0);
      std::uint32_t next = 0;
      for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
        first_[b] = next;
        if (!plan.buffers[b].persistent) next += plan.buffers[b].framed ? frames_ : 1;
      }
      live_.assign(next, 0);
    }
    bool frame_fits(BufferId b, std::uint32_t frame) const {
      return !plan_.buffers[b.value].framed || frame < frames_;
    }
    bool at(BufferId b, std::uint32_t instance) const {
      return live_[first_[b.value] + instance] != 0;
    }
    char& operator()(BufferId b, std::uint32_t frame) {
      return live_[first_[b.value] + (plan_.buffers[b.value].framed ? frame : 0)];
    }
    /// What a prologue leaves live is live at the start of every body.
    void act(const Instruction& in) {
      if (in.kind != Kind::Alloc && in.kind != Kind::Free) return;
      if (in.call >= plan_.buffers.size() || plan_.buffers[in.call].persistent) return;
      if (frame_fits(in.buffer_id(), in.event))
        (*this)(in.buffer_id(), in.event) = in.kind == Kind::Alloc;
    }
    /// First buffer that is live (`now` 1) or dead (0) here and the reverse at `start`.
    std::string first_unlike(const Liveness& start, char now) const {
      for (std::size_t b = 0; b < first_.size(); ++b) {
        const Buffer& buffer = plan_.buffers[b];
        const std::uint32_t n = buffer.persistent ? 0 : buffer.framed ? frames_ : 1;
        for (std::uint32_t f = 0; f < n; ++f) {
          if (live_[first_[b] + f] == now && start.live_[first_[b] + f] != now) return buffer.name;
        }
      }
      return "";
    }

   private:
    const Plan& plan_;
    std::uint32_t frames_;
    std::vector<std::uint32_t> first_;
    std::vector<char> live_;
  };

  void memory(const Program& p, std::size_t i, Liveness& live) {
    const Instruction& in = p.body[i];
    if (in.call >= plan_.buffers.size()) return report("id", at(p, i), "names no buffer");
    const Buffer& b = plan_.buffers[in.call];
    if (b.persistent)
      return report("alloc-of-persistent", at(p, i), b.name + " is live all the time");
    if (!live.frame_fits(in.buffer_id(), in.event)) return report("id", at(p, i), "names no frame");
    char& now = live(in.buffer_id(), in.event);
    const bool alloc = in.kind == Kind::Alloc;
    if (alloc == (now != 0)) {
      report(alloc ? "alloc-of-live" : "free-of-dead", at(p, i),
             b.name + (alloc ? " is live" : " is not live"));
    }
    now = alloc ? 1 : 0;
  }

  void task(const Program& p, std::size_t i, Liveness& live) {
    const Instruction& in = p.body[i];
    if (in.call >= plan_.calls.size()) return report("id", at(p, i), "names no call");
    const Call& call = plan_.calls[in.call];
    const bool communicates =
        in.kind == Kind::Collective || in.kind == Kind::Send || in.kind == Kind::Recv;
    if (communicates) {
      if (call.op.slot.value >= p.slots.size()) return report("id", at(p, i), "names no slot");
      if (p.slots[call.op.slot.value].peer != (in.kind != Kind::Collective)) {
        return report("slot-kind", at(p, i), "uses a peer slot as communicator or the reverse");
      }
    }
    for (std::uint32_t k = first_buffer_[in.call]; k < first_buffer_[in.call + 1]; ++k) {
      const CallBuffer b = call_buffers_[k];
      if (b.framed && !live.frame_fits(b.id, in.frame())) {
        report("frame", at(p, i),
               "uses framed buffer " + plan_.buffers[b.id.value].name + " outside a micro-batch");
      } else if (!b.persistent && !live.at(b.id, b.framed ? in.frame() : 0)) {
        report("use-of-dead-buffer", at(p, i), plan_.buffers[b.id.value].name + " is not live");
      }
    }
  }

  /// A buffer that a call touches and whose liveness or frame an instruction can get wrong.
  struct CallBuffer {
    BufferId id;
    bool framed, persistent;
  };

  // All micro-batches share a call, so what to check is gathered once per call.
  void list_buffers_of_calls() {
    for (const Call& call : plan_.calls) {
      first_buffer_.push_back(static_cast<std::uint32_t>(call_buffers_.size()));
      for (const auto* list : {&call.reads, &call.writes}) {
        for (const View& v : *list) {
          const Buffer& b = plan_.buffers[v.buffer.value];
          if (b.framed || !b.persistent)
            call_buffers_.push_back({v.buffer, b.framed, b.persistent});
        }
      }
    }
    first_buffer_.push_back(static_cast<std::uint32_t>(call_buffers_.size()));
  }

  // ---- what ranks must agree on

  struct Step {
    OpKind kind;
    std::int64_t bytes;
    bool max;
    std::uint32_t root;
    bool operator==(const Step&) const = default;
  };

  // Larger side of a collective, which all members share.
  Step step(const Call& call) const {
    const Bytes bytes = std::max(bytes_of(call.reads), bytes_of(call.writes));
    return {call.op.kind, bytes.value, call.op.reduce_max, call.op.root};
  }

  using Slots =
      std::vector<std::uint32_t>;  // slots of a program that mean one communicator or peer
  using Sequences = std::map<std::pair<std::uint32_t, Slots>, std::vector<Step>>;

  const std::vector<Step>& sequence(Sequences& cache, ProgramId p, const Slots& slots, Kind kind) {
    const auto [it, fresh] = cache.try_emplace({p.value, slots});
    if (fresh) {
      for (const Instruction& in : plan_.programs[p.value].body) {
        if (in.kind != kind) continue;
        const Call& call = plan_.calls[in.call];
        if (std::find(slots.begin(), slots.end(), call.op.slot.value) == slots.end()) continue;
        it->second.push_back(step(call));
      }
    }
    return it->second;
  }

  Slots slots_meaning(const Rank& rank, std::uint32_t target, bool peer) const {
    Slots slots;
    const Program& p = plan_.programs[rank.program.value];
    for (std::uint32_t s = 0; s < rank.slots.size(); ++s) {
      if (p.slots[s].peer == peer && rank.slots[s] == target) slots.push_back(s);
    }
    return slots;
  }

  void collectives() {
    Sequences cache;
    for (std::uint32_t c = 0; c < plan_.communicators.size(); ++c) {
      const Communicator& comm = plan_.communicators[c];
      const std::vector<Step>* first = nullptr;
      RankId first_rank;
      for (const RankId member : comm.members) {
        const Rank& rank = plan_.ranks[member.value];
        const Slots slots = slots_meaning(rank, c, false);
        const std::vector<Step>& now = sequence(cache, rank.program, slots, Kind::Collective);
        if (first == nullptr) {
          first = &now;
          first_rank = member;
          conserve_bytes(comm, rank.program, slots);
        } else if (&now != first && now != *first) {
          mismatch(comm, first_rank, *first, member, now);
        }
      }
    }
    each_rank_is_a_member();
  }

  void each_rank_is_a_member() {
    std::vector<std::vector<RankId>> sorted(plan_.communicators.size());
    for (std::size_t c = 0; c < sorted.size(); ++c) {
      sorted[c] = plan_.communicators[c].members;
      std::sort(sorted[c].begin(), sorted[c].end());
    }
    for (std::uint32_t r = 0; r < plan_.ranks.size(); ++r) {
      const Rank& rank = plan_.ranks[r];
      const Program& p = plan_.programs[rank.program.value];
      for (std::size_t s = 0; s < rank.slots.size(); ++s) {
        if (p.slots[s].peer || rank.slots[s] == SlotId::kNone) continue;
        const std::vector<RankId>& members = sorted[rank.slots[s]];
        if (!std::binary_search(members.begin(), members.end(), RankId(r))) {
          report("not-a-member", "rank " + std::to_string(r),
                 "is no member of the communicator in slot " + p.slots[s].name);
        }
      }
    }
  }

  void mismatch(const Communicator& comm, RankId a, const std::vector<Step>& x, RankId b,
                const std::vector<Step>& y) {
    std::size_t n = 0;
    while (n < x.size() && n < y.size() && x[n] == y[n]) ++n;
    const auto describe = [&](const std::vector<Step>& s) {
      if (n >= s.size()) return std::string("nothing");
      return std::string(to_string(s[n].kind)) + " of " + std::to_string(s[n].bytes) + " bytes";
    };
    report("collective-mismatch", comm.name + " #" + std::to_string(n),
           "rank " + std::to_string(a.value) + " has " + describe(x) + ", rank " +
               std::to_string(b.value) + " has " + describe(y));
  }

  void conserve_bytes(const Communicator& comm, ProgramId program, const Slots& slots) {
    const auto n = static_cast<std::int64_t>(comm.members.size());
    if (!conserving_.insert({program.value, slots, n}).second) return;
    std::vector<char> seen(plan_.calls.size(), 0);
    for (const Instruction& in : plan_.programs[program.value].body) {
      if (in.kind != Kind::Collective || seen[in.call]) continue;
      seen[in.call] = 1;
      const Call& call = plan_.calls[in.call];
      if (std::find(slots.begin(), slots.end(), call.op.slot.value) == slots.end()) continue;
      const std::int64_t read = bits_of(call.reads), written = bits_of(call.writes);
      const bool gather = call.op.kind == OpKind::AllGather,
                 scatter = call.op.kind == OpKind::ReduceScatter;
      const bool ok = gather    ? written == read * n
                      : scatter ? read == written * n
                                : read == written;
      if (!ok) {
        report("bytes-not-conserved", comm.name + " " + plan_.full_name(in),
               "reads " + std::to_string(read / 8) + " and writes " + std::to_string(written / 8) +
                   " bytes on " + std::to_string(n) + " members");
      }
    }
  }

  void messages() {
    Sequences sends, receives;
    for (std::uint32_t r = 0; r < plan_.ranks.size(); ++r) {
      const Rank& rank = plan_.ranks[r];
      const Program& p = plan_.programs[rank.program.value];
      std::vector<std::uint32_t> peers;
      for (std::size_t s = 0; s < rank.slots.size(); ++s) {
        if (p.slots[s].peer && rank.slots[s] != SlotId::kNone) peers.push_back(rank.slots[s]);
      }
      std::sort(peers.begin(), peers.end());
      peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
      for (const std::uint32_t peer : peers) {
        const Rank& other = plan_.ranks[peer];
        const auto& sent =
            sequence(sends, rank.program, slots_meaning(rank, peer, true), Kind::Send);
        const auto& got =
            sequence(receives, other.program, slots_meaning(other, r, true), Kind::Recv);
        const auto same = [](const Step& a, const Step& b) { return a.bytes == b.bytes; };
        if (sent.size() == got.size() && std::equal(sent.begin(), sent.end(), got.begin(), same))
          continue;
        report("message-mismatch", "rank " + std::to_string(r) + " to " + std::to_string(peer),
               std::to_string(sent.size()) + " sends meet " + std::to_string(got.size()) +
                   " receives of other count or size");
      }
    }
  }

  // ---- races and deadlock

  void races() {
    for (const Program& p : plan_.programs) {
      HazardTracker tracker(plan_, p, p.body);
      for (std::uint32_t i = 0; i < p.body.size(); ++i) {
        const Instruction& in = p.body[i];
        if (in.kind == Kind::Record) tracker.record(in);
        if (in.kind == Kind::Wait) tracker.wait(in);
        if (in.kind == Kind::HostWait) tracker.host_wait(in);
        if (!is_task(in.kind)) continue;
        for (const std::uint32_t earlier : tracker.before(i)) {
          report("race", at(p, i), "may run before " + at(p, earlier) + " has ended");
          tracker.order(in.stream, earlier);
        }
        tracker.add(i);
      }
    }
  }

  void deadlock() {
    for (const std::string& blocked : blocked_ranks(plan_)) {
      report("deadlock", blocked, "waits forever");
    }
  }

  const Plan& plan_;
  std::vector<Violation> violations_;
  std::vector<std::uint32_t> first_buffer_;  // by call: first row of call_buffers_
  std::vector<CallBuffer> call_buffers_;
  std::set<std::tuple<std::uint32_t, Slots, std::int64_t>>
      conserving_;  // checked by conserve_bytes
};

}  // namespace

std::vector<Violation> verify(const Plan& plan, Depth depth) { return Verifier(plan).run(depth); }

void verify_or_throw(const Plan& plan, const std::string& step, Depth depth) {
  const std::vector<Violation> violations = verify(plan, depth);
  if (violations.empty()) return;
  std::string text = "the plan is sound after step " + step;
  for (std::size_t i = 0; i < std::min<std::size_t>(5, violations.size()); ++i) {
    text += "; " + violations[i].rule + ": " + violations[i].where + ": " + violations[i].what;
  }
  invariant_broken("verify(plan)", text, __FILE__, __LINE__);
}

}  // namespace gputwin
