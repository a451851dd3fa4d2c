#include "validation/executors/cuda/communicator.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace gputwin::cuda {

ncclUniqueId new_id() {
  ncclUniqueId id{};
  GPUTWIN_CUDA(ncclGetUniqueId(&id));
  return id;
}

void need_distinct(std::span<const int> devices) {
  const int count = device_count();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (devices[i] < 0 || devices[i] >= count) {
      throw DeviceError("rank " + std::to_string(i) + " wants GPU " + std::to_string(devices[i]) +
                        ", and this machine has " + std::to_string(count));
    }
    const auto end = devices.begin() + static_cast<std::ptrdiff_t>(i);
    const auto other = std::find(devices.begin(), end, devices[i]);
    if (other != end) {
      throw DeviceError("ranks " + std::to_string(other - devices.begin()) + " and " +
                        std::to_string(i) + " share GPU " + std::to_string(devices[i]) +
                        ": NCCL wants a GPU for each rank");
    }
  }
}

Communicator::Communicator(const ncclUniqueId& id, int members, int index) : members_(members) {
  GPUTWIN_CUDA(ncclCommInitRank(&comm_, members, id, index));
}

Communicator::~Communicator() {
  if (comm_ != nullptr) static_cast<void>(ncclCommDestroy(comm_));
}

void Communicator::abort() {
  const ncclComm_t comm = comm_;
  comm_ = nullptr;
  GPUTWIN_CUDA(ncclCommAbort(comm));
}

void Communicator::collective(OpKind kind, const void* from, void* to, std::size_t count,
                              ncclDataType_t type, bool maximum, int root, const Stream& stream) {
  if (aborted()) throw DeviceError("the communicator has been aborted");
  const ncclRedOp_t reduce = maximum ? ncclMax : ncclSum;
  if (kind == OpKind::AllReduce) {
    GPUTWIN_CUDA(ncclAllReduce(from, to, count, type, reduce, comm_, stream.get()));
  } else if (kind == OpKind::AllGather) {
    GPUTWIN_CUDA(ncclAllGather(from, to, count, type, comm_, stream.get()));
  } else if (kind == OpKind::ReduceScatter) {
    GPUTWIN_CUDA(ncclReduceScatter(from, to, count, type, reduce, comm_, stream.get()));
  } else if (kind == OpKind::Broadcast) {
    GPUTWIN_CUDA(ncclBroadcast(from, to, count, type, root, comm_, stream.get()));
  } else if (kind == OpKind::AllToAll) {
    const auto members = static_cast<std::size_t>(members_);
    if (count % members != 0) throw DeviceError("an all-to-all of unequal parts");
    GPUTWIN_CUDA(ncclAlltoAll(from, to, count / members, type, comm_, stream.get()));
  } else {
    throw DeviceError("this kind is no collective");
  }
}

void Communicator::send(const void* from, std::size_t bytes, int peer, const Stream& stream) {
  if (aborted()) throw DeviceError("the communicator has been aborted");
  GPUTWIN_CUDA(ncclSend(from, bytes, ncclUint8, peer, comm_, stream.get()));
}

void Communicator::receive(void* to, std::size_t bytes, int peer, const Stream& stream) {
  if (aborted()) throw DeviceError("the communicator has been aborted");
  GPUTWIN_CUDA(ncclRecv(to, bytes, ncclUint8, peer, comm_, stream.get()));
}

void Communicator::finish(const Event& event, double limit_s, const std::string& what) {
  if (aborted()) throw DeviceError("the communicator has been aborted");
  const auto start = std::chrono::steady_clock::now();
  while (!event.done()) {
    ncclResult_t state = ncclSuccess;
    GPUTWIN_CUDA(ncclCommGetAsyncError(comm_, &state));
    const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - start;
    const bool broken = state != ncclSuccess && state != ncclInProgress;
    if (broken || gone.count() > limit_s) {
      abort();
      throw DeviceError(what +
                        (broken ? std::string(": ") + ncclGetErrorString(state)
                                : " did not end within " + std::to_string(limit_s) +
                                      " s: a member has not joined") +
                        "; the communicator was aborted");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace gputwin::cuda
