#include "sim/trace/link_load.h"

#include <algorithm>
#include <cmath>

namespace gputwin {

LinkLoad::LinkLoad(const Topology& topology, const std::vector<LinkId>& links)
    : links_(links), row_of_(topology.links().size(), -1), rows_(links.size()) {
  for (std::size_t row = 0; row < links_.size(); ++row) {
    row_of_[links_[row].value] = static_cast<std::int32_t>(row);
  }
}

void LinkLoad::add(const Route& route, Bytes bytes, Ps start, Ps end) {
  for (const LinkId link : route) {
    const std::int32_t row = row_of_[link.value];
    if (row < 0) continue;
    widen(end);
    auto& windows = rows_[static_cast<std::size_t>(row)];
    if (windows.empty()) windows.resize(kWindows);
    add(windows, bytes.value, start, end);
  }
}

void LinkLoad::widen(Ps end) {
  while (end / width_ >= static_cast<Ps>(kWindows)) {
    width_ *= 2;
    for (auto& row : rows_) {
      if (row.empty()) continue;
      for (std::size_t i = 0; i < kWindows / 2; ++i) row[i] = row[2 * i] + row[2 * i + 1];
      std::fill(row.begin() + kWindows / 2, row.end(), 0);
    }
  }
}

void LinkLoad::add(std::vector<std::int64_t>& row, std::int64_t bytes, Ps start, Ps end) const {
  const auto window = [this](Ps t) { return static_cast<std::size_t>(t / width_); };
  if (window(start) == window(end)) {
    row[window(start)] += bytes;
    return;
  }
  // Rounded running total, so that the windows of a flow sum to its bytes exactly.
  std::int64_t placed = 0;
  for (std::size_t i = window(start); i <= window(end); ++i) {
    const Ps until = std::min(end, static_cast<Ps>(i + 1) * width_);
    const double share = static_cast<double>(until - start) / static_cast<double>(end - start);
    const std::int64_t total = std::llround(static_cast<double>(bytes) * share);
    row[i] += total - placed;
    placed = total;
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
