// Where the members of a communicator sit: domains (nodes, or NVLink domains that span nodes) in
// order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/topology.h"

namespace gputwin {

struct GroupPlacement {
  std::vector<std::uint32_t> order;  // member indices by GPU: domain after domain
  // Where each domain starts in `order`; one past the end at the back.
  std::vector<std::uint32_t> first;
  std::int32_t per_domain = 0;      // members in every domain; 0 if they differ
  std::int32_t rails = 0;           // network adapters that the members of a domain share, least
  PathKind inner = PathKind::Self;  // path inside a domain; Self if each has one member
  Seconds wire{};                   // latency of the path from the first domain to the second
  Seconds inner_wire{};

  std::int32_t domains() const { return static_cast<std::int32_t>(first.size()) - 1; }
  std::int32_t size() const { return static_cast<std::int32_t>(order.size()); }
};

/// Neighbours in GPU order share a domain if no network lies between them. O(n log n).
GroupPlacement place(const Topology& topology, std::span<const GpuId> members);

/// Parent of `node` in the first (0) or second (1) binary tree over `nodes`, -1 for the root. The
/// trees are NCCL's: the second mirrors the first (even counts) or is shifted by one (odd), so that
/// a node that has children in one is a leaf in the other.
std::int32_t tree_parent(std::int32_t node, std::int32_t nodes, int tree);

}  // namespace gputwin
