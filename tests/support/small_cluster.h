// Clusters for tests, with bandwidths that make whole picoseconds per byte.
#pragma once

#include "sim/core/cluster.h"

namespace gputwin::test {

/// Nodes of one kind: NVSwitch at 250 GB/s (4 ps/B), one 25 GB/s PCIe link per GPU (40 ps/B) below
/// a switch of its own, host memory and NVMe that bottleneck nothing unless lowered, and 12.5 GB/s
/// adapters (80 ps/B).
struct SmallCluster {
  std::int32_t nodes = 1, gpus = 8, nics = 8;
  double oversubscription = 1.0;  // of the leaf switches, one node each
  std::int32_t gpus_per_switch = 1;
  BytesPerSecond dram{4e12};
};

inline NodeType small_node(const SmallCluster& shape) {
  NodeType type;
  type.device = "test";
  type.gpus = shape.gpus;
  type.intra = {IntraKind::NvSwitch, BytesPerSecond(250e9), 1.0, 0};
  type.pcie = {4, BytesPerSecond(25e9), BytesPerSecond(25e9), shape.gpus_per_switch, 1.0};
  type.host.dram = shape.dram;
  type.nics = {shape.nics, BytesPerSecond(12.5e9), 1.0};
  type.nvme_read = type.nvme_write = BytesPerSecond(2e9);
  return type;
}

inline Cluster small_cluster(const SmallCluster& shape) {
  Cluster cluster;
  cluster.name = "test";
  cluster.groups = {{small_node(shape), shape.nodes}};
  cluster.fabric.kind = FabricKind::InfiniBand;
  cluster.fabric.levels = {{1, shape.oversubscription}, {shape.nodes, 1.0}};
  return cluster;
}

}  // namespace gputwin::test
