// Memory of model states under ZeRO with offload, as DeepSpeed's estimators print it.
#pragma once

#include <cstdint>

#include "sim/core/offload.h"
#include "sim/core/units.h"

namespace gputwin {

struct ZeroStates {
  std::int64_t parameters = 0, largest_layer = 0;
  std::int32_t gpus = 1, nodes = 1;  // in all
  std::int32_t zero = 3;             // 2 or 3
  bool params_on_cpu = false, optimizer_on_cpu = false;
};

struct StateMemory {
  Bytes gpu{};   // of each
  Bytes host{};  // of each node, with the estimator's buffer factor of 1.5
};

/// Source: DeepSpeed, runtime/zero/stage3.py and stage_1_and_2.py, estimate_zero*_mem_needs. ZeRO 3
/// with parameters on the GPU and the optimizer not: 4 x largest layer + 2 P / gpus; nothing
/// offloaded: 4 x largest layer + 18 P / gpus; ZeRO 2 with offload: 2 P, else 4 P + 16 P / gpus.
StateMemory zero_states(const ZeroStates& s);

}  // namespace gputwin
