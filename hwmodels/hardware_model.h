// The cost door of the simulated hardware: kernels, copies, collectives, host and memory of a
// cluster's devices.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hwmodels/collectives/nccl.h"
#include "hwmodels/device.h"
#include "hwmodels/experts.h"
#include "hwmodels/stack.h"
#include "sim/core/cost_model.h"
#include "sim/core/job.h"
#include "sim/core/topology.h"

namespace gputwin {

/// Changes to the constants of a model, for questions of the kind "what if".
struct Adjustments {
  StackFactors times = kNoFactors;  // times the stack's own factors
  bool stack_factors = true;        // false: the stack's own factors are 1
  bool power_limits = true;         // false: devices sustain the rate of a short benchmark
  bool head_alignment = true;   // false: head sizes that are no multiple of 8 cost nothing extra
  bool among_copies = false;    // on a processor: kernels run between copies that they wait for
  double processor_pace = 1.0;  // on a processor: times of kernels now, over those when measured
  NcclChoice nccl{};            // algorithm and protocol to force
  CollectiveCurves network{};   // measured on the network in question; replaces the stack's
};

/// What the devices of `topology` cost under the software stack of `job`.
///
/// `data` is the folder hwmodels (devices/, stacks/, links/). Device rows follow
/// Cluster::device_kinds(). Every method is pure: equal arguments give equal values, nothing is
/// cached, and `topology` must outlive it. Throws InputError for a device that `data` lacks (naming
/// the nearest one) and for broken data files; an unknown software stack is no error but a note.
class HardwareModel final : public CostModel {
 public:
  HardwareModel(const Topology& topology, const Job& job, const std::filesystem::path& data,
                const Adjustments& adjustments = {});

  Cost kernel(const Op& op, Bytes read, Bytes written, DeviceKindId device) const override;
  Cost copy(CopyKind kind, Bytes bytes, bool pinned, GpuId gpu) const override;
  CollectiveSchedule collective(OpKind kind, Bytes bytes,
                                std::span<const GpuId> members) const override;
  Interference interference(DeviceKindId device) const override;
  HostCost host(DeviceKindId device) const override;
  MemoryCost memory(DeviceKindId device,
                    std::span<const std::int32_t> communicators) const override;

  const Device& device(DeviceKindId kind) const { return devices_[kind.value]; }
  /// The job's software stack as it runs on devices of `kind`.
  const Stack& stack(DeviceKindId kind) const { return stacks_[kind.value]; }
  /// Share of a run's time by which it may be off, at 80 %, because its stack has no constants.
  double stack_deviation() const { return stack_deviation_; }
  const NcclConstants& nccl() const { return nccl_; }
  /// Sentences a report should print: substitutions made for what the data lacks.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  const Topology& topology_;
  std::vector<Device> devices_;         // by DeviceKindId
  std::vector<const NodeType*> nodes_;  // first node type that holds the device kind
  ExpertFactors experts_;
  std::vector<Stack> stacks_;  // by DeviceKindId
  double stack_deviation_ = 0;
  NcclConstants nccl_;
  NcclChoice forced_;
  std::vector<std::string> notes_;
};

}  // namespace gputwin
