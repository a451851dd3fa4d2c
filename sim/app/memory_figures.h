// Memory of every role: the plan's own buffers, and what CUDA, NCCL and the allocator add.
#pragma once

#include <optional>
#include <vector>

#include "hwmodels/memory/caching_allocator.h"
#include "sim/core/cost_model.h"
#include "sim/core/error.h"
#include "sim/core/run_result.h"
#include "sim/core/topology.h"

namespace gputwin {

/// Figures of each program, for the rank of it that needs most. `allocated` is what the framework's
/// allocator hands out (its blocks), `reserved` what it holds, `device` what the driver shows.
/// `allocator`: of PyTorch; where the costs state reserved_over_allocated, the framework is another
/// one, and `reserved` is that factor times the blocks of 512 B in use.
std::vector<RoleMemory> predict_memory(const Plan& plan, const CostModel& costs,
                                       const Topology& topology,
                                       const AllocatorOptions& allocator = {});

/// Bytes of host memory that the ranks of each node hold, by node.
std::vector<std::int64_t> host_bytes(const Plan& plan, const std::vector<RoleMemory>& memory,
                                     const Topology& topology);

/// The first role or node whose memory does not suffice, by the largest shortage; none if all fit.
std::optional<Infeasible> memory_shortage(const Plan& plan, const std::vector<RoleMemory>& memory,
                                          const Topology& topology);

}  // namespace gputwin
