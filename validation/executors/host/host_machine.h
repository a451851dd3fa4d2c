// The processor as a machine that plans run on: one thread per stream, memory per rank, collectives
// and messages through shared memory, links as slow as asked.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "validation/executors/host/core_sets.h"
#include "validation/executors/host/host_kernels.h"
#include "validation/executors/real_run.h"

namespace gputwin::executors {

/// How slow a link is. A rate of 0: as fast as memory is.
struct Link {
  BytesPerSecond rate{};
  Seconds latency{};
};

struct HostOptions {
  int bodies = 3;          // the first warms caches and is not counted
  double time_out_s = 60;  // nothing on the machine has ended for so long: report who waits
  Link collectives{};      // of one communicator, by the bytes a ring moves per member
  Link messages{};         // of one ordered pair of ranks
  Link copies{};           // between two arenas of a rank, in one direction
  std::function<bool(double)> progress{};  // part done; false cancels. Called by run()'s thread
  double time_limit_s = 0;                 // wall clock of all bodies; 0: none
  /// Called before each task, on the thread of its stream. For tests of what goes wrong.
  std::function<void(RankId, const Instruction&)> before_task{};
  bool poison = false;        // fresh memory holds NaN
  bool read_values = false;   // gradients and weights at the end, not the loss alone
  InterpretOptions values{};  // initial values and the optimizer's constants
};

/// Until `end`, and what the computer needs to wake the thread: the kernel does not gather its
/// timer with later ones, as it may by 50 us.
void sleep_until(Clock::time_point end);

class HostMachine {
 public:
  HostMachine(const interpreted::World& world, const HostOptions& options);

  struct Signal {
    bool happened = false;  // guarded by the machine's mutex
  };
  /// Who may wait: a stream of a rank, or its host thread.
  struct Actor {
    RankId rank{};
    std::optional<std::uint8_t> stream;            // none: the host thread
    const Instruction* running = nullptr;          // what the actor is at
    std::function<std::string()> waiting_for;      // empty: it runs or is idle
    const std::function<bool()>* ready = nullptr;  // while it waits or is idle
    std::condition_variable woken;
  };

  using Lock = std::unique_lock<std::mutex>;
  Lock lock() { return Lock(mutex_); }
  /// Says what an actor is at, for the report of a time-out; null: nothing.
  void at(Actor& actor, const Instruction* instruction);
  Actor& add_actor(RankId rank, std::optional<std::uint8_t> stream);
  /// Returns when `ready`. Throws Stopped if the machine stops first, as it does when nothing on it
  /// has ended for the time-out.
  void await(Lock& lock, Actor& actor, std::function<std::string()> waiting_for,
             const std::function<bool()>& ready);
  /// As await, without a time-out: for streams with nothing to do.
  void idle(Lock& lock, Actor& actor, const std::function<bool()>& ready);
  /// Something ended: wakes those who waited for it.
  void progressed();
  void fail(std::exception_ptr error);
  /// Ends the run early: all that waits throws Stopped.
  void stop();
  enum class Who : std::uint8_t { Host, Stream };
  /// A thread of a host or stream has ended.
  void left(Who who);
  /// Returns when `threads` of them have ended, or false once `patience` has passed without that.
  /// Asks `go_on` every tenth of a second; when that says no, stops the machine.
  bool all_left(Who who, std::size_t threads, std::optional<Clock::duration> patience,
                const std::function<bool(int bodies_begun)>& go_on);

  void collective(Actor& actor, CommunicatorId group, std::uint64_t sequence, const HostTask& task);
  void transfer(Actor& actor, const std::vector<HostMessage>& messages);
  void kernel(Actor& actor, const HostTask& task);
  /// Returns when all ranks are here.
  void meet(Actor& actor, int body);
  void record(const Ran& ran);
  Ps now() const;

  const Plan& plan() const { return world_.plan; }
  const interpreted::World& world() const { return world_; }
  const HostOptions& options() const { return options_; }
  const std::vector<Ran>& ran() const { return ran_; }
  const std::optional<Deadlock>& deadlock() const { return deadlock_; }
  /// Who is still at work: of the report if there is one.
  Deadlock hung();
  std::exception_ptr error() const { return error_; }

 private:
  struct Meeting {
    // By member. Copies: a member that gives up does not take its operands away from the others.
    std::vector<std::optional<HostTask>> tasks;
    std::size_t here = 0, left = 0;
    bool done = false;
  };
  struct Pair {
    std::optional<HostMessage> send, receive;
    bool taken = false, done = false;
    int left = 0;
  };
  using PairKey = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>;

  Deadlock who_waits() const;
  void wake_ready();
  void wake_all();
  void report_time_out();
  /// When a transfer of `bytes` that starts now has passed `link`, behind those before it.
  Clock::time_point reserve(const Link& link, Clock::time_point& free_at, double bytes);
  std::string missing_members(CommunicatorId group, std::uint64_t sequence,
                              const Meeting& meeting) const;

  const interpreted::World& world_;
  const HostOptions& options_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable changed_;  // of the thread that watches the run
  Clock::time_point last_progress_ = Clock::now();
  bool stopped_ = false;
  std::deque<Actor> actors_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, Meeting> meetings_;
  std::map<PairKey, Pair> pairs_;
  std::map<std::uint32_t, Clock::time_point> group_free_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Clock::time_point> pair_free_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, Clock::time_point> copy_free_;
  std::map<int, std::size_t> met_;     // by body
  std::array<std::size_t, 2> left_{};  // by Who
  std::vector<Ran> ran_;
  std::optional<Deadlock> deadlock_;
  std::exception_ptr error_;
};

/// The device of one rank: its streams' threads, its memory. For Walker.
class HostDevice {
 public:
  using Event = std::shared_ptr<HostMachine::Signal>;
  using Memory = HostMemory;

  HostDevice(HostMachine& machine, RankId rank, const CoreSet& cores);
  ~HostDevice();  // closes, and joins the streams' threads
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  Event record(std::uint8_t stream);
  void wait(std::uint8_t stream, Event event, const Instruction& instruction);
  void host_wait(const Event& event, const Instruction& instruction);
  Memory allocate(BufferId buffer);
  void launch(std::uint8_t stream, HostTask task);
  void collective(std::uint8_t stream, CommunicatorId group, std::uint64_t sequence, HostTask task);
  void transfers(std::uint8_t stream, std::vector<HostMessage> messages);
  void meet(int body);
  /// Tells the streams' threads to end when they have nothing to do.
  void close();
  std::size_t threads() const { return streams_.size(); }
  const CoreSet& cores() const { return cores_; }
  std::int64_t peak_bytes() const { return pool_.peak_bytes(); }

 private:
  using Work = std::function<void(HostMachine::Actor&)>;
  struct Stream {
    std::deque<Work> queue;
    std::size_t unfinished = 0;
    std::thread worker;
  };
  void push(std::uint8_t stream, Work work);
  /// Runs `body` as what `instructions` do, and notes when.
  void run_task(std::uint8_t stream, HostMachine::Actor& actor, int body,
                const std::vector<const Instruction*>& instructions,
                const std::function<void()>& work);
  void serve(Stream& stream, HostMachine::Actor& actor, const std::vector<int>& cores);

  HostMachine& machine_;
  RankId rank_;
  CoreSet cores_;
  HostMachine::Actor& host_;
  MemoryPool pool_;
  bool closing_ = false;
  std::deque<Stream> streams_;
};

}  // namespace gputwin::executors
