#include "validation/executors/host/core_sets.h"

#include <sched.h>

namespace gputwin::executors {

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

CoreSet cores_of(std::size_t rank, std::size_t ranks, const std::vector<int>& usable) {
  if (usable.empty()) return {};
  const std::size_t each = usable.size() / ranks;
  if (each <= 1) {
    const std::vector<int> one{usable[rank % usable.size()]};
    return {one, one};
  }
  const auto first = usable.begin() + static_cast<std::ptrdiff_t>(rank * each);
  return {{*first}, {first + 1, first + static_cast<std::ptrdiff_t>(each)}};
}

void stay_on(const std::vector<int>& cores) {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

}  // namespace gputwin::executors
