// What a search asks of the cost model, each question once.
#pragma once

#include <map>
#include <unordered_map>
#include <vector>

#include "sim/core/cost_model.h"

namespace gputwin {

/// GPUs of one communicator, in member order.
using Group = std::vector<GpuId>;

/// Remembers the answers of a cost model. One thread at a time.
class Prices {
 public:
  Prices(const CostModel& costs, const Topology& topology) : costs_(costs), topology_(topology) {}

  const CostModel& costs() const { return costs_; }
  const Topology& topology() const { return topology_; }

  /// Device time of a kernel or host task.
  Seconds kernel(const Op& op, Bytes read, Bytes written, DeviceKindId device);

  /// Time of like collectives that run at the same moment, one in each group: latency, plus the
  /// slowest of all edges at their cap and of all links with the bytes of all groups routed over
  /// them. `bytes` as in CostModel::collective. For kind SendTo the groups are pairs.
  Seconds collective(OpKind kind, Bytes bytes, const std::vector<Group>& groups);

 private:
  struct KernelKey {
    Op op;
    Bytes read, written;
    DeviceKindId device;
    bool operator==(const KernelKey&) const = default;
  };
  struct KernelHash {
    std::size_t operator()(const KernelKey& key) const;
  };

  const CostModel& costs_;
  const Topology& topology_;
  std::unordered_map<KernelKey, Seconds, KernelHash> kernels_;
  std::map<std::tuple<OpKind, Bytes, std::vector<Group>>, Seconds> collectives_;
};

}  // namespace gputwin
