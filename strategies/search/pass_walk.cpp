#include "strategies/search/pass_walk.h"

#include <algorithm>
#include <set>

namespace gputwin {
namespace {

Bytes transferred(const Call& call) {
  const Bytes larger = std::max(bytes_of(call.reads), bytes_of(call.writes));
  return larger.value > 0 ? larger : Bytes((call.op.dims[0] * bits(call.op.dtype) + 7) / 8);
}

}  // namespace

PassWalk::PassWalk(const Plan& plan, RankId rank, const std::vector<GpuId>& place, Prices& prices,
                   bool host_paced)
    : plan_(plan), rank_(rank), place_(place), prices_(prices), host_paced_(host_paced) {
  const DeviceKindId device = prices.topology().device_kind(place[rank.value]);
  launch_ = plan.cuda_graph ? HostCost{} : prices.costs().host(device);
  slowdown_ = prices.costs().interference(device).compute_slowdown;
  streams_.assign(plan.program_of(rank).streams.size(), 0.0);
}

// Communicators of all ranks of this stage in one slot; of those that share no node with this
// rank's one are left out, as they share no link either.
const std::vector<Group>& PassWalk::groups(SlotId slot) {
  const auto [found, added] = groups_.try_emplace(slot.value);
  if (!added) return found->second;
  const Topology& topology = prices_.topology();
  const auto gpus = [&](std::uint32_t communicator) {
    Group group;
    for (const RankId r : plan_.communicators[communicator].members) {
      group.push_back(place_[r.value]);
    }
    return group;
  };
  const std::uint32_t own = plan_.ranks[rank_.value].slots[slot.value];
  found->second.push_back(gpus(own));
  std::set<std::int32_t> nodes;
  for (const GpuId g : found->second[0]) nodes.insert(topology.node_of(g));
  std::set<std::uint32_t> seen{own};
  for (const Rank& rank : plan_.ranks) {
    if (rank.program != plan_.ranks[rank_.value].program) continue;
    if (!seen.insert(rank.slots[slot.value]).second) continue;
    Group group = gpus(rank.slots[slot.value]);
    if (nodes.contains(topology.node_of(group[0]))) found->second.push_back(std::move(group));
  }
  return found->second;
}

bool PassWalk::is_pipeline(const Instruction& i) const {
  const SlotId slot = plan_.call(i).op.slot;
  return plan_.program_of(rank_).slots[slot.value].domain == Domain::Pp;
}

// A kernel of `work` seconds slows down while a collective runs.
double PassWalk::kernel_end(double start, double work) const {
  double now = start, left = work;
  for (const Interval& c : collectives_) {
    if (c.end <= now) continue;
    if (c.begin > now) {
      const double free = c.begin - now;
      if (left <= free) return now + left;
      left -= free;
      now = c.begin;
    }
    const double under = (c.end - now) / slowdown_;
    if (left <= under) return now + left * slowdown_;
    left -= under;
    now = c.end;
  }
  return now + left;
}

double PassWalk::collective_time(const Call& call) {
  return prices_.collective(call.op.kind, transferred(call), groups(call.op.slot)).value;
}

void PassWalk::task(const Instruction& i) {
  const Call& call = plan_.call(i);
  const bool communicates =
      i.kind == Kind::Collective || i.kind == Kind::Send || i.kind == Kind::Recv;
  host_ += (communicates ? launch_.collective_launch : launch_.launch).value;
  double& stream = streams_[i.stream];
  const double start = host_paced_ ? std::max(stream, host_) : stream;
  if (i.kind == Kind::Collective) {
    stream = start + collective_time(call);
    while (!collectives_.empty() && collectives_.size() > 8) {
      collectives_.erase(collectives_.begin());
    }
    collectives_.push_back({start, stream});
  } else if (i.kind == Kind::Send || i.kind == Kind::Recv) {
    // A ring: what this rank sends and receives are alike, and move when both ends are ready.
    const RankId peer = plan_.peer(rank_, call.op.slot);
    const Group pair{place_[rank_.value], place_[peer.value]};
    const double time = prices_.collective(OpKind::SendTo, transferred(call), {pair}).value;
    const auto key = static_cast<std::uint32_t>(transferred(call).value);
    stream = start + time;
    if (i.kind == Kind::Send) sent_[key] = stream;
    if (i.kind == Kind::Recv) stream = std::max(stream, sent_[key]);
  } else {
    const DeviceKindId device = prices_.topology().device_kind(place_[rank_.value]);
    const double work =
        prices_.kernel(call.op, bytes_of(call.reads), bytes_of(call.writes), device).value;
    stream = kernel_end(start, work);
  }
}

void PassWalk::run(const std::vector<Instruction>& piece) {
  for (const Instruction& i : piece) {
    if (i.kind == Kind::Record) {
      if (i.event >= events_.size()) events_.resize(i.event + 1, 0.0);
      events_[i.event] = streams_[i.stream];
    } else if (i.kind == Kind::Wait || i.kind == Kind::HostWait) {
      const double at = i.event < events_.size() ? events_[i.event] : 0.0;
      double& waits = i.kind == Kind::Wait ? streams_[i.stream] : host_;
      waits = std::max(waits, at);
    } else if (i.kind == Kind::Kernel || i.kind == Kind::HostTask || i.kind == Kind::Collective) {
      task(i);
    } else if ((i.kind == Kind::Send || i.kind == Kind::Recv) && !is_pipeline(i)) {
      task(i);
    }
  }
}

void PassWalk::meet() {
  const double now = std::max(end(), host_);
  std::fill(streams_.begin(), streams_.end(), now);
  host_ = now + launch_.resume.value;
}

double PassWalk::end() const { return *std::max_element(streams_.begin(), streams_.end()); }

PassMemory pass_memory(const Plan& plan,
                       const std::vector<const std::vector<Instruction>*>& pieces) {
  constexpr std::int64_t kBlock = 512;
  std::int64_t now = 0, peak = 0;
  for (const std::vector<Instruction>* piece : pieces) {
    for (const Instruction& i : *piece) {
      if (i.kind != Kind::Alloc && i.kind != Kind::Free) continue;
      const Buffer& b = plan.buffers[i.call];
      if (b.in_place || b.arena != ArenaId(0)) continue;
      const std::int64_t bytes = (b.bytes.value + kBlock - 1) / kBlock * kBlock;
      now += i.kind == Kind::Alloc ? bytes : -bytes;
      peak = std::max(peak, now);
    }
  }
  return {static_cast<double>(now), static_cast<double>(peak)};
}

}  // namespace gputwin
