// Costs for tests: a handful of numbers that a reader can multiply in the head.
#pragma once

#include <span>

#include "sim/core/cost_model.h"

namespace gputwin::test {

/// Kernels at `speed` by the flops their op states; copies at `copy_rate`; collectives as rings
/// (SendTo: one edge, AllToAll: all pairs, Broadcast: a chain) with one latency and one rate cap
/// for all.
struct TableCostModel final : CostModel {
  FlopsPerSecond speed{1e12};
  Seconds copy_start_up{};
  BytesPerSecond copy_rate{25e9};
  Seconds latency{};          // of every collective and Send/Recv
  BytesPerSecond rate_cap{};  // per edge; 0: none
  double compute_slowdown = 1.0;
  HostCost host_cost{};

  Cost kernel(const Op& op, Bytes, Bytes, DeviceKindId) const override {
    Cost cost;
    cost.time = op.flops / speed;
    return cost;
  }
  Cost copy(CopyKind, Bytes bytes, bool, GpuId) const override {
    Cost cost;
    cost.time = copy_start_up + bytes / copy_rate;
    cost.terms[static_cast<std::size_t>(Term::StartUp)] = copy_start_up;
    return cost;
  }
  CollectiveSchedule collective(OpKind kind, Bytes bytes,
                                std::span<const GpuId> members) const override {
    CollectiveSchedule schedule;
    schedule.latency = latency;
    schedule.rate_cap = rate_cap;
    const auto n = static_cast<std::uint32_t>(members.size());
    const Bytes part(bytes.value / n);
    for (std::uint32_t i = 0; n > 1 && i < n; ++i) {
      const std::uint32_t next = (i + 1) % n;
      switch (kind) {
        case OpKind::AllReduce: schedule.edges.push_back({i, next, part * (2 * (n - 1))}); break;
        case OpKind::AllGather:
        case OpKind::ReduceScatter: schedule.edges.push_back({i, next, part * (n - 1)}); break;
        case OpKind::AllToAll:
          for (std::uint32_t j = 0; j < n; ++j) {
            if (j != i) schedule.edges.push_back({i, j, part});
          }
          break;
        default:  // Broadcast and SendTo; no other kind is a communication
          if (i + 1 < n) schedule.edges.push_back({i, i + 1, bytes});
      }
    }
    return schedule;
  }
  Interference interference(DeviceKindId) const override { return {compute_slowdown}; }
  HostCost host(DeviceKindId) const override { return host_cost; }
  MemoryCost memory(DeviceKindId, std::span<const std::int32_t>) const override { return {}; }
};

}  // namespace gputwin::test
