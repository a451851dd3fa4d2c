// The stream core: hosts, streams, events, rendezvous and transfers of all simulated ranks, in
// picoseconds.
//
//   rank r: host -issues-> stream 0: kernel kernel record    at most queue_depth tasks ahead
//                       +-> stream 1: wait all_reduce -> meeting of all members -> flows
//
// The core knows no clock. Its owner (SimgridExecutor) asks for the next moment at which something
// must happen on the shared clock (`advance`), goes there and says so (`at`), and reports the ends
// of flows it was given (`flow_done`). Whatever needs no other rank and no shared link is computed
// at the rank's own local time. Nothing that is still undetermined can happen before the shared
// clock, so local times never lie behind it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/core/executor.h"
#include "sim/engine/compiled_program.h"
#include "sim/engine/fold.h"
#include "sim/engine/transfer_table.h"

namespace gputwin::engine {

inline constexpr std::uint32_t kMaxBodies = 8;

/// A flow that has to share its links: SimGrid runs it and the core is told when it ends.
struct SharedFlow {
  std::uint64_t id = 0;
  std::span<const LinkId> links;
  double bytes = 0;
  double rate_cap = 0;  // bytes per second; 0: none
};

/// Why a stream does not go on.
enum class Block : std::uint8_t {
  Ready,
  Issue,    // the host has not issued its next task
  Event,    // a Record has not happened
  Meeting,  // partners are missing or the transfer is under way
  Running,  // a kernel whose end may still move
  Finished
};

/// What the time of a stream up to some moment went to, the latest first: [start[0], moment) to
/// part[0], [start[1], start[0]) to part[1], [start[2], start[1]) to part[2], all before to
/// `earlier`. Three intervals hold what a compute stream usually waits for: a collective, the
/// message it needed, and the peer that was late to send it.
struct History {
  std::array<Ps, 3> start{};
  std::array<Part, 3> part{Part::Bubble, Part::Bubble, Part::Bubble};
  Part earlier = Part::Bubble;

  /// Nothing but a bubble before `moment`. This also describes what ends with a kernel of the
  /// compute stream: no later gap of that stream reaches back before it.
  static History none(Ps moment) {
    History history;
    history.start = {moment, moment, moment};
    return history;
  }
  /// From `from`, where it ended so far, time goes to `what`. If there are too many intervals, the
  /// oldest joins what was before it; unless that was something else and the next is shorter: then
  /// that one does, so that a short message does not stand for a long wait.
  void add(Part what, Ps from) {
    if (part[0] == what) return;
    if (part[2] == earlier || start[0] - start[1] >= start[1] - start[2]) {
      earlier = part[2];
      start[2] = start[1];
      part[2] = part[1];
    }
    start[1] = start[0];
    part[1] = part[0];
    start[0] = from;
    part[0] = what;
  }
};

struct StreamState {
  Ps free = 0;  // when its last operation ended
  std::uint32_t pc = 0;
  std::uint16_t body = 0;  // 0: prologue, then 1, 2, …
  Block block = Block::Ready;
  bool present = false;  // has operations in the body
  History history;       // up to `free`; not kept for the compute stream
  // The operation under way.
  std::uint32_t version = 0;  // of its entry in the calendar
  std::uint32_t open_transfers = 0;
  Ps op_start = 0, op_end = 0;
  double left = 0;  // kernel: picoseconds of work at full speed
  Ps since = 0;     // kernel: from when `left` counts
};

struct EventTime {
  Ps time = 0;
  History history;  // of the stream that recorded it, up to `time`
};

struct HostState {
  Ps time = 0;
  std::uint32_t pc = 0, task = 0, next_wait = 0, next_launches = 0;
  std::uint16_t body = 0;
  Block block = Block::Ready;  // Ready, Issue (no room), Event or Finished
  bool waited = false;         // for an event, and has issued nothing since
};

struct RankState {
  RankId rank{};
  const CompiledProgram* program = nullptr;
  std::uint32_t first_stream = 0, first_site = 0;
  std::size_t first_event = 0, first_issue = 0;
  std::uint32_t depth = 0, issue_mask = 0;
  HostState host;
  std::uint32_t awake = 0, on_issue = 0, on_event = 0;  // streams
  std::uint32_t present_streams = 0;                    // streams with operations in the body
  bool queued = false;
  bool careful = false;  // kernels may be slowed by collectives under them
  std::int32_t active_collectives = 0;
  double speed_under_collective = 1.0;
  Breakdown parts{};  // of the compute stream up to its `free`
};

/// Adds the gap [from, until) of a compute stream to `parts`, by the history of what ended it.
void split_gap(Breakdown& parts, Ps from, Ps until, const History& why);
Part part_of_kernel(const StreamOp& op);

/// A rank at the end of a body.
struct BodyRecord {
  Breakdown parts{};
  Ps frontier = 0;  // of the compute stream
  Ps end = 0;       // of all streams
  History tail;     // of the stream that ended last
  std::uint32_t streams_done = 0;
};

/// Who came to a meeting: an operation of a stream. `state`: row of the simulated rank.
struct Arrival {
  std::uint32_t state = 0;
  std::uint8_t stream = 0;
};

/// One transfer: first its partners gather, then its flows move.
struct Meeting {
  std::uint32_t channel = 0, sequence = 0, pattern = kNoRow;
  std::uint32_t next = kNoRow;  // in the channel's list of open meetings
  std::uint32_t body = 0, version = 0, simgrid_flows = 0;
  bool interferes = false;  // slows kernels of its ranks while it is active
  bool mismatch = false;    // partners disagree about what it is: it never starts
  bool lone_done = false;   // the flows outside SimGrid have ended
  Ps ready = 0, start = 0, lone_end = 0;
  std::vector<Arrival> arrivals;
  std::vector<bool> promoted;  // by flow: in SimGrid, or over; empty: none
  std::vector<Ps> lone_ends;   // by flow: its end if it stays alone; empty: start + alone
};

class StreamCore {
 public:
  StreamCore(const Plan& plan, const CostModel& costs, const Topology& topology,
             const Folding& folding, const RunOptions& options, EventSink* sink);

