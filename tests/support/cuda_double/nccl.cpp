// NCCL of the double: members of one process, matched by the order of their calls.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "tests/support/cuda_double/engine.h"

namespace {

using namespace gputwin::cuda_double;
using Guard = std::lock_guard<std::recursive_mutex>;

struct Part {
  std::string kind;
  const char* from = nullptr;
  char* to = nullptr;
  std::size_t count = 0;
  ncclDataType_t type{};
  ncclRedOp_t reduce{};
  int root = 0;
};
struct Meeting {
  std::map<int, Part> here;  // by member
  bool done = false;
};
struct Letter {
  const char* from = nullptr;
  char* to = nullptr;
  std::size_t sent = 0, wanted = 0;
  bool done = false;
};
struct Clique {
  int members = 0;
  std::map<std::uint64_t, Meeting> meetings;
  std::map<std::tuple<int, int, std::uint64_t>, Letter> letters;  // by sender and receiver
};
struct Member {
  std::shared_ptr<Clique> clique;
  int index = 0, device = 0;
  std::uint64_t calls = 0;
  std::map<int, std::uint64_t> sent, received;  // by peer
  bool aborted = false;
};
/// What a handle points to: queued work keeps the member itself.
struct Comm {
  std::shared_ptr<Member> member;
};

Comm& of(ncclComm_t comm) { return *reinterpret_cast<Comm*>(comm); }

ncclResult_t nccl(const char* name, int created = 0) {
  return fails(name, created) ? ncclSystemError : ncclSuccess;
}

std::size_t size_of(ncclDataType_t type) {
  return type == ncclInt64 ? 8 : type == ncclUint8 ? 1 : type == ncclBfloat16 ? 2 : 4;
}

/// Elements first .. first + count - 1 reduced over the members, in their order.
std::vector<float> reduced(const Meeting& m, std::size_t first, std::size_t count) {
  std::vector<float> total(count);
  for (const auto& [index, part] : m.here) {
    const bool bf16 = part.type == ncclBfloat16;
    for (std::size_t k = 0; k < count; ++k) {
      const float x = element(part.from, static_cast<std::int64_t>(first + k), bf16);
      total[k] = index == 0 ? x : part.reduce == ncclMax ? std::max(total[k], x) : total[k] + x;
    }
  }
  return total;
}

void run(Meeting& m) {
  const Part first = m.here.at(0);
  std::map<int, std::vector<char>> results;  // all are read before one is written
  for (const auto& [index, part] : m.here) {
    if (part.kind != first.kind || part.count != first.count || part.type != first.type) {
      wrong("members of a collective disagree: " + first.kind + " and " + part.kind);
      return;
    }
    const std::size_t bytes = part.count * size_of(part.type);
    const auto members = m.here.size();
    auto& result = results[index];
    const auto append = [&result](const char* data, std::size_t n) {
      result.insert(result.end(), data, data + n);
    };
    if (part.kind == "AllReduce" || part.kind == "ReduceScatter") {
      const bool all = part.kind == "AllReduce", bf16 = part.type == ncclBfloat16;
      const auto total =
          reduced(m, all ? 0 : part.count * static_cast<std::size_t>(index), part.count);
      result.resize(bytes);
      for (std::size_t k = 0; k < total.size(); ++k) {
        set_element(result.data(), static_cast<std::int64_t>(k), bf16, total[k]);
      }
    } else if (part.kind == "AllGather") {
      for (const auto& [other, theirs] : m.here) append(theirs.from, bytes);
    } else if (part.kind == "Broadcast") {
      append(m.here.at(part.root).from, bytes);
    } else {  // AllToAll: count is that of one part
      for (std::size_t k = 0; k < members; ++k) {
        append(m.here.at(static_cast<int>(k)).from + static_cast<std::size_t>(index) * bytes,
               bytes);
      }
    }
  }
  for (const auto& [index, result] : results) {
    std::memcpy(m.here.at(index).to, result.data(), result.size());
  }
}

ncclResult_t collective(const char* call, ncclComm_t comm, cudaStream_t stream, Part part) {
  const Guard guard(mutex());
  const ncclResult_t status = nccl(call);
  if (status != ncclSuccess) return status;
  const auto member = of(comm).member;
  if (member->device != current_device()) wrong(part.kind + " from a thread at another GPU");
  const std::uint64_t number = member->calls++;
  const std::string what = part.kind + " #" + std::to_string(number);
  const bool taken = enqueue(stream, what, [=] {
    if (member->aborted) return true;
    Meeting& m = member->clique->meetings[number];
    m.here.emplace(member->index, part);
    if (!m.done && m.here.size() == static_cast<std::size_t>(member->clique->members)) {
      run(m);
      m.done = true;
    }
    return m.done;
  });
  return taken ? ncclSuccess : ncclInvalidUsage;
}

/// One end of a message, tried until it has met the other.
struct MessageEnd {
  std::shared_ptr<Member> member;
  bool send = false;
  int peer = 0;
  const char* from = nullptr;
  char* to = nullptr;
  std::size_t bytes = 0;
  std::uint64_t number = 0;

