// Collectives and messages of a plan through NCCL, with a limit on waiting.
#pragma once

#include <span>

#include "sim/core/op.h"
#include "validation/executors/cuda/device.h"

namespace gputwin::cuda {

/// One rank's member of an NCCL communicator. Calls only enqueue; `finish` waits.
class Communicator {
 public:
  /// Joins `members` processes or threads that share `id`, as member `index` on the current GPU.
  Communicator(const ncclUniqueId& id, int members, int index);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Enqueues a collective of op.h on `count` elements: of the whole for AllReduce, Broadcast and
  /// AllToAll, of one shard for AllGather and ReduceScatter. In place where both are equal.
  void collective(OpKind kind, const void* from, void* to, std::size_t count, ncclDataType_t type,
                  bool maximum, int root, const Stream& stream);
  void send(const void* from, std::size_t bytes, int peer, const Stream& stream);
  void receive(void* to, std::size_t bytes, int peer, const Stream& stream);

  /// Waits for `event`, recorded after calls above. On an error of a member, or after `limit_s`,
  /// aborts the communicator, which ends its kernels, and throws DeviceError with `what`.
  void finish(const Event& event, double limit_s, const std::string& what);
  bool aborted() const { return comm_ == nullptr; }

 private:
  void abort();
  ncclComm_t comm_ = nullptr;
  int members_ = 0;
};

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

ncclUniqueId new_id();

/// NCCL wants one GPU for each rank of a communicator: refuses a list that names one twice, or one
/// that is not there.
void need_distinct(std::span<const int> devices);

}  // namespace gputwin::cuda