  /// Runs every rank from time 0 as far as it goes alone.
  void begin();
  /// Does what needs no shared link, up to `horizon` (the next end of a SimGrid flow). Returns the
  /// next moment at which something must happen on the shared clock; none: nothing more will, by
  /// itself.
  std::optional<Ps> advance(Ps horizon);
  /// Does everything due at `now`. Flows that must share links are left in `started`.
  void at(Ps now);
  void flow_done(std::uint64_t id, Ps now);
  std::vector<SharedFlow>& started() { return started_; }
  /// Flows in SimGrid that nobody shares a link with any more: it may hand them back by
  /// `flow_alone`.
  std::vector<std::uint64_t>& alone_again() { return alone_again_; }
  /// Takes a flow back from SimGrid with the bytes it still has to move. False: it is as good as
  /// over and stays where it is.
  bool flow_alone(std::uint64_t id, double bytes, Ps now);

  bool stopped() const { return stopped_ || cancelled_; }
  bool cancelled() const { return cancelled_; }
  /// True if all bodies that were asked for have ended on every rank.
  bool complete() const { return stopped_; }
  const TransferTable& transfers() const { return transfers_; }

  Execution result(const Plan& plan, const Folding& folding) const;
  Deadlock deadlock() const;

 private:
  enum class EventKind : std::uint8_t { KernelEnd, LoneEnd, Activate, Start };
  struct Entry {
    Ps time;
    EventKind kind;
    std::uint32_t id;  // kernel: row of the stream; else the meeting
    std::uint32_t version;
    bool operator>(const Entry& other) const {
      if (time != other.time) return time > other.time;
      if (kind != other.kind) return kind > other.kind;
      return id > other.id;
    }
  };
  /// Who has a link to himself: a flow of a meeting until `end`; or flows in SimGrid share it.
  struct Occupant {
    Ps end = 0;
    std::uint32_t meeting = kNoRow, flow = 0, simgrid_flows = 0;
    std::uint64_t simgrid_ids = 0;  // exclusive or of their ids: of a single one, its id
  };

  // Set-up.
  void compile_programs(const CostModel& costs, const Folding& folding);
  void lay_out_ranks(const CostModel& costs, const Folding& folding);

  // Ranks.
  void wake(std::uint32_t state);
  void drain();
  void run_rank(std::uint32_t state);
  bool host_can_run(const RankState& rank) const;
  void run_host(RankState& rank);
  bool host_passes_wait(RankState& rank);
  void run_stream(RankState& rank, std::uint8_t s);
  bool end_of_section(RankState& rank, StreamState& stream, std::uint8_t s);
  void end_of_body(RankState& rank, StreamState& stream, std::uint8_t s);
  bool run_kernel(RankState& rank, StreamState& stream, const StreamOp& op, std::uint8_t s);
  bool run_wait(RankState& rank, StreamState& stream, const StreamOp& op, std::uint8_t s);
  void run_record(RankState& rank, StreamState& stream, const StreamOp& op, std::uint8_t s);
  bool arrive(RankState& rank, StreamState& stream, const StreamOp& op, std::uint8_t s);
  bool recorded(const RankState& rank, const EventWait& wait, std::uint16_t body) const;
  const EventTime& event_time(const RankState& rank, const EventWait& wait,
                              std::uint16_t body) const;

  // Kernels that may be slowed.
  bool may_be_slowed(const RankState& rank, std::uint8_t s) const;
  Ps kernel_time(const RankState& rank, const StreamOp& op) const;
  void schedule_kernel(std::uint32_t row, const RankState& rank, std::uint8_t s);
  double speed(const RankState& rank, std::uint8_t s) const;
  void finish_kernel(std::uint32_t row, Ps now);
  void activate(std::uint32_t m, std::int32_t by, Ps now);

