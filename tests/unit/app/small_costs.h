// Costs for tests of figures that are derived from a plan: chosen so that results are whole
// numbers.
#pragma once

#include <span>

#include "sim/core/cost_model.h"

namespace gputwin::test {

/// GEMMs take 3 us within [0.9, 1.2], other kernels 1 us within [0.8, 1.1] and extrapolated;
/// collectives 2 us within [0.5, 1.5]. A rank has 1,000 B of context, 100 B per member of its
/// communicators, 512 B of workspace, and reserves 1.5 times what it allocates.
struct SmallCosts final : CostModel {
  Bytes capacity{};

  Cost kernel(const Op& op, Bytes, Bytes, DeviceKindId) const override {
    Cost cost;
    const bool gemm = op.kind == OpKind::Gemm;
    cost.time = Seconds(gemm ? 3e-6 : 1e-6);
    cost.low = gemm ? 0.9 : 0.8;
    cost.high = gemm ? 1.2 : 1.1;
    cost.extrapolated = !gemm;
    cost.op_class = gemm ? "gemm" : "memory";
    return cost;
  }
  Cost copy(CopyKind, Bytes, bool, GpuId) const override { return {}; }
  CollectiveSchedule collective(OpKind, Bytes, std::span<const GpuId>) const override {
    CollectiveSchedule schedule;
    schedule.latency = Seconds(2e-6);
    schedule.low = 0.5;
    schedule.high = 1.5;
    return schedule;
  }
  Interference interference(DeviceKindId) const override { return {}; }
  HostCost host(DeviceKindId) const override { return {}; }
  MemoryCost memory(DeviceKindId, std::span<const std::int32_t> communicators) const override {
    MemoryCost cost;
    cost.context = Bytes(1000);
    for (const std::int32_t size : communicators) cost.communicators += Bytes(100 * size);
    cost.workspace = Bytes(512);
    cost.reserved_over_allocated = 1.5;
    cost.capacity = capacity;
    return cost;
  }
};

}  // namespace gputwin::test
