// Links of a cluster with ids, and the route of a transfer over them, computed on demand.
//
// Each link is one direction with a capacity. A level of switches whose uplinks can carry
// everything below them can never be a bottleneck and therefore has no link (oversubscription <=
// 1).
//
// NVLink meshes: eight GPUs form the hybrid cube mesh of DGX-1V, other counts share their links
// evenly among all others. Two GPUs without a direct link pass a third one, as NCCL's NVB paths do.
//
// Faulty adapters: a slow one has less capacity. GPUs of a failed one use the nearest live adapter
// of their node (the lower of two), as NCCL does when it finds the device down at start; on a
// rail-optimised fabric they then live on that adapter's rail.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/cluster.h"
#include "sim/core/ids.h"
#include "sim/core/units.h"

namespace gputwin {

enum class LinkKind : std::uint8_t {
  NvLinkUp,
  NvLinkDown,
  NvLinkPair,
  PcieUp,
  PcieDown,
  PcieSwitchUp,
  PcieSwitchDown,
  HostMemory,
  NicUp,
  NicDown,
  FabricUp,
  FabricDown,
  NvmeRead,
  NvmeWrite
};

/// Which kind of path two GPUs have; decides latencies and protocols.
enum class PathKind : std::uint8_t { Self, NvLink, Pcie, Network };

enum class CopyKind : std::uint8_t {
  HostToDevice,
  DeviceToHost,
  DeviceToDevice,
  NvmeToHost,
  HostToNvme
};

struct Link {
  LinkKind kind;
  BytesPerSecond capacity;  // usable
  std::int32_t node;        // -1: a fabric link
  std::int32_t index;       // GPU, adapter or switch within the node; fabric: switch group
  std::int32_t level;       // fabric: level of the switch group below this uplink
};

struct Route {
  static constexpr std::size_t kMax = 12;
  std::array<LinkId, kMax> links{};
  std::uint8_t count = 0;
  PathKind path = PathKind::Self;
  Seconds latency{};  // of the wires and switches, without protocol

  void add(LinkId link) { links.at(count++) = link; }
  const LinkId* begin() const { return links.data(); }
  const LinkId* end() const { return links.data() + count; }
};

class Topology {
 public:
  explicit Topology(const Cluster& cluster);

  std::int32_t gpus() const { return static_cast<std::int32_t>(gpu_node_.size()); }
  std::int32_t node_of(GpuId gpu) const { return gpu_node_[gpu.value]; }
  std::int32_t index_in_node(GpuId gpu) const { return gpu_index_[gpu.value]; }
  /// Adapter index in the node (rail); -1 without adapters.
  std::int32_t nic_of(GpuId gpu) const { return gpu_nic_[gpu.value]; }
  const NodeType& node_type(GpuId gpu) const;
  DeviceKindId device_kind(GpuId gpu) const { return gpu_kind_[gpu.value]; }
  const Cluster& cluster() const { return cluster_; }

  const std::vector<Link>& links() const { return links_; }
  const Link& link(LinkId id) const { return links_[id.value]; }
  std::string link_name(LinkId id) const;

  /// Path of a transfer between two GPUs. Throws InvariantBroken for GPUs without a connection
  /// (scenario loading refuses such clusters first).
  Route route(GpuId from, GpuId to) const;
  /// Path between a GPU and its own host memory or NVMe.
  Route copy_route(GpuId gpu, CopyKind kind) const;
  PathKind path(GpuId a, GpuId b) const;
  /// Usable bandwidth of the NVLinks that join two GPUs of a mesh or pair directly, each direction;
  /// 0 if none does.
  BytesPerSecond direct_nvlink(GpuId a, GpuId b) const;

 private:
  LinkId add_link(LinkKind kind, BytesPerSecond capacity, std::int32_t node, std::int32_t index,
                  std::int32_t level = 0);
  void add_node(const NodeType& type, std::int32_t node);
  void add_adapters(const NodeType& type, std::int32_t node);
  void add_fabric();
  void route_fabric(GpuId from, GpuId to, Route& route) const;

  Cluster cluster_;
  std::vector<Link> links_;
  std::vector<std::int32_t> gpu_node_, gpu_index_, gpu_nic_;
  std::vector<DeviceKindId> gpu_kind_;
  std::vector<std::int32_t> node_group_;  // row of cluster.groups, by node
  std::vector<std::uint32_t> node_first_link_;
  std::vector<std::vector<std::uint32_t>> fabric_up_,
      fabric_down_;  // [level][group x rail]: link or kNone
};

}  // namespace gputwin
