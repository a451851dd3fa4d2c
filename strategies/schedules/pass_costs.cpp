#include "strategies/schedules/pass_costs.h"

#include <algorithm>
#include <array>

#include "sim/core/median.h"

namespace gputwin {
namespace {

double seconds(const Plan& plan, const std::vector<Segment>& segments, const CostModel& costs,
               DeviceKindId device) {
  double sum = 0;
  for (const Segment& segment : segments) {
    for (const SegmentOp& op : segment.ops) {
      if (op.kind != Kind::Kernel) continue;
      const Call& call = plan.calls[op.call.value];
      sum += costs.kernel(call.op, bytes_of(call.reads), bytes_of(call.writes), device).time.value;
    }
  }
  return sum;
}

GpuId first_gpu(const Layout& layout, std::int32_t stage) {
  const RankId rank = layout.rank({.tp = 0, .cp = 0, .dp = 0, .pp = stage});
  return layout.devices.empty() ? GpuId(rank.value) : layout.devices[rank.value];
}

}  // namespace

std::vector<PassCosts> pass_costs(const Lowered& lowered, const CostModel& costs,
                                  const Topology& topology) {
  std::vector<double> forward, backward, weight_grad;
  for (std::size_t s = 0; s < lowered.stages.size(); ++s) {
    const GpuId gpu = first_gpu(lowered.layout, static_cast<std::int32_t>(s));
    const DeviceKindId device = topology.device_kind(gpu);
    for (const Chunk& chunk : lowered.stages[s].chunks) {
      forward.push_back(seconds(lowered.plan, chunk.forward, costs, device));
      backward.push_back(seconds(lowered.plan, chunk.backward, costs, device));
      weight_grad.push_back(seconds(lowered.plan, chunk.weight_grad, costs, device));
    }
  }
  const PassCosts each{.forward = median(std::move(forward)),
                       .backward = median(std::move(backward)),
                       .weight_grad = median(std::move(weight_grad))};
  return std::vector<PassCosts>(static_cast<std::size_t>(lowered.layout.chunks()), each);
}

double message_seconds(const Lowered& lowered, const CostModel& costs, const Topology& topology) {
  if (lowered.layout.pp < 2) return 0;
  const std::vector<GpuId> ends{first_gpu(lowered.layout, 0), first_gpu(lowered.layout, 1)};
  const Bytes bytes = lowered.stages[0].chunks[0].output.bytes();
  const CollectiveSchedule schedule = costs.collective(OpKind::SendTo, bytes, ends);
  return closed_form(schedule, ends, topology).value;
}

}  // namespace gputwin
