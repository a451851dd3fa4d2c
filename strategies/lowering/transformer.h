// Lowering of a decoder Transformer: programs, ranks and segments, before recomputation and
// schedule.
#pragma once

#include "sim/core/cluster.h"
#include "sim/core/error.h"
#include "sim/core/segment.h"

namespace gputwin {

/// One program per pipeline stage, shared by its tp and dp ranks, with the segments of its chunks.
///
/// Shapes  activations [tokens of a micro-batch, width]; see stage_builder.h for the parts of a
/// layer. Fails   Infeasible, if degrees do not divide the model or something is not lowered yet.
/// Source  Megatron-LM (Shoeybi et al. 2019; Narayanan et al. 2021; Korthikanti et al. 2022); the
/// kernel
///         list of each software stack is the table in stack_kernels.cpp.
Outcome<Lowered> lower(const Transformer& model, const Cluster& cluster, const Layout& layout,
                       const Job& job);

}  // namespace gputwin
