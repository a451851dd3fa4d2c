// The machines: node types with their inner links, and the fabric between nodes. Data only; routes
// are computed by Topology. Bandwidths are per direction and nominal; `efficiency` is the usable
// fraction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/ids.h"
#include "sim/core/units.h"

namespace gputwin {

enum class IntraKind : std::uint8_t { None, NvSwitch, NvLinkMesh, NvLinkPairs, Pcie };
enum class FabricKind : std::uint8_t { None, InfiniBand, Roce, Ethernet, Efa, Slingshot, OmniPath };

/// GPU to GPU inside a node. With Pcie the path is the PCIe tree below.
struct IntraLinks {
  IntraKind kind = IntraKind::None;
  BytesPerSecond per_gpu{};  // each direction
  double efficiency = 1.0;
  std::int32_t domain_gpus = 0;  // NVLink domain; may span nodes (NVL72). 0: the node
  bool operator==(const IntraLinks&) const = default;
};

/// GPU to host. `gpus_per_switch` GPUs share one switch uplink to their socket.
struct PcieTree {
  std::int32_t generation = 4;
  BytesPerSecond per_gpu{};  // x16, each direction
  BytesPerSecond switch_uplink{};
  std::int32_t gpus_per_switch = 1;
  double efficiency = 1.0;
  bool operator==(const PcieTree&) const = default;
};

struct Host {
  std::int32_t sockets = 2;
  std::int32_t cores = 0;  // of the node
  Bytes memory{};
  BytesPerSecond dram{};  // of the node, read plus write
  bool operator==(const Host&) const = default;
};

/// Network adapters of a node. GPU g of n uses adapter g * per_node / n; with more adapters than
/// GPUs each GPU has per_node / n of them.
struct Nics {
  std::int32_t per_node = 0;
  BytesPerSecond each{};
  double efficiency = 1.0;
  bool operator==(const Nics&) const = default;
};

struct NodeType {
  std::string device;  // name in hwmodels/devices
  std::int32_t gpus = 0;
  IntraLinks intra{};
  PcieTree pcie{};
  Host host{};
  Nics nics{};
  BytesPerSecond nvme_read{}, nvme_write{};  // 0: none
  bool operator==(const NodeType&) const = default;
};

struct NodeGroup {
  NodeType type;
  std::int32_t count = 0;
  bool operator==(const NodeGroup&) const = default;
};

/// One level of switches. `nodes_per_group` nodes hang below one switch group of this level; its
/// uplinks carry 1/oversubscription of the bandwidth below it. The last level has no uplink.
struct FabricLevel {
  std::int32_t nodes_per_group = 0;
  double oversubscription = 1.0;
  bool operator==(const FabricLevel&) const = default;
};

/// Fat tree between nodes. Rail-optimised: the leaf level has one switch per rail (adapter index).
struct Fabric {
  FabricKind kind = FabricKind::None;
  bool rail_optimized = false;
  std::vector<FabricLevel> levels;  // leaf first
  Seconds nic_latency{};            // adapter and cable, once per direction of a transfer
  Seconds switch_latency{};         // each switch passed
  bool operator==(const Fabric&) const = default;
};

/// An adapter that is slower than its like, or dead.
struct NicFault {
  std::int32_t node = 0, nic = 0;
  double speed = 0.0;  // share of its speed that is left; 0: failed
  bool operator==(const NicFault&) const = default;
};

struct Cluster {
  std::string name;
  std::vector<NodeGroup> groups;  // nodes in this order
  Fabric fabric{};
  std::vector<NicFault> nic_faults;  // each adapter at most once
  bool operator==(const Cluster&) const = default;

  std::int32_t nodes() const;
  std::int32_t gpus() const;
  /// Distinct device names in order of first use; DeviceKindId indexes it.
  std::vector<std::string> device_kinds() const;
};

}  // namespace gputwin
