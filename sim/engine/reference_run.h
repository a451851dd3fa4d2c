// The reference executor's run: a rank's host, its streams, and who meets whom.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/core/check.h"
#include "sim/core/executor.h"

namespace gputwin::reference {

inline constexpr int kMaxBodies = 8;

/// Closures by time; those of equal time in the order they were added.
class Calendar {
 public:
  Ps now() const { return now_; }
  bool empty() const { return entries_.empty(); }
  void at(Ps time, std::function<void()> what) {
    GPUTWIN_CHECK(time >= now_, "nothing happens in the past");
    entries_.push(Entry{time, next_++, std::move(what)});
  }
  void step() {
    Entry entry = entries_.top();
    entries_.pop();
    now_ = entry.time;
    entry.what();
  }

 private:
  struct Entry {
    Ps time;
    std::uint64_t order;
    std::function<void()> what;
    bool operator<(const Entry& other) const {  // the queue keeps its largest on top
      return std::tie(other.time, other.order) < std::tie(time, order);
    }
  };
  std::priority_queue<Entry> entries_;
  Ps now_ = 0;
  std::uint64_t next_ = 0;
};

/// One instruction on its way through a rank.
struct Issued {
  const Instruction* instruction = nullptr;
  std::uint32_t position = 0;  // in the program: prologue, then body
  std::uint64_t number = 0;    // of the rank's tasks, in the order of issue
  int body = 0;                // -1: prologue
  Ps issuing = 0, issued = 0;  // the host began and was done with it
  Ps arrived = 0;              // its stream was free for it
  Ps start = 0;                // and its partners were there
  std::uint32_t sequence = 0;  // communication: its number in its communicator or directed pair
  std::uint32_t record = 0;    // Record, Wait: row of RankState::records
};

/// What lies on a stream: one instruction, or several adjacent grouped Sends and Recvs.
using StreamItem = std::vector<Issued>;

struct StreamState {
  std::deque<StreamItem> queue;
  bool busy = false;  // the front item is running or waiting for its partners
  int transfers = 0;  // of a running Send/Recv item, those not yet over
};

/// A kernel that runs, so that its speed can change under way.
struct RunningKernel {
  std::uint8_t stream = 0;
  double left = 0;  // picoseconds at full speed
  Ps since = 0;
  std::uint64_t entry = 0;  // its valid entry in the calendar
};

struct Interval {
  Ps start, end;
  Part part;
};

struct RankState {
  const Program* program = nullptr;
  std::uint32_t next = 0;  // position of the next instruction to issue
  int body = -1;
  bool host_done = false;
  bool host_launching = false;
  std::optional<std::uint32_t> host_waits_for;  // row of `records`
  bool host_waits_for_room = false;
  bool host_waited = false;  // for an event, and has issued nothing since
  // The launch queue is a ring: its places are freed in the order of issue.
  std::deque<bool> over;    // by task in the queue, oldest first
  std::uint64_t freed = 0;  // tasks that have left the queue
  StreamItem group;         // grouped Sends and Recvs issued so far
  std::vector<StreamState> streams;
  std::vector<bool> records;                    // every Record issued: has it happened?
  std::vector<std::uint32_t> latest, previous;  // by event: row of `records`, of the previous body
  std::map<std::uint32_t, std::uint32_t> collectives;  // by communicator: issued so far
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> pairs;  // by sender, receiver
  int active_collectives = 0;
  std::vector<RunningKernel> kernels;
  std::vector<Interval> intervals;  // for the breakdown
  std::vector<Ps> body_end;         // of its last task, by body
};

/// A collective, or a Send/Recv pair, whose parties are gathering.
struct Rendezvous {
  std::vector<std::pair<RankId, std::uint8_t>> arrived;  // rank and stream
};

inline constexpr std::uint32_t kNoRecord = 0xffffffffu;

class Run {
 public:
  Run(const Plan& plan, const CostModel& costs, const Topology& topology, const RunOptions& options,
      EventSink* sink);
  ExecutionOutcome run();

 private:
  // The host thread of a rank.
  void advance_host(RankId r);
  bool issue(RankId r, const Instruction& instruction);
  void launch(RankId r, const Instruction& instruction);
  void launched(RankId r, Issued task);
  bool next_body(RankId r);
  bool in_group_with_next(RankId r) const;
  std::uint32_t take_sequence(RankId r, const Instruction& instruction);
  // Streams.
  void advance_stream(RankId r, std::uint8_t s);
  void start(RankId r, std::uint8_t s);
  void start_kernel(RankId r, std::uint8_t s, Issued& task);
  void start_copy(RankId r, std::uint8_t s, const Issued& task);
  void join_collective(RankId r, std::uint8_t s, const Issued& task);
  void join_transfer(RankId r, std::uint8_t s, const Issued& task);
  void finish_item(RankId r, std::uint8_t s);
  void finish_task(RankId r, const Issued& task);
  void happen(RankId r, std::uint32_t record);
  // Interference.
  double kernel_speed(RankId r, std::uint8_t s) const;
  void change_active_collectives(RankId r, int by);
  void schedule_kernel_end(RankId r, std::uint8_t s);
  // Costs.
  Ps kernel_time(RankId r, const Issued& task) const;
  Ps collective_time(OpKind kind, Bytes bytes, const std::vector<RankId>& members);
  void report_flows(OpKind kind, Bytes bytes, const std::vector<RankId>& members, Ps start, Ps end);
  // Figures.
  Part part_of(RankId r, const Instruction& instruction) const;
  void body_left(int body);
  Deadlock deadlock() const;
  Deadlock::Blocked blocked(RankId r) const;
  std::string waiting_for(RankId r, const StreamItem& item) const;
  Breakdown breakdown(const RankState& rank, Ps begin, Ps end) const;
  Execution execution() const;
  bool cancelled() const;

  const Plan& plan_;
  const CostModel& costs_;
  const Topology& topology_;
  EventSink* sink_;
  double time_limit_s_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  Calendar calendar_;
  std::vector<RankState> ranks_;
  std::vector<HostCost> host_costs_;
  std::vector<double> slowdowns_;  // by rank: of kernels under a collective
  std::map<std::pair<std::uint32_t, std::uint32_t>, Rendezvous> collectives_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, Rendezvous> transfers_;
  std::map<std::tuple<OpKind, std::int64_t, std::vector<RankId>>, CollectiveSchedule> schedules_;
  std::vector<std::int64_t> open_;  // by body: ranks still issuing it plus its tasks not over
  std::vector<Ps> body_end_;        // of completed bodies
  int bodies_wanted_;
  std::uint64_t next_entry_ = 0;  // of running kernels
  bool stop_ = false, converged_ = true;
  EngineStats stats_;
};

}  // namespace gputwin::reference
