// Device memory beside the plan's buffers: CUDA context, NCCL, library workspaces. What the
// allocator reserves beyond what it hands out follows from caching_allocator.h.
//
//   communicators = (number of communicators of two or more ranks) x per_communicator
// Source  per device with their origin in devices/*.json.
#pragma once

#include <span>

#include "hwmodels/device.h"
#include "sim/core/cost.h"

namespace gputwin {

/// `communicators`: sizes of the rank's communicators; those of one rank hold no buffers.
MemoryCost runtime_memory(const Device& device, std::span<const std::int32_t> communicators);

}  // namespace gputwin
