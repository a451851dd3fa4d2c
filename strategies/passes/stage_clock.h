// What operations of one pipeline stage take alone, on its first rank.
#pragma once

#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/segment.h"
#include "sim/core/topology.h"

namespace gputwin {

/// Prices of kernels and collectives for one stage; without, all kernels and collectives are alike.
struct StagePrices {
  const CostModel* costs = nullptr;
  const Topology* topology = nullptr;
};

/// Seconds of calls of `stage`; 1 each without prices. Outlives the lowered job.
class StageClock {
 public:
  StageClock(const Lowered& lowered, std::int32_t stage, const StagePrices& prices);

  double kernel(const Call& call) const;
  double collective(const Call& call) const;
  /// Of a message of this size to the same rank of another stage.
  double message(Bytes bytes, const StageClock& to) const;

 private:
  StagePrices prices_;
  GpuId gpu_;
  std::vector<std::vector<GpuId>> members_;  // by slot; empty for peers
};

}  // namespace gputwin
