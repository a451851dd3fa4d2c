// Device memory beside the plan's buffers: CUDA context, NCCL, library workspaces, allocator slack.
//
//   communicators = (number of communicators of two or more ranks) x per_communicator
// Source  reserved / allocated 1.04 (1.03-1.09) over 31 B200 rows that print both; the others per
//         device with their origin in devices/*.json.
#pragma once

#include <span>

#include "hwmodels/device.h"
#include "sim/core/cost.h"

namespace gputwin {

/// `communicators`: sizes of the rank's communicators; those of one rank hold no buffers.
MemoryCost runtime_memory(const Device& device, std::span<const std::int32_t> communicators);

}  // namespace gputwin
