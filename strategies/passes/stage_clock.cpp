#include "strategies/passes/stage_clock.h"

#include <algorithm>

namespace gputwin {
namespace {

double scheduled(const StagePrices& prices, OpKind kind, Bytes bytes,
                 const std::vector<GpuId>& members) {
  const CollectiveSchedule schedule = prices.costs->collective(kind, bytes, members);
  return closed_form(schedule, members, *prices.topology).value;
}

}  // namespace

StageClock::StageClock(const Lowered& lowered, std::int32_t stage, const StagePrices& prices)
    : prices_(prices) {
  const Plan& plan = lowered.plan;
  const RankId first = lowered.layout.rank({.tp = 0, .cp = 0, .dp = 0, .pp = stage});
  gpu_ = plan.ranks[first.value].gpu;
  const std::vector<Slot>& slots = plan.program_of(first).slots;
  members_.resize(slots.size());
  for (std::uint32_t s = 0; s < slots.size(); ++s) {
    if (slots[s].peer) continue;
    const CommunicatorId group = plan.communicator(first, SlotId(s));
    for (const RankId r : plan.communicators[group.value].members) {
      members_[s].push_back(plan.ranks[r.value].gpu);
    }
  }
}

double StageClock::kernel(const Call& call) const {
  if (prices_.costs == nullptr) return 1.0;
  const DeviceKindId device = prices_.topology->device_kind(gpu_);
  return prices_.costs->kernel(call.op, bytes_of(call.reads), bytes_of(call.writes), device)
      .time.value;
}

double StageClock::collective(const Call& call) const {
  if (prices_.costs == nullptr) return 1.0;
  const Bytes bytes = std::max(bytes_of(call.reads), bytes_of(call.writes));
  return scheduled(prices_, call.op.kind, bytes, members_[call.op.slot.value]);
}

double StageClock::message(Bytes bytes, const StageClock& to) const {
  if (prices_.costs == nullptr) return 1.0;
  return scheduled(prices_, OpKind::SendTo, bytes, {gpu_, to.gpu_});
}

}  // namespace gputwin
