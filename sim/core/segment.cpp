#include "sim/core/segment.h"

#include <algorithm>

namespace gputwin {

std::vector<std::pair<std::uint32_t, std::uint32_t>> data_edges(const Plan& plan,
                                                                const Segment& segment) {
  const auto conflict = [](const std::vector<View>& a, const std::vector<View>& b) {
    return std::any_of(a.begin(), a.end(), [&](const View& x) {
      return std::any_of(b.begin(), b.end(), [&](const View& y) { return overlap(x, y); });
    });
  };
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  for (std::uint32_t later = 0; later < segment.ops.size(); ++later) {
    const Call& b = plan.calls[segment.ops[later].call.value];
    std::vector<std::uint8_t>
        seen;  // streams already linked: their earlier ops come earlier anyway
    for (std::uint32_t earlier = later; earlier-- > 0;) {
      const Call& a = plan.calls[segment.ops[earlier].call.value];
      const std::uint8_t stream = segment.ops[earlier].stream;
      if (std::find(seen.begin(), seen.end(), stream) != seen.end()) continue;
      if (conflict(a.writes, b.reads) || conflict(a.reads, b.writes) ||
          conflict(a.writes, b.writes)) {
        edges.emplace_back(earlier, later);
        seen.push_back(stream);
      }
    }
  }
  std::sort(edges.begin(), edges.end());
  return edges;
}

}  // namespace gputwin
