#include "strategies/search/prices.h"

#include <algorithm>

namespace gputwin {
namespace {

Seconds together(const CollectiveSchedule& schedule, const std::vector<Group>& groups,
                 const Topology& topology) {
  double slowest = 0;
  std::map<std::uint32_t, std::int64_t> bytes_on_link;
  for (const FlowEdge& edge : schedule.edges) {
    if (schedule.rate_cap.value > 0) {
      slowest = std::max(slowest, (edge.bytes / schedule.rate_cap).value);
    }
    for (const Group& group : groups) {
      for (const LinkId link : topology.route(group[edge.from], group[edge.to])) {
        bytes_on_link[link.value] += edge.bytes.value;
      }
    }
  }
  for (const auto& [link, bytes] : bytes_on_link) {
    slowest = std::max(slowest, (Bytes(bytes) / topology.link(LinkId(link)).capacity).value);
  }
  return schedule.latency + Seconds(slowest);
}

void mix(std::size_t& hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  hash ^= hash >> 29;
}

}  // namespace

std::size_t Prices::KernelHash::operator()(const KernelKey& key) const {
  std::size_t hash = static_cast<std::size_t>(key.op.kind);
  for (const std::int64_t d : key.op.dims) mix(hash, static_cast<std::uint64_t>(d));
  mix(hash, static_cast<std::uint64_t>(key.read.value));
  mix(hash, static_cast<std::uint64_t>(key.written.value));
  mix(hash, key.device.value);
  return hash;
}

Seconds Prices::kernel(const Op& op, Bytes read, Bytes written, DeviceKindId device) {
  const auto [found, added] = kernels_.try_emplace({op, read, written, device}, Seconds());
  if (added) found->second = costs_.kernel(op, read, written, device).time;
  return found->second;
}

Seconds Prices::collective(OpKind kind, Bytes bytes, const std::vector<Group>& groups) {
  if (groups.empty() || groups[0].size() < 2) return Seconds(0);
  const auto [found, added] = collectives_.try_emplace({kind, bytes, groups}, Seconds());
  if (added) {
    found->second = together(costs_.collective(kind, bytes, groups[0]), groups, topology_);
  }
  return found->second;
}

}  // namespace gputwin
