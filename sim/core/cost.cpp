#include "sim/core/cost.h"

#include <algorithm>
#include <unordered_map>

namespace gputwin {

Seconds closed_form(const CollectiveSchedule& schedule, const std::vector<GpuId>& members,
                    const Topology& topology) {
  double slowest = 0.0;
  std::unordered_map<std::uint32_t, std::int64_t> bytes_on_link;
  for (const FlowEdge& edge : schedule.edges) {
    if (schedule.rate_cap.value > 0) {
      slowest = std::max(slowest, (edge.bytes / schedule.rate_cap).value);
    }
    for (const LinkId link : topology.route(members[edge.from], members[edge.to])) {
      bytes_on_link[link.value] += edge.bytes.value;
    }
  }
  // The maximum does not depend on the order of iteration.
  for (const auto& [link, bytes] : bytes_on_link) {
    slowest = std::max(slowest, (Bytes(bytes) / topology.link(LinkId(link)).capacity).value);
  }
  return schedule.latency + Seconds(slowest);
}

}  // namespace gputwin