  // Meetings and transfers.
  void join(RankState& rank, std::uint8_t s, const Binding& binding, const Site& site,
            std::uint32_t sequence, bool interferes);
  std::uint32_t open_meeting(std::uint32_t channel, std::uint32_t sequence);
  void close_meeting(std::uint32_t m);
  void launch(std::uint32_t m);
  void start_flows(std::uint32_t m, Ps now);
  bool must_share(const Meeting& meeting, const PatternFlow& flow, Ps now) const;
  bool must_share(std::uint32_t m, Ps now) const;
  void share(std::uint32_t m, std::uint32_t flow, double bytes);
  void promote_occupants(const PatternFlow& flow, Ps now);
  void promote(std::uint32_t m, std::uint32_t flow, Ps now);
  void promote_one(std::uint32_t m, std::uint32_t flow, Ps now);
  void leave_simgrid(std::uint64_t id);
  void note_alone(std::uint64_t id);
  void occupy(std::uint32_t m, std::uint32_t flow, Ps end);
  Ps lone_end_of(const Meeting& meeting, std::uint32_t flow) const;
  void schedule_lone_end(std::uint32_t m, Ps now);
  void finish_transfer(std::uint32_t m, Ps end);
  void finish_communication(Arrival arrival, Ps ready, Ps end);
  void report_flow(const Meeting& meeting, const PatternFlow& flow, Ps start, Ps end);
  void report_lone_flows(Meeting& meeting);

  // Figures.
  void finish_task(RankState& rank, StreamState& stream, std::uint32_t task,
                   std::uint32_t instruction, Part what, Ps start, Ps end);
  void body_ended(std::uint16_t body);
  Breakdown breakdown(std::size_t state, Ps iteration) const;
  void look_around();
  std::string stuck_on(const RankState& rank, Deadlock::Blocked& blocked) const;
  std::string missing_partner(const RankState& rank, const StreamOp& op, std::uint16_t body) const;

  void push(Ps time, EventKind kind, std::uint32_t id, std::uint32_t version);
  void handle(const Entry& entry);
  StreamState& stream_of(const RankState& rank, std::uint8_t s) {
    return streams_[rank.first_stream + s];
  }
  const StreamState& stream_of(const RankState& rank, std::uint8_t s) const {
    return streams_[rank.first_stream + s];
  }
  std::uint32_t task_number(const RankState& rank, std::uint16_t body, std::uint32_t task) const {
    return body > 1 ? task + (body - 1u) * rank.program->body_tasks : task;
  }
  Ps& issue_or_end(const RankState& rank, std::uint32_t task) {
    return issues_[rank.first_issue + (task & rank.issue_mask)];
  }
  BodyRecord& record_of(const RankState& rank, std::uint16_t body) {
    return records_[static_cast<std::size_t>(&rank - ranks_.data()) * (bodies_wanted_ + 1u) + body];
  }

  const Plan& plan_;
  const Topology& topology_;
  const RunOptions options_;
  EventSink* sink_;
  const bool calendar_;     // every task ends through the calendar
  const bool all_simgrid_;  // every flow goes through SimGrid
  std::vector<std::unique_ptr<CompiledProgram>> programs_;
  std::vector<const CompiledProgram*> program_of_;  // by simulated rank
  TransferTable transfers_;
  std::vector<RankState> ranks_;  // simulated ones, ascending
  std::vector<StreamState> streams_;
  std::vector<std::uint32_t> rank_of_stream_;
  const std::vector<std::vector<RankId>>& participants_;  // by communicator
  std::vector<Binding> bindings_;
  std::vector<EventTime> events_;
  /// By rank, task modulo queue depth: ~issue time until the task has run, then its end.
  std::vector<Ps> issues_;
  std::vector<Meeting> meetings_;
  std::vector<std::uint32_t> free_meetings_;
  std::vector<Occupant> occupants_;  // by link
  std::vector<Entry> calendar_entries_;
  std::vector<std::uint32_t> work_;
  std::vector<SharedFlow> started_;
  std::vector<std::uint64_t> alone_again_;

  std::uint32_t bodies_wanted_ = 1;
  std::vector<BodyRecord> records_;                  // by simulated rank, body (0: prologue)
  std::vector<std::uint32_t> ranks_ended_;           // by body
  std::vector<Ps> body_end_;                         // of complete bodies; [0]: prologue
  std::vector<std::int64_t> flows_, simgrid_flows_;  // by body
  bool stopped_ = false, cancelled_ = false, converged_ = true;
  std::uint32_t bodies_done_ = 0;
  std::uint64_t steps_ = 0, next_look_ = 0;
  double all_steps_ = 1;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace gputwin::engine