  bool step() const {
    if (member->aborted) return true;
    const int mine = member->index;
    Letter& letter = member->clique->letters[{send ? mine : peer, send ? peer : mine, number}];
    if (send) {
      letter.from = from;
      letter.sent = bytes;
    } else {
      letter.to = to;
      letter.wanted = bytes;
    }
    if (letter.done || letter.from == nullptr || letter.to == nullptr) return letter.done;
    if (letter.sent != letter.wanted) wrong("both ends of a message disagree on its bytes");
    std::memcpy(letter.to, letter.from, letter.sent);
    return letter.done = true;
  }
};

struct OpenGroup {
  int depth = 0;
  std::vector<std::pair<cudaStream_t, MessageEnd>> ends;
};
thread_local OpenGroup group;

/// What is of one communicator runs together, as one kernel; several follow each other.
ncclResult_t close_group() {
  std::vector<std::pair<cudaStream_t, std::vector<MessageEnd>>> kernels;
  for (const auto& [stream, end] : group.ends) {
    const auto same = [&, of = stream, &mine = end](const auto& kernel) {
      return kernel.first == of && kernel.second.front().member == mine.member;
    };
    const auto found = std::find_if(kernels.begin(), kernels.end(), same);
    if (found == kernels.end()) {
      kernels.push_back({stream, {end}});
    } else {
      found->second.push_back(end);
    }
  }
  group.ends.clear();
  bool taken = true;
  for (const auto& [stream, ends] : kernels) {
    taken &= enqueue(stream, "messages " + std::to_string(ends.size()), [ends = ends] {
      bool all = true;
      for (const MessageEnd& end : ends) all = end.step() && all;
      return all;
    });
  }
  return taken ? ncclSuccess : ncclInvalidUsage;
}

ncclResult_t message(const char* call, ncclComm_t comm, cudaStream_t stream, MessageEnd end) {
  const Guard guard(mutex());
  const ncclResult_t status = nccl(call);
  if (status != ncclSuccess) return status;
  end.member = of(comm).member;
  if (end.peer == end.member->index || end.peer < 0 || end.peer >= end.member->clique->members) {
    wrong("a message to a peer that is not there");
    return ncclInvalidArgument;
  }
  end.number = (end.send ? end.member->sent : end.member->received)[end.peer]++;
  group.ends.emplace_back(stream, end);
  return group.depth > 0 ? ncclSuccess : close_group();
}

}  // namespace

extern "C" {

const char* ncclGetErrorString(ncclResult_t) { return "remote process exited"; }
const char* ncclGetLastError(ncclComm_t) { return "no more is known"; }

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int members, const int* devices) {
  const Guard guard(mutex());
  const ncclResult_t status = nccl("ncclCommInitAll", members);
  if (status != ncclSuccess) return status;
  if (std::set<int>(devices, devices + members).size() != static_cast<std::size_t>(members)) {
    wrong("members of a communicator share a GPU");
  }
  const auto clique = std::make_shared<Clique>();
  clique->members = members;
  for (int k = 0; k < members; ++k) {
    const auto member = std::make_shared<Member>();
    member->clique = clique;
    member->index = k;
    member->device = devices[k];
    comms[k] = reinterpret_cast<ncclComm_t>(new Comm{member});
  }
  return status;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const Guard guard(mutex());
  delete &of(comm);
  return nccl("ncclCommDestroy", -1);
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const Guard guard(mutex());
  of(comm).member->aborted = true;
  delete &of(comm);
  return nccl("ncclCommAbort", -1);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  const Guard guard(mutex());
  *state = script().member_lost ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective(
      "ncclAllReduce", comm, stream,
      {"AllReduce", static_cast<const char*>(from), static_cast<char*>(to), count, type, op, 0});
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective("ncclAllGather", comm, stream,
                    {"AllGather", static_cast<const char*>(from), static_cast<char*>(to), count,
                     type, ncclSum, 0});
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective("ncclReduceScatter", comm, stream,
                    {"ReduceScatter", static_cast<const char*>(from), static_cast<char*>(to), count,
                     type, op, 0});
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective("ncclBroadcast", comm, stream,
                    {"Broadcast", static_cast<const char*>(from), static_cast<char*>(to), count,
                     type, ncclSum, root});
}
ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream) {
  return collective("ncclAlltoAll", comm, stream,
                    {"AllToAll", static_cast<const char*>(from), static_cast<char*>(to), count,
                     type, ncclSum, 0});
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  MessageEnd end;
  end.send = true;
  end.peer = peer;
  end.from = static_cast<const char*>(from);
  end.bytes = count * size_of(type);
  return message("ncclSend", comm, stream, end);
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  MessageEnd end;
  end.peer = peer;
  end.to = static_cast<char*>(to);
  end.bytes = count * size_of(type);
  return message("ncclRecv", comm, stream, end);
}
ncclResult_t ncclGroupStart() {
  const Guard guard(mutex());
  const ncclResult_t status = nccl("ncclGroupStart");
  if (status == ncclSuccess) ++group.depth;
  return status;
}
ncclResult_t ncclGroupEnd() {
  const Guard guard(mutex());
  if (--group.depth > 0) return nccl("ncclGroupEnd");
  const ncclResult_t status = nccl("ncclGroupEnd");
  if (status == ncclSuccess) return close_group();
  group.ends.clear();
  return status;
}

}  // extern "C"
