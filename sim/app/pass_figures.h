// What a run says about the passes overlap and compress.
#pragma once

#include "sim/core/layout.h"
#include "sim/core/plan.h"
#include "sim/core/run_result.h"

namespace gputwin {

/// True if the layout asks for one of the two.
bool has_passes(const Layout& layout);
/// The layout with blocking, uncompressed collectives.
Layout without_passes(Layout layout);

/// Bytes that one rank of the first program sends in tensor-parallel collectives of a body:
/// 2 (t - 1) / t of an all-reduce's, (t - 1) / t of the others' larger side.
Bytes tp_bytes(const Plan& plan);

/// Chunks, codecs and bytes; times and verdict are filled by `judge`.
PassFigures pass_figures(const Layout& chosen, const Plan& blocking, const Plan& plan,
                         std::int64_t width);
/// Fills in times of both runs and the sentence.
void judge(PassFigures& figures, const Execution& blocking, const Execution& run);

}  // namespace gputwin
