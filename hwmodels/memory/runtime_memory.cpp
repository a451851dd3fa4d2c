#include "hwmodels/memory/runtime_memory.h"

namespace gputwin {

MemoryCost runtime_memory(const Device& device, std::span<const std::int32_t> communicators) {
  std::int64_t holding = 0;
  for (std::int32_t size : communicators) holding += size > 1 ? 1 : 0;
  MemoryCost cost;
  cost.context = device.device_memory.context;
  cost.communicators = device.device_memory.per_communicator * holding;
  cost.workspace = device.device_memory.workspace;
  cost.reserved_over_allocated = 0;  // the caching allocator's model says
  cost.capacity = device.memory;
  return cost;
}

}  // namespace gputwin
