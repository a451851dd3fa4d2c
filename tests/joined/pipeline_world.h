// A Transformer whose layers alone cost time, so that forward and backward of a stage are whole
// microseconds.
#pragma once

#include <algorithm>
#include <span>
#include <stdexcept>

#include "sim/core/cost_model.h"
#include "strategies/strategy.h"
#include "tests/support/small_cluster.h"

namespace gputwin::test {

inline constexpr std::int64_t kVocab = 48;  // like no other size below: tells the head's GEMMs

/// Hidden 32, 4 heads, ffn 128, vocabulary 48, sequence 64 (the table of positions), dropout 0.1.
inline Transformer small_gpt(std::int64_t layers) {
  Transformer m;
  m.name = "small_gpt";
  m.layers = layers;
  m.hidden = 32;
  m.heads = m.kv_heads = 4;
  m.head_dim = 8;
  m.ffn = 128;
  m.vocab = kVocab;
  m.max_positions = 64;
  m.dropout = 0.1;
  return m;
}

/// Sequences of 64 tokens, unfused attention.
inline Job small_job(std::int64_t global_batch) {
  Job job;
  job.sequence = 64;
  job.global_batch = global_batch;
  job.attention = AttentionKernel::Unfused;
  return job;
}

/// The plan of a layout that must be feasible, on one node.
inline Plan small_plan(std::int64_t layers, const Layout& layout, std::int64_t global_batch) {
  auto outcome = make_plan(small_gpt(layers), small_cluster({.gpus = layout.ranks()}), layout,
                           small_job(global_batch));
  if (const auto* infeasible = std::get_if<Infeasible>(&outcome)) {
    throw std::runtime_error("infeasible: " + infeasible->reason);
  }
  return std::move(std::get<Plan>(outcome));
}

/// 1 us for every GEMM of a layer's linear layers, nothing for all else: other kernels, embedding,
/// head, optimizer, launches and messages (no flows, no latency).
struct LayerCosts final : CostModel {
  Cost kernel(const Op& op, Bytes, Bytes, DeviceKindId) const override {
    Cost cost;
    const bool head = std::find(op.dims.begin(), op.dims.end(), kVocab) != op.dims.end();
    if (op.kind == OpKind::Gemm && !head) cost.time = Seconds(1e-6);
    return cost;
  }
  Cost copy(CopyKind, Bytes, bool, GpuId) const override { return {}; }
  CollectiveSchedule collective(OpKind, Bytes, std::span<const GpuId>) const override { return {}; }
  Interference interference(DeviceKindId) const override { return {}; }
  HostCost host(DeviceKindId) const override { return {}; }
  MemoryCost memory(DeviceKindId, std::span<const std::int32_t>) const override {
    return {.capacity = capacity};
  }

  Bytes capacity{};  // 0: unbounded
};

}  // namespace gputwin::test
