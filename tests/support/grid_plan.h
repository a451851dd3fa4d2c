// Symmetric plans: a tensor x data x pipeline grid of ranks whose stages run random programs.
#pragma once

#include <cstdint>

#include "sim/core/plan.h"

namespace gputwin::test {

/// Rank of (t, d, p) is t + tp (d + dp p), on the GPU of the same number.
struct Grid {
  std::uint32_t tp = 2, dp = 2, pp = 2;
  std::uint32_t micro_batches = 2;
  std::uint64_t seed = 1;  // of kernel times, sizes and the number of kernels per stage
};

/// Every stage: per micro-batch receive, kernels with a tensor-parallel all-reduce after some,
/// send; backward the same way round; then a data-parallel all-reduce, and one between the first
/// and the last stage. Streams compute, tp, dp and pp with the events that order them.
Plan grid_plan(const Grid& grid);

}  // namespace gputwin::test
