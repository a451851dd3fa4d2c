#include "hwmodels/collectives/placement.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace gputwin {

namespace {

// Adapters behind the members of domain `d`.
std::int32_t rails_of(const Topology& topology, const GroupPlacement& p,
                      std::span<const GpuId> members, std::size_t d) {
  std::int32_t rails = 0;
  std::pair<std::int32_t, std::int32_t> last{-1, -1};
  for (std::uint32_t i = p.first[d]; i < p.first[d + 1]; ++i) {
    const GpuId gpu = members[p.order[i]];
    const std::pair here{topology.node_of(gpu), topology.nic_of(gpu)};
    rails += here != last;  // GPUs come in order, and so do their adapters
    last = here;
  }
  return rails;
}

}  // namespace

GroupPlacement place(const Topology& topology, std::span<const GpuId> members) {
  GroupPlacement p;
  p.order.resize(members.size());
  std::iota(p.order.begin(), p.order.end(), 0u);
  std::stable_sort(p.order.begin(), p.order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return members[a] < members[b]; });
  for (std::uint32_t i = 0; i < p.order.size(); ++i) {
    if (i > 0) {
      const GpuId head = members[p.order[p.first.back()]], here = members[p.order[i]];
      const PathKind path = topology.path(head, here);
      if (path != PathKind::Network) {
        if (p.inner == PathKind::Self || path == PathKind::Pcie) p.inner = path;
        continue;
      }
    }
    p.first.push_back(i);
  }
  p.first.push_back(static_cast<std::uint32_t>(p.order.size()));
  p.per_domain = static_cast<std::int32_t>(p.first[1] - p.first[0]);
  for (std::size_t d = 0; d + 1 < p.first.size(); ++d) {
    if (static_cast<std::int32_t>(p.first[d + 1] - p.first[d]) != p.per_domain) {
      p.per_domain = 0;
      break;
    }
  }
  const auto gpu = [&](std::uint32_t position) { return members[p.order[position]]; };
  for (std::size_t d = 0; p.domains() > 1 && d + 1 < p.first.size(); ++d) {
    const std::int32_t rails = rails_of(topology, p, members, d);
    p.rails = d == 0 ? rails : std::min(p.rails, rails);
  }
  if (p.domains() > 1) p.wire = topology.route(gpu(p.first[0]), gpu(p.first[1])).latency;
  if (p.first[1] > 1) p.inner_wire = topology.route(gpu(0), gpu(1)).latency;
  return p;
}

namespace {

std::int32_t binary_parent(std::int32_t node, std::int32_t nodes) {
  if (node == 0) return -1;
  const std::int32_t bit = node & -node;
  const std::int32_t up = (node ^ bit) | (bit << 1);
  return up < nodes ? up : node ^ bit;
}

}  // namespace

std::int32_t tree_parent(std::int32_t node, std::int32_t nodes, int tree) {
  if (tree == 0) return binary_parent(node, nodes);
  if (nodes % 2 == 0) {
    const std::int32_t parent = binary_parent(nodes - 1 - node, nodes);
    return parent < 0 ? -1 : nodes - 1 - parent;
  }
  const std::int32_t parent = binary_parent((node + nodes - 1) % nodes, nodes);
  return parent < 0 ? -1 : (parent + 1) % nodes;
}

}  // namespace gputwin
