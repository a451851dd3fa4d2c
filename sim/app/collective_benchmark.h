// nccl-tests in simulation: one collective after the other on an otherwise idle cluster.
#pragma once

#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/executor.h"
#include "sim/core/topology.h"

namespace gputwin {

struct CollectiveMeasurement {
  Bytes size{};    // as nccl-tests counts: the larger of input and output of one rank
  Seconds time{};  // from the last rank's arrival to the end
  double algorithm_GBps = 0, bus_GBps = 0;
  CollectiveSchedule schedule;
  std::int64_t flows = 0;  // edges of the schedule
};

/// Simulates `kind` over `ranks` GPUs, once per size, every edge a SimGrid flow: the first GPUs of
/// the cluster, or with `per_node` > 0 the first `per_node` of each node.
///
/// Bus bandwidth as nccl-tests doc/PERFORMANCE.md defines it: algorithm bandwidth times 2(n-1)/n
/// for all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, 1 for broadcast. Errors
/// InputError if the cluster has fewer GPUs than ranks.
std::vector<CollectiveMeasurement> measure_collective(OpKind kind, std::int32_t ranks,
                                                      const std::vector<Bytes>& sizes,
                                                      const CostModel& costs,
                                                      const Topology& topology, Executor& executor,
                                                      std::int32_t per_node = 0);

/// What a collective could reach at most here, GB/s of bus bandwidth per rank: the GPU's own links
/// inside a node, the adapters its node's ranks share across nodes.
struct LinkRate {
  double GBps = 0;
  const char* what = "";  // "NVLink of a GPU", "PCIe path of a GPU and its adapter", …
};
LinkRate link_rate(const Topology& topology, std::int32_t ranks, std::int32_t per_node);

/// The first row from which bus bandwidth stays at 90 % of the largest; nullptr for no rows.
const CollectiveMeasurement* saturation(const std::vector<CollectiveMeasurement>& rows);

}  // namespace gputwin
