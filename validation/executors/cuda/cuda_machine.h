// GPUs as a machine that plans run on: one thread and one GPU for each rank; CUDA streams, events
// and memory; NCCL between ranks. Everything is enqueued as the host issues it, nothing is waited
// for but what the plan says.
//
// Work of the host's processor (CPU Adam) goes through cudaLaunchHostFunc into a stream of its own:
// it keeps its place among copies and events without threads of ours, and its time is measured as a
// kernel's is. The driver may run such work of several streams one after the other.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/core/run_result.h"
#include "validation/executors/cuda/communicator.h"
#include "validation/executors/cuda/cuda_kernels.h"
#include "validation/executors/cuda/cuda_memory.h"
#include "validation/executors/cuda/cuda_options.h"
#include "validation/executors/host/host_machine.h"
#include "validation/executors/walker.h"

namespace gputwin::executors {

using CudaOperand = Operand<std::shared_ptr<CudaStay>>;
using CudaTask = Task<std::shared_ptr<CudaStay>>;
using CudaMessage = Message<std::shared_ptr<CudaStay>>;

class CudaDevice;

/// What the ranks of a run share.
class CudaMachine {
 public:
  /// Joins NCCL's communicators: of every communicator that a collective of the plan uses; and of
  /// every ordered pair of ranks that sends, so that messages of one pair wait for no others. Pairs
  /// whose messages are grouped share one: NCCL runs together what is of one communicator.
  CudaMachine(const interpreted::World& world, const CudaOptions& options, std::vector<int> gpus);

  cuda::Communicator& member(CommunicatorId group, RankId rank);
  /// The member of `rank`, and what that communicator calls its `peer`.
  struct MessageEnd {
    cuda::Communicator& member;
    int peer;
  };
  MessageEnd message_end(RankId rank, const CudaMessage& message);
  /// Returns when all ranks are here; throws Stopped if the machine stops first.
  void meet(int body);
  /// Something on a GPU ended.
  void progressed() { last_progress_ = Clock::now().time_since_epoch().count(); }
  void fail(std::exception_ptr error);
  void stop();
  void throw_if_stopped() const;
  void left();
  /// Returns when `hosts` threads have left, or false if some have not `patience` after the machine
  /// stopped. Meanwhile asks `go_on` some times a second, with the number of bodies begun, and
  /// looks for time-outs and NCCL's errors.
  bool all_left(std::size_t hosts, Clock::duration patience, const std::function<bool(int)>& go_on);

  void add(CudaDevice& device) { devices_.push_back(&device); }
  std::string missing_members(CommunicatorId group, std::uint64_t sequence) const;
  std::string missing_end(const CudaMessage& message) const;
  Deadlock who_waits() const;
  Ps now() const;

  const Plan& plan() const { return world_.plan; }
  const interpreted::World& world() const { return world_; }
  const CudaOptions& options() const { return options_; }
  const std::optional<Deadlock>& deadlock() const { return deadlock_; }
  std::exception_ptr error() const { return error_; }

 private:
  using PairKey = std::pair<std::uint32_t, std::uint32_t>;  // from, to
  /// Ranks that exchange messages in one communicator, in ascending order.
  struct Circle {
    std::vector<std::uint32_t> ranks;
    std::vector<std::unique_ptr<cuda::Communicator>> members;
    int index(std::uint32_t rank) const;
  };
  void join_groups();
  void join_circles();
  void look();
  void abort_communication();

  const interpreted::World& world_;
  const CudaOptions& options_;
  std::vector<int> gpus_;  // by rank
  const Clock::time_point start_ = Clock::now();
  std::vector<std::vector<std::unique_ptr<cuda::Communicator>>> groups_;  // by member
  std::vector<Circle> circles_;
  std::map<PairKey, std::size_t> circle_of_;
  std::vector<CudaDevice*> devices_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<Clock::rep> last_progress_{Clock::now().time_since_epoch().count()};
  std::atomic<bool> stopped_{false};
  bool aborted_ = false;
  std::map<int, std::size_t> met_;  // by body
  std::size_t left_ = 0;
  std::optional<Deadlock> deadlock_;
  std::exception_ptr error_;
};

}  // namespace gputwin::executors
