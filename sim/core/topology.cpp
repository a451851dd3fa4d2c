#include "sim/core/topology.h"

#include <algorithm>
#include <cstdlib>

#include "sim/core/check.h"

namespace gputwin {
namespace {

constexpr std::uint32_t kNone = LinkId::kNone;

bool has_nvlink(const NodeType& type) {
  return type.intra.kind == IntraKind::NvSwitch || type.intra.kind == IntraKind::NvLinkMesh ||
         type.intra.kind == IntraKind::NvLinkPairs;
}

std::int32_t pcie_switches(const NodeType& type) {
  return (type.gpus + type.pcie.gpus_per_switch - 1) / type.pcie.gpus_per_switch;
}

// NVLinks between the GPUs of a DGX-1V (p3.16xlarge), as nvidia-smi topo -m prints them; six each.
constexpr std::int32_t kCubeMesh[8][8] = {{0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0},
                                          {1, 2, 0, 2, 0, 0, 1, 0}, {2, 1, 2, 0, 0, 0, 0, 1},
                                          {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1},
                                          {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0}};
constexpr double kCubeMeshLinks = 6.0;

/// Share of a GPU's NVLinks that lead directly to another one of its node; mesh kinds only.
double nvlink_share(const NodeType& type, std::int32_t a, std::int32_t b) {
  if (a == b) return 0.0;
  if (type.intra.kind == IntraKind::NvLinkPairs) return a / 2 == b / 2 ? 1.0 : 0.0;
  if (type.gpus == 8) return kCubeMesh[a][b] / kCubeMeshLinks;
  return 1.0 / (type.gpus - 1);
}

/// The GPU over which two GPUs without a direct link reach each other best, the first of equals; -1
/// if they have one.
std::int32_t relay(const NodeType& type, std::int32_t a, std::int32_t b) {
  if (nvlink_share(type, a, b) > 0) return -1;
  std::int32_t best = -1;
  double most = 0.0;
  for (std::int32_t r = 0; r < type.gpus; ++r) {
    const double least = std::min(nvlink_share(type, a, r), nvlink_share(type, r, b));
    if (least > most) best = r, most = least;
  }
  GPUTWIN_CHECK(best >= 0, "any two GPUs of a cube mesh share a neighbour");
  return best;
}

/// Adapters as links: one per adapter, or one per GPU where a GPU has several (they are used
/// together).
std::int32_t nic_links(const NodeType& type) { return std::min(type.nics.per_node, type.gpus); }

BytesPerSecond nic_capacity(const NodeType& type) {
  const double per_link = static_cast<double>(type.nics.per_node) / nic_links(type);
  return type.nics.each * (type.nics.efficiency * per_link);
}

/// Share of the capacity of a node's adapter link `n` that faults have left; dead: 0.
double live_share(const Cluster& cluster, const NodeType& type, std::int32_t node, std::int32_t n) {
  const std::int32_t links = nic_links(type);
  double share = 1.0;
  for (const NicFault& fault : cluster.nic_faults) {
    if (fault.node != node || fault.nic * links / type.nics.per_node != n) continue;
    share -= (1.0 - fault.speed) * links / type.nics.per_node;
  }
  return share > 1e-9 ? share : 0.0;
}

// Offsets of a node's links behind its first one, in the order add_node makes them.
struct Offsets {
  std::int32_t gpus, switches, nics;
  bool mesh;
  std::uint32_t nvlink_up(std::int32_t gpu) const { return static_cast<std::uint32_t>(2 * gpu); }
  std::uint32_t nvlink_down(std::int32_t gpu) const {
    return static_cast<std::uint32_t>(2 * gpu + 1);
  }
  std::uint32_t pair(std::int32_t from, std::int32_t to) const {
    return static_cast<std::uint32_t>(from * gpus + to);
  }
  std::uint32_t nvlinks() const {
    return static_cast<std::uint32_t>(mesh ? gpus * gpus : 2 * gpus);
  }
  std::uint32_t pcie_up(std::int32_t gpu) const {
    return nvlinks() + static_cast<std::uint32_t>(2 * gpu);
  }
  std::uint32_t pcie_down(std::int32_t gpu) const { return pcie_up(gpu) + 1; }
  std::uint32_t switch_up(std::int32_t s) const {
    return nvlinks() + static_cast<std::uint32_t>(2 * gpus + 2 * s);
  }
  std::uint32_t switch_down(std::int32_t s) const { return switch_up(s) + 1; }
  std::uint32_t memory() const {
    return nvlinks() + static_cast<std::uint32_t>(2 * gpus + 2 * switches);
  }
  std::uint32_t nvme_read() const { return memory() + 1; }
  std::uint32_t nvme_write() const { return memory() + 2; }
  std::uint32_t nic_up(std::int32_t n) const {
    return memory() + 3 + static_cast<std::uint32_t>(2 * n);
  }
  std::uint32_t nic_down(std::int32_t n) const { return nic_up(n) + 1; }
};

Offsets offsets_of(const NodeType& type) {
  const bool mesh =
      type.intra.kind == IntraKind::NvLinkMesh || type.intra.kind == IntraKind::NvLinkPairs;
  return {type.gpus, pcie_switches(type), nic_links(type), mesh};
}

}  // namespace

Topology::Topology(const Cluster& cluster) : cluster_(cluster) {
  const std::vector<std::string> kinds = cluster_.device_kinds();
  std::int32_t node = 0;
  for (std::size_t g = 0; g < cluster_.groups.size(); ++g) {
    const NodeGroup& group = cluster_.groups[g];
    std::uint32_t kind = 0;
    while (kinds[kind] != group.type.device) ++kind;
    for (std::int32_t i = 0; i < group.count; ++i, ++node) {
      node_group_.push_back(static_cast<std::int32_t>(g));
      for (std::int32_t gpu = 0; gpu < group.type.gpus; ++gpu) {
        gpu_node_.push_back(node);
        gpu_index_.push_back(gpu);
        gpu_kind_.push_back(DeviceKindId(kind));
      }
      node_first_link_.push_back(static_cast<std::uint32_t>(links_.size()));
      add_node(group.type, node);
    }
  }
  add_fabric();
}

LinkId Topology::add_link(LinkKind kind, BytesPerSecond capacity, std::int32_t node,
                          std::int32_t index, std::int32_t level) {
  links_.push_back({kind, capacity, node, index, level});
  return LinkId(static_cast<std::uint32_t>(links_.size() - 1));
}

void Topology::add_node(const NodeType& type, std::int32_t node) {
  GPUTWIN_CHECK(type.pcie.gpus_per_switch > 0, "a GPU hangs below some PCIe switch or socket");
  const Offsets at = offsets_of(type);
  const BytesPerSecond nvlink = type.intra.per_gpu * type.intra.efficiency;
  if (at.mesh) {
    // A slot for every ordered pair; those without a direct link are on no route.
    for (std::int32_t from = 0; from < type.gpus; ++from) {
      for (std::int32_t to = 0; to < type.gpus; ++to) {
        const double share = nvlink_share(type, from, to);
        add_link(LinkKind::NvLinkPair, nvlink * (share > 0 ? share : 1.0), node,
                 from * type.gpus + to);
      }
    }
  } else {
    for (std::int32_t gpu = 0; gpu < type.gpus; ++gpu) {
      add_link(LinkKind::NvLinkUp, nvlink, node, gpu);
      add_link(LinkKind::NvLinkDown, nvlink, node, gpu);
    }
  }
  const BytesPerSecond pcie = type.pcie.per_gpu * type.pcie.efficiency;
  for (std::int32_t gpu = 0; gpu < type.gpus; ++gpu) {
    add_link(LinkKind::PcieUp, pcie, node, gpu);
    add_link(LinkKind::PcieDown, pcie, node, gpu);
  }
  const BytesPerSecond uplink = type.pcie.switch_uplink * type.pcie.efficiency;
  for (std::int32_t s = 0; s < at.switches; ++s) {
    add_link(LinkKind::PcieSwitchUp, uplink, node, s);
    add_link(LinkKind::PcieSwitchDown, uplink, node, s);
  }
  add_link(LinkKind::HostMemory, type.host.dram, node, 0);
  add_link(LinkKind::NvmeRead, type.nvme_read, node, 0);
  add_link(LinkKind::NvmeWrite, type.nvme_write, node, 0);
  add_adapters(type, node);
}

void Topology::add_adapters(const NodeType& type, std::int32_t node) {
  std::vector<std::int32_t> live;
  for (std::int32_t n = 0; n < nic_links(type); ++n) {
    const double share = live_share(cluster_, type, node, n);
    const BytesPerSecond capacity = nic_capacity(type) * (share > 0 ? share : 1.0);
    add_link(LinkKind::NicUp, capacity, node, n);
    add_link(LinkKind::NicDown, capacity, node, n);
    if (share > 0) live.push_back(n);
  }
  GPUTWIN_CHECK(live.empty() == (nic_links(type) == 0), "a node keeps one adapter");
  for (std::int32_t gpu = 0; gpu < type.gpus; ++gpu) {
    const std::int32_t own = gpu * nic_links(type) / type.gpus;
    const auto nearest = std::min_element(
        live.begin(), live.end(),
        [&](std::int32_t a, std::int32_t b) { return std::abs(a - own) < std::abs(b - own); });
    gpu_nic_.push_back(nearest == live.end() ? -1 : *nearest);
  }
}

// Level l of the fat tree groups nodes; at the leaf level of a rail-optimised fabric each rail has
// a switch of its own. An uplink exists only where it can be a bottleneck.
void Topology::add_fabric() {
  const auto& levels = cluster_.fabric.levels;
  std::int32_t rails = 1;
  for (const NodeGroup& g : cluster_.groups) rails = std::max(rails, nic_links(g.type));
  if (!cluster_.fabric.rail_optimized) rails = 1;
  for (std::size_t l = 0; l < levels.size(); ++l) {
    const std::int32_t per_group = std::max(1, levels[l].nodes_per_group);
    const std::int32_t groups = (cluster_.nodes() + per_group - 1) / per_group;
    const auto slots = static_cast<std::size_t>(groups * rails);
    fabric_up_.emplace_back(slots, kNone);
    fabric_down_.emplace_back(slots, kNone);
    if (levels[l].oversubscription <= 1.0 || groups <= 1) continue;
    for (std::int32_t g = 0; g < groups; ++g) {
      for (std::int32_t rail = 0; rail < rails; ++rail) {
        double below = 0;
        for (std::int32_t n = g * per_group; n < std::min((g + 1) * per_group, cluster_.nodes());
             ++n) {
          const NodeType& type = cluster_.groups[static_cast<std::size_t>(node_group_[n])].type;
          const std::int32_t nics = nic_links(type);
          if (nics == 0) continue;
          const double each = nic_capacity(type).value;
          below += cluster_.fabric.rail_optimized ? (rail < nics ? each : 0.0) : each * nics;
        }
        const BytesPerSecond capacity(below / levels[l].oversubscription);
        const std::int32_t index = g * rails + rail;
        const auto level = static_cast<std::int32_t>(l);
        const auto slot = static_cast<std::size_t>(index);
        fabric_up_[l][slot] = add_link(LinkKind::FabricUp, capacity, -1, index, level).value;
        fabric_down_[l][slot] = add_link(LinkKind::FabricDown, capacity, -1, index, level).value;
      }
    }
  }
}

const NodeType& Topology::node_type(GpuId gpu) const {
  return cluster_.groups[static_cast<std::size_t>(node_group_[gpu_node_[gpu.value]])].type;
}

PathKind Topology::path(GpuId a, GpuId b) const {
  if (a == b) return PathKind::Self;
  const NodeType& type = node_type(a);
  const std::int32_t node_a = gpu_node_[a.value], node_b = gpu_node_[b.value];
  if (has_nvlink(type) && type.intra.domain_gpus > type.gpus) {
    // An NVLink domain over several nodes: consecutive GPUs of the cluster.
    const auto domain = static_cast<std::uint32_t>(type.intra.domain_gpus);
    if (a.value / domain == b.value / domain) return PathKind::NvLink;
  }
  if (node_a != node_b) return PathKind::Network;
  if (type.intra.kind == IntraKind::NvLinkPairs) {
    return gpu_index_[a.value] / 2 == gpu_index_[b.value] / 2 ? PathKind::NvLink : PathKind::Pcie;
  }
  return has_nvlink(type) ? PathKind::NvLink : PathKind::Pcie;
}

BytesPerSecond Topology::direct_nvlink(GpuId a, GpuId b) const {
  const NodeType& type = node_type(a);
  const std::int32_t node = gpu_node_[a.value];
  if (node != gpu_node_[b.value] || !offsets_of(type).mesh) return BytesPerSecond(0);
  const double share = nvlink_share(type, gpu_index_[a.value], gpu_index_[b.value]);
  return type.intra.per_gpu * (type.intra.efficiency * share);
}

Route Topology::route(GpuId from, GpuId to) const {
  Route route;
  route.path = path(from, to);
  const std::int32_t a = gpu_index_[from.value], b = gpu_index_[to.value];
  const auto link = [&](GpuId gpu, std::uint32_t offset) {
    return LinkId(node_first_link_[static_cast<std::size_t>(gpu_node_[gpu.value])] + offset);
  };
  const Offsets at_from = offsets_of(node_type(from)), at_to = offsets_of(node_type(to));
  switch (route.path) {
    case PathKind::Self: break;
    case PathKind::NvLink:
      if (at_from.mesh) {
        const std::int32_t via = relay(node_type(from), a, b);
        if (via >= 0) route.add(link(from, at_from.pair(a, via)));
        route.add(link(from, at_from.pair(via >= 0 ? via : a, b)));
      } else {
        route.add(link(from, at_from.nvlink_up(a)));
        route.add(link(to, at_to.nvlink_down(b)));
      }
      break;
    case PathKind::Pcie: {
      const std::int32_t per_switch = node_type(from).pcie.gpus_per_switch;
      route.add(link(from, at_from.pcie_up(a)));
      if (a / per_switch != b / per_switch) {
        route.add(link(from, at_from.switch_up(a / per_switch)));
        route.add(link(to, at_to.switch_down(b / per_switch)));
      }
      route.add(link(to, at_to.pcie_down(b)));
      break;
    }
    case PathKind::Network: route_fabric(from, to, route); break;
  }
  return route;
}

void Topology::route_fabric(GpuId from, GpuId to, Route& route) const {
  const std::int32_t nic_from = nic_of(from), nic_to = nic_of(to);
  GPUTWIN_CHECK(nic_from >= 0 && nic_to >= 0, "GPUs of two nodes are connected by adapters");
  const std::int32_t node_from = gpu_node_[from.value], node_to = gpu_node_[to.value];
  const auto link = [&](std::int32_t node, std::uint32_t offset) {
    return LinkId(node_first_link_[static_cast<std::size_t>(node)] + offset);
  };
  route.add(link(node_from, offsets_of(node_type(from)).nic_up(nic_from)));
  const Fabric& fabric = cluster_.fabric;
  const bool rails = fabric.rail_optimized;
  const bool same_rail = !rails || nic_from == nic_to;
  std::size_t top = 0;  // levels to climb before a common switch
  std::int32_t switches = 1;
  for (; top + 1 < fabric.levels.size(); ++top, switches += 2) {
    const std::int32_t per_group = std::max(1, fabric.levels[top].nodes_per_group);
    const bool same_group = node_from / per_group == node_to / per_group;
    // Only the leaf level separates rails; above it every switch reaches all of them.
    if (same_group && (top > 0 || same_rail)) break;
  }
  for (std::size_t l = 0; l < fabric.levels.size(); ++l) {
    if (l >= top) break;
    const std::int32_t per_group = std::max(1, fabric.levels[l].nodes_per_group);
    const std::int32_t groups = (cluster_.nodes() + per_group - 1) / per_group;
    const auto rail_count = static_cast<std::int32_t>(fabric_up_[l].size()) / groups;
    const auto slot = [&](std::int32_t node, std::int32_t nic) {
      return static_cast<std::size_t>(node / per_group * rail_count + (rails ? nic : 0));
    };
    const std::uint32_t up = fabric_up_[l][slot(node_from, nic_from)];
    const std::uint32_t down = fabric_down_[l][slot(node_to, nic_to)];
    if (up != kNone) route.add(LinkId(up));
    if (down != kNone) route.add(LinkId(down));
  }
  route.add(link(node_to, offsets_of(node_type(to)).nic_down(nic_to)));
  route.latency = fabric.nic_latency + fabric.switch_latency * static_cast<double>(switches);
}

Route Topology::copy_route(GpuId gpu, CopyKind kind) const {
  Route route;
  route.path = PathKind::Pcie;
  const NodeType& type = node_type(gpu);
  const Offsets at = offsets_of(type);
  const std::uint32_t first = node_first_link_[static_cast<std::size_t>(gpu_node_[gpu.value])];
  const std::int32_t index = gpu_index_[gpu.value];
  const std::int32_t sw = index / type.pcie.gpus_per_switch;
  switch (kind) {
    case CopyKind::HostToDevice:
      route.add(LinkId(first + at.memory()));
      route.add(LinkId(first + at.switch_down(sw)));
      route.add(LinkId(first + at.pcie_down(index)));
      break;
    case CopyKind::DeviceToHost:
      route.add(LinkId(first + at.pcie_up(index)));
      route.add(LinkId(first + at.switch_up(sw)));
      route.add(LinkId(first + at.memory()));
      break;
    case CopyKind::DeviceToDevice: route.path = PathKind::Self; break;
    case CopyKind::NvmeToHost:
      route.add(LinkId(first + at.nvme_read()));
      route.add(LinkId(first + at.memory()));
      break;
    case CopyKind::HostToNvme:
      route.add(LinkId(first + at.memory()));
      route.add(LinkId(first + at.nvme_write()));
      break;
  }
  return route;
}

std::string Topology::link_name(LinkId id) const {
  const Link& l = links_[id.value];
  const std::string where = "node " + std::to_string(l.node) + " ";
  const std::string index = std::to_string(l.index);
  switch (l.kind) {
    case LinkKind::NvLinkUp: return where + "gpu " + index + " NVLink up";
    case LinkKind::NvLinkDown: return where + "gpu " + index + " NVLink down";
    case LinkKind::NvLinkPair: {
      const std::int32_t n =
          cluster_.groups[static_cast<std::size_t>(node_group_[l.node])].type.gpus;
      return where + "NVLink " + std::to_string(l.index / n) + " to " + std::to_string(l.index % n);
    }
    case LinkKind::PcieUp: return where + "gpu " + index + " PCIe up";
    case LinkKind::PcieDown: return where + "gpu " + index + " PCIe down";
    case LinkKind::PcieSwitchUp: return where + "PCIe switch " + index + " up";
    case LinkKind::PcieSwitchDown: return where + "PCIe switch " + index + " down";
    case LinkKind::HostMemory: return where + "host memory";
    case LinkKind::NicUp: return where + "nic " + index + " up";
    case LinkKind::NicDown: return where + "nic " + index + " down";
    case LinkKind::NvmeRead: return where + "NVMe read";
    case LinkKind::NvmeWrite: return where + "NVMe write";
    case LinkKind::FabricUp:
    case LinkKind::FabricDown: {
      const std::string way = l.kind == LinkKind::FabricUp ? " up" : " down";
      return "fabric level " + std::to_string(l.level) + " switch " + index + way;
    }
  }
  return {};
}

}  // namespace gputwin
