#include "sim/trace/link_load.h"

#include <algorithm>

namespace gputwin {

LinkLoad::LinkLoad(const Topology& topology, const std::vector<LinkId>& links)
    : links_(links), row_of_(topology.links().size(), -1), windows_(links.size()) {
  for (std::size_t row = 0; row < links_.size(); ++row) {
    row_of_[links_[row].value] = static_cast<std::int32_t>(row);
  }
}

void LinkLoad::add(const Route& route, Bytes bytes, Ps start, Ps end) {
  for (const LinkId link : route) {
    const std::int32_t row = row_of_[link.value];
    if (row >= 0) windows_.add(static_cast<std::size_t>(row), bytes.value, start, end);
  }
}

namespace {

bool belongs_to(const Topology& topology, const Link& link, GpuId gpu) {
  if (link.node != topology.node_of(gpu)) return false;
  switch (link.kind) {
    case LinkKind::NvLinkUp:
    case LinkKind::NvLinkDown:
    case LinkKind::NvLinkPair:
    case LinkKind::PcieUp:
    case LinkKind::PcieDown: return link.index == topology.index_in_node(gpu);
    case LinkKind::NicUp:
    case LinkKind::NicDown: return link.index == topology.nic_of(gpu);
    case LinkKind::PcieSwitchUp:
    case LinkKind::PcieSwitchDown:
    case LinkKind::HostMemory:
    case LinkKind::NvmeRead:
    case LinkKind::NvmeWrite: return true;
    case LinkKind::FabricUp:
    case LinkKind::FabricDown: return false;
  }
  return false;
}

}  // namespace

std::vector<LinkId> links_near(const Topology& topology, const std::vector<GpuId>& gpus,
                               std::size_t limit) {
  const auto& links = topology.links();
  std::vector<LinkId> chosen;
  for (const bool fabric : {false, true}) {
    for (std::uint32_t id = 0; id < links.size() && chosen.size() < limit; ++id) {
      const Link& link = links[id];
      const bool wanted =
          fabric ? link.node < 0 : std::any_of(gpus.begin(), gpus.end(), [&](GpuId gpu) {
            return belongs_to(topology, link, gpu);
          });
      if (wanted) chosen.push_back(LinkId(id));
    }
  }
  return chosen;
}

}  // namespace gputwin
