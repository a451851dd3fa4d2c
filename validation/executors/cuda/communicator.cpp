#include "validation/executors/cuda/communicator.h"

#include <algorithm>

namespace gputwin::cuda {

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

std::vector<std::unique_ptr<Communicator>> join_all(std::span<const int> devices) {
  const int members = static_cast<int>(devices.size());
  std::vector<ncclComm_t> made(devices.size());
  GPUTWIN_CUDA(ncclCommInitAll(made.data(), members, devices.data()));
  std::vector<std::unique_ptr<Communicator>> joined;
  for (const ncclComm_t comm : made) {
    joined.push_back(std::make_unique<Communicator>(comm, members));
  }
  return joined;
}

Communicator::~Communicator() {
  if (comm_ != nullptr) static_cast<void>(ncclCommDestroy(comm_));
}

ncclComm_t Communicator::open() const {
  const ncclComm_t comm = comm_;
  if (comm == nullptr) throw DeviceError("the communicator has been aborted");
  return comm;
}

void Communicator::abort() {
  const ncclComm_t comm = comm_.exchange(nullptr);
  if (comm != nullptr) GPUTWIN_CUDA(ncclCommAbort(comm));
}

std::string Communicator::trouble() const {
  const ncclComm_t comm = comm_;
  if (comm == nullptr) return "";
  ncclResult_t state = ncclSuccess;
  GPUTWIN_CUDA(ncclCommGetAsyncError(comm, &state));
  const bool fine = state == ncclSuccess || state == ncclInProgress;
  return fine ? "" : std::string(ncclGetErrorString(state)) + ", " + ncclGetLastError(comm);
}

void Communicator::collective(OpKind kind, const void* from, void* to, std::size_t count,
                              ncclDataType_t type, bool maximum, int root, const Stream& stream) {
  const ncclComm_t comm = open();
  const ncclRedOp_t reduce = maximum ? ncclMax : ncclSum;
  if (kind == OpKind::AllReduce) {
    GPUTWIN_CUDA(ncclAllReduce(from, to, count, type, reduce, comm, stream.get()));
  } else if (kind == OpKind::AllGather) {
    GPUTWIN_CUDA(ncclAllGather(from, to, count, type, comm, stream.get()));
  } else if (kind == OpKind::ReduceScatter) {
    GPUTWIN_CUDA(ncclReduceScatter(from, to, count, type, reduce, comm, stream.get()));
  } else if (kind == OpKind::Broadcast) {
    GPUTWIN_CUDA(ncclBroadcast(from, to, count, type, root, comm, stream.get()));
  } else if (kind == OpKind::AllToAll) {
    const auto members = static_cast<std::size_t>(members_);
    if (count % members != 0) throw DeviceError("an all-to-all of unequal parts");
    GPUTWIN_CUDA(ncclAlltoAll(from, to, count / members, type, comm, stream.get()));
  } else {
    throw DeviceError("this kind is no collective");
  }
}

void Communicator::send(const void* from, std::size_t bytes, int peer, const Stream& stream) {
  const ncclComm_t comm = open();
  GPUTWIN_CUDA(ncclSend(from, bytes, ncclUint8, peer, comm, stream.get()));
}

void Communicator::receive(void* to, std::size_t bytes, int peer, const Stream& stream) {
  const ncclComm_t comm = open();
  GPUTWIN_CUDA(ncclRecv(to, bytes, ncclUint8, peer, comm, stream.get()));
}

}  // namespace gputwin::cuda
