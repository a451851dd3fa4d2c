#include "sim/core/cluster.h"

#include <algorithm>

namespace gputwin {

std::int32_t Cluster::nodes() const {
  std::int32_t sum = 0;
  for (const NodeGroup& group : groups) sum += group.count;
  return sum;
}

std::int32_t Cluster::gpus() const {
  std::int32_t sum = 0;
  for (const NodeGroup& group : groups) sum += group.count * group.type.gpus;
  return sum;
}

std::vector<std::string> Cluster::device_kinds() const {
  std::vector<std::string> kinds;
  for (const NodeGroup& group : groups) {
    if (std::find(kinds.begin(), kinds.end(), group.type.device) == kinds.end()) {
      kinds.push_back(group.type.device);
    }
  }
  return kinds;
}

}  // namespace gputwin
