#include "validation/executors/cuda/cuda_machine.h"

#include <algorithm>

#include "validation/executors/cuda/cuda_device.h"

namespace gputwin::executors {

CudaMachine::CudaMachine(const interpreted::World& world, const CudaOptions& options,
                         std::vector<int> gpus)
    : world_(world), options_(options), gpus_(std::move(gpus)) {
  join_groups();
  join_circles();
}

namespace {

/// Calls `visit` with every instruction of every rank.
template <class Visit>
void each_instruction(const Plan& plan, const Visit& visit) {
  for (std::uint32_t r = 0; r < plan.ranks.size(); ++r) {
    const Program& program = plan.program_of(RankId(r));
    for (const auto* list : {&program.prologue, &program.body}) {
      for (std::size_t k = 0; k < list->size(); ++k) visit(RankId(r), *list, k);
    }
  }
}

bool is_message(const Instruction& i) { return i.kind == Kind::Send || i.kind == Kind::Recv; }

}  // namespace

void CudaMachine::join_groups() {
  groups_.resize(plan().communicators.size());
  each_instruction(plan(), [this](RankId rank, const auto& list, std::size_t k) {
    if (list[k].kind != Kind::Collective) return;
    const CommunicatorId id = plan().communicator(rank, plan().call(list[k]).op.slot);
    auto& group = groups_[id.value];
    if (!group.empty()) return;
    std::vector<int> gpus;
    for (const RankId m : plan().communicators[id.value].members) gpus.push_back(gpus_[m.value]);
    group = cuda::join_all(gpus);
  });
}

void CudaMachine::join_circles() {
  // Ordered pairs, each with another one of its circle or itself.
  std::map<PairKey, PairKey> joined;
  const auto root = [&joined](PairKey pair) {
    while (joined.at(pair) != pair) pair = joined.at(pair);
    return pair;
  };
  const auto key = [this](RankId rank, const Instruction& i) {
    const std::uint32_t peer = plan().peer(rank, plan().call(i).op.slot).value;
    return i.kind == Kind::Send ? PairKey{rank.value, peer} : PairKey{peer, rank.value};
  };
  each_instruction(plan(), [&](RankId rank, const auto& list, std::size_t k) {
    if (!is_message(list[k])) return;
    const PairKey pair = key(rank, list[k]);
    joined.try_emplace(pair, pair);
    if (k == 0 || !is_message(list[k - 1]) || list[k - 1].stream != list[k].stream) return;
    if ((list[k].flags & list[k - 1].flags & kGrouped) == 0) return;
    joined[root(pair)] = root(key(rank, list[k - 1]));
  });
  std::map<PairKey, std::size_t> circles;  // by root
  for (const auto& [pair, other] : joined) {
    const auto [at, fresh] = circles.try_emplace(root(pair), circles_.size());
    if (fresh) circles_.emplace_back();
    circle_of_[pair] = at->second;
    for (const std::uint32_t rank : {pair.first, pair.second}) {
      circles_[at->second].ranks.push_back(rank);
    }
  }
  for (Circle& circle : circles_) {
    std::sort(circle.ranks.begin(), circle.ranks.end());
    circle.ranks.erase(std::unique(circle.ranks.begin(), circle.ranks.end()), circle.ranks.end());
    std::vector<int> gpus;
    for (const std::uint32_t rank : circle.ranks) gpus.push_back(gpus_[rank]);
    circle.members = cuda::join_all(gpus);
  }
}

int CudaMachine::Circle::index(std::uint32_t rank) const {
  return static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

cuda::Communicator& CudaMachine::member(CommunicatorId group, RankId rank) {
  return *groups_[group.value][static_cast<std::size_t>(plan().member_index(group, rank))];
}

CudaMachine::MessageEnd CudaMachine::message_end(RankId rank, const CudaMessage& message) {
  const Circle& circle = circles_[circle_of_.at({message.from.value, message.to.value})];
  const RankId peer = message.send ? message.to : message.from;
  return {*circle.members[static_cast<std::size_t>(circle.index(rank.value))],
          circle.index(peer.value)};
}

Ps CudaMachine::now() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count() * 1000;
}

void CudaMachine::throw_if_stopped() const {
  if (stopped_) throw Stopped{};
}

void CudaMachine::meet(int body) {
  constexpr auto kLook = std::chrono::milliseconds(10);
  std::unique_lock held(mutex_);
  const std::size_t& here = met_[body];
  ++met_[body];
  changed_.notify_all();
  while (here < plan().ranks.size()) {
    if (stopped_) throw Stopped{};
    changed_.wait_for(held, kLook);
  }
}

void CudaMachine::fail(std::exception_ptr error) {
  const std::lock_guard guard(mutex_);
  if (!error_ && !deadlock_) error_ = std::move(error);
  stopped_ = true;
  changed_.notify_all();
}

void CudaMachine::stop() {
  const std::lock_guard guard(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

void CudaMachine::left() {
  const std::lock_guard guard(mutex_);
  ++left_;
  changed_.notify_all();
}

bool CudaMachine::all_left(std::size_t hosts, Clock::duration patience,
                           const std::function<bool(int)>& go_on) {
  constexpr auto kLook = std::chrono::milliseconds(50);
  std::optional<Clock::time_point> stopped_at;
  for (;;) {
    int begun = 0;
    {
      std::unique_lock held(mutex_);
      changed_.wait_for(held, kLook, [&] { return left_ >= hosts || (stopped_ && !aborted_); });
      if (left_ >= hosts) break;
      begun = static_cast<int>(met_.size());
    }
    if (stopped_) {
      abort_communication();
      if (!stopped_at) stopped_at = Clock::now();
      if (Clock::now() > *stopped_at + patience) return false;
    } else if (!go_on(begun)) {
      stop();
    } else {
      look();
    }
  }
  if (stopped_) abort_communication();
  return true;
}

void CudaMachine::look() {
  const Clock::duration quiet(Clock::now().time_since_epoch().count() - last_progress_);
  if (std::chrono::duration<double>(quiet).count() > options_.time_out_s) {
    Deadlock report = who_waits();
    const std::lock_guard guard(mutex_);
    deadlock_ = std::move(report);
    stopped_ = true;
    changed_.notify_all();
    return;
  }
  try {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (const auto& member : groups_[g]) {
        const std::string trouble = member->trouble();
        if (trouble.empty()) continue;
        throw cuda::DeviceError(plan().communicators[g].name + ": " + trouble);
      }
    }
    for (const Circle& circle : circles_) {
      for (std::size_t m = 0; m < circle.members.size(); ++m) {
        const std::string trouble = circle.members[m]->trouble();
        if (trouble.empty()) continue;
        throw cuda::DeviceError("messages of rank " + std::to_string(circle.ranks[m]) + ": " +
                                trouble);
      }
    }
  } catch (const cuda::DeviceError&) {
    fail(std::current_exception());
  }
}

/// So that NCCL's kernels end that wait for members which will not come.
void CudaMachine::abort_communication() {
  if (std::exchange(aborted_, true)) return;
  const auto end = [this](cuda::Communicator& communicator) {
    try {
      communicator.abort();
    } catch (const cuda::DeviceError&) {
      fail(std::current_exception());  // kept only if it is the first
    }
  };
  for (const auto& group : groups_) {
    for (const auto& member : group) end(*member);
  }
  for (const Circle& circle : circles_) {
    for (const auto& member : circle.members) end(*member);
  }
}

std::string CudaMachine::missing_members(CommunicatorId group, std::uint64_t sequence) const {
  const Communicator& communicator = plan().communicators[group.value];
  std::string text;
  for (const RankId member : communicator.members) {
    if (devices_[member.value]->has_begun(group, sequence)) continue;
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(member.value);
  }
  if (text.empty()) return text;
  return text + " to join collective #" + std::to_string(sequence) + " of " + communicator.name;
}

std::string CudaMachine::missing_end(const CudaMessage& message) const {
  const RankId other = message.send ? message.to : message.from;
  CudaMessage theirs = message;
  theirs.send = !message.send;
  if (devices_[other.value]->has_begun(theirs)) return "";
  return "rank " + std::to_string(other.value) + (message.send ? " to receive" : " to send") +
         " message #" + std::to_string(message.sequence);
}

Deadlock CudaMachine::who_waits() const {
  constexpr std::size_t kMost = 16;
  Deadlock report;
  for (const CudaDevice* device : devices_) device->report(report.ranks);
  report.total = static_cast<std::int32_t>(report.ranks.size());
  if (report.ranks.size() > kMost) report.ranks.resize(kMost);
  return report;
}

}  // namespace gputwin::executors
