// What a run would take without one of its mechanisms: free tensor-parallel communication, no host
// cost, … For ideal-machine questions and for ablation tables of predictions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "hwmodels/hardware_model.h"
#include "sim/core/cost_model.h"
#include "sim/core/plan.h"
#include "sim/core/run_result.h"

namespace gputwin {

enum class Mechanism : std::uint8_t {
  TpComm,         // collectives of tensor parallelism
  DpComm,         // gradient reduction, parameter gathering (data parallelism, FSDP)
  CpComm,         // exchange of keys and values
  P2p,            // pipeline messages
  Bubble,         // the idle time of the rank that ends last
  MemoryBound,    // norms, activations, dropout, casts, softmax outside fused attention kernels
  Attention,      // attention products, or the fused attention kernel
  LmHead,         // embedding, head and loss
  Recompute,      // forward operations repeated in the backward pass
  GemmTiles,      // tile and wave quantisation and memory traffic of GEMMs
  Optimizer,      // gradient norm and weight update
  Host,           // launch costs
  StackFactors,   // fitted factors of the software stack
  HeadAlignment,  // penalty of head sizes that are no multiple of 8
  Power           // sustained below short-benchmark rates
};
inline constexpr std::size_t kMechanisms = 15;

/// Spellings by Mechanism: "tp_comm", "dp_comm", …
std::span<const std::string_view> mechanism_words();

using Mechanisms = std::vector<Mechanism>;
bool contains(const Mechanisms& set, Mechanism mechanism);

/// The constants without StackFactors, HeadAlignment and Power, where these are in `set`.
Adjustments without(const Mechanisms& set, Adjustments adjustments);

/// Replaces what `set` makes free by calls of no work; order, events and memory stay. Memory is to
/// be predicted before.
void make_free(Plan& plan, const Mechanisms& set);

/// Prices calls of no work at nothing, others as `costs` does, but for GemmTiles and Host in `set`.
class AblatedCosts final : public CostModel {
 public:
  AblatedCosts(const CostModel& costs, Mechanisms set) : costs_(costs), set_(std::move(set)) {}

  Cost kernel(const Op& op, Bytes read, Bytes written, DeviceKindId device) const override;
  Cost copy(CopyKind kind, Bytes bytes, bool pinned, GpuId gpu) const override {
    return costs_.copy(kind, bytes, pinned, gpu);
  }
  CollectiveSchedule collective(OpKind kind, Bytes bytes,
                                std::span<const GpuId> members) const override;
  Interference interference(DeviceKindId device) const override {
    return costs_.interference(device);
  }
  HostCost host(DeviceKindId device) const override;
  MemoryCost memory(DeviceKindId device,
                    std::span<const std::int32_t> communicators) const override {
    return costs_.memory(device, communicators);
  }

 private:
  const CostModel& costs_;
  Mechanisms set_;
};

/// Takes the bubble of the last rank out of its iteration time.
void remove_bubble(Execution& execution);

}  // namespace gputwin
