// Collectives and messages of a plan through NCCL.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/core/op.h"
#include "validation/executors/cuda/device.h"

namespace gputwin::cuda {

/// One rank's member of an NCCL communicator. Calls only enqueue.
class Communicator {
 public:
  Communicator(ncclComm_t comm, int members) : comm_(comm), members_(members) {}
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Enqueues a collective of op.h on `count` elements: of the whole for AllReduce, Broadcast and
  /// AllToAll, of one shard for AllGather and ReduceScatter. In place where both are equal.
  void collective(OpKind kind, const void* from, void* to, std::size_t count, ncclDataType_t type,
                  bool maximum, int root, const Stream& stream);
  void send(const void* from, std::size_t bytes, int peer, const Stream& stream);
  void receive(void* to, std::size_t bytes, int peer, const Stream& stream);

  /// What NCCL says went wrong since, in its words; empty: nothing.
  std::string trouble() const;
  /// Ends the communicator's kernels, whether or not all members have joined. Other threads may be
  /// inside its calls; later ones throw.
  void abort();
  bool aborted() const { return comm_ == nullptr; }

 private:
  ncclComm_t open() const;

  std::atomic<ncclComm_t> comm_;
  int members_;
};

/// A member on each of `devices`, in their order, all of this process.
std::vector<std::unique_ptr<Communicator>> join_all(std::span<const int> devices);

/// Starts and ends a group of sends and receives that run together (kGrouped of plan.h).
class Group {
 public:
  Group() { GPUTWIN_CUDA(ncclGroupStart()); }
  /// Without end() the group is closed and its error dropped: an exception is on its way.
  ~Group() {
    if (open_) static_cast<void>(ncclGroupEnd());
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  void end() {
    open_ = false;
    GPUTWIN_CUDA(ncclGroupEnd());
  }

 private:
  bool open_ = true;
};

/// NCCL wants one GPU for each rank of a communicator: refuses a list that names one twice, or one
/// that is not there.
void need_distinct(std::span<const int> devices);

}  // namespace gputwin::cuda
