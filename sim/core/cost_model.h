// Door 1 of 3: what hardware costs. Implemented by hwmodels; tests use tables.
#pragma once

#include <span>

#include "sim/core/cost.h"
#include "sim/core/plan.h"

namespace gputwin {

class CostModel {
 public:
  virtual ~CostModel() = default;

  /// Device time of a kernel or host task. `read`, `written`: bytes of all views of the call.
  virtual Cost kernel(const Op& op, Bytes read, Bytes written, DeviceKindId device) const = 0;
  /// Start-up of a copy and its own rate limit (`time` = what `bytes` take alone on the link).
  virtual Cost copy(CopyKind kind, Bytes bytes, bool pinned, GpuId gpu) const = 0;
  /// Flows of one collective, or of a Send/Recv pair (kind SendTo, two members). `bytes`: the
  /// larger of input and output of one rank.
  virtual CollectiveSchedule collective(OpKind kind, Bytes bytes,
                                        std::span<const GpuId> members) const = 0;
  virtual Interference interference(DeviceKindId device) const = 0;
  virtual HostCost host(DeviceKindId device) const = 0;
  /// `communicators`: sizes of the rank's communicators.
  virtual MemoryCost memory(DeviceKindId device,
                            std::span<const std::int32_t> communicators) const = 0;
};

}  // namespace gputwin
