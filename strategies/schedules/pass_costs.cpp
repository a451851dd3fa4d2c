#include "strategies/schedules/pass_costs.h"

#include <algorithm>
#include <array>
#include <map>

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

// First and last pass of a chunk that uses a framed buffer.
struct Stay {
  PassKind first, last;
};

void weigh_memory(const Plan& plan, const Chunk& chunk, PassCosts& costs) {
  std::map<BufferId, Stay> stays;
  const std::array<const std::vector<Segment>*, kPassKinds> passes{&chunk.forward, &chunk.backward,
                                                                   &chunk.weight_grad};
  for (std::size_t k = 0; k < passes.size(); ++k) {
    const auto kind = static_cast<PassKind>(k);
    for (const Segment& segment : *passes[k]) {
      for (const SegmentOp& op : segment.ops) {
        const Call& call = plan.calls[op.call.value];
        for (const auto* views : {&call.reads, &call.writes}) {
          for (const View& v : *views) {
            const Buffer& buffer = plan.buffers[v.buffer.value];
            if (!buffer.framed || buffer.persistent) continue;
            stays.try_emplace(v.buffer, Stay{kind, kind}).first->second.last = kind;
          }
        }
      }
    }
  }
  costs.kept = costs.released = 0;
  for (const auto& [id, stay] : stays) {
    const auto bytes = static_cast<double>(plan.buffers[id.value].bytes.value);
    const bool made = stay.first == PassKind::Forward;
    if (made && stay.last != PassKind::Forward) costs.kept += bytes;
    if (made && stay.last == PassKind::Backward) costs.released += bytes;
    if (stay.first == PassKind::Backward && stay.last == PassKind::WeightGrad) {
      costs.released -= bytes;
    }
  }
}

GpuId first_gpu(const Layout& layout, std::int32_t stage) {
  const RankId rank = layout.rank({.tp = 0, .cp = 0, .dp = 0, .pp = stage});
  return layout.devices.empty() ? GpuId(rank.value) : layout.devices[rank.value];
}

}  // namespace

std::vector<PassCosts> pass_costs(const Lowered& lowered, const CostModel& costs,
                                  const Topology& topology) {
  std::vector<PassCosts> list(static_cast<std::size_t>(lowered.layout.chunks()));
  for (std::size_t s = 0; s < lowered.stages.size(); ++s) {
    const GpuId gpu = first_gpu(lowered.layout, static_cast<std::int32_t>(s));
    const DeviceKindId device = topology.device_kind(gpu);
    for (const Chunk& chunk : lowered.stages[s].chunks) {
      PassCosts& c = list[static_cast<std::size_t>(chunk.index)];
      c.forward = seconds(lowered.plan, chunk.forward, costs, device);
      c.backward = seconds(lowered.plan, chunk.backward, costs, device);
      c.weight_grad = seconds(lowered.plan, chunk.weight_grad, costs, device);
      weigh_memory(lowered.plan, chunk, c);
    }
  }
  return list;
}

double message_seconds(const Lowered& lowered, const CostModel& costs, const Topology& topology) {
  if (lowered.layout.pp < 2) return 0;
  const std::vector<GpuId> ends{first_gpu(lowered.layout, 0), first_gpu(lowered.layout, 1)};
  const Bytes bytes = lowered.stages[0].chunks[0].output.bytes();
  const CollectiveSchedule schedule = costs.collective(OpKind::SendTo, bytes, ends);
  return closed_form(schedule, ends, topology).value;
}

}  // namespace gputwin
