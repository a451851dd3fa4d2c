// Recomputation of activations in the backward pass, as a renaming of segments.
#pragma once

#include "sim/core/segment.h"

namespace gputwin {

/// Returns `lowered` with forward operations repeated in backward as `layout.recompute` says.
///
/// A repeated operation writes fresh buffers, and backward reads those; what only forward used is
/// then freed during forward. Kept are the inputs of what is repeated.
///
/// Selective: the attention core (scores, softmax, context; or the flash kernel, as Megatron's
/// checkpoint of its core attention does) right before its own backward.
/// Full: every layer as a whole, collectives included, at the head of its backward. Only the
/// layer's input is kept.
/// Ops (of `recompute_modules`): as torchtitan's checkpoint by operator keeps what products,
/// attention and sums between ranks give, of products every second one's: norms,
/// activations and gathers are repeated, and of a gated MLP's first product the second half, whose
/// space stays (it is written where it was; so memory is an upper bound). The small product of
/// keys, which that policy repeats too, stands in one with queries and values and is not.
/// Block: the first `recompute_layers` layers of each chunk as with Full, by stage.
///
/// Weights that are gathered for every pass (ZeRO 3) are not gathered a third time: what is
/// repeated reads those of backward.
///
/// Source  Chen et al. 2016; Korthikanti et al. 2022, sections 4 and 5 (selective); torchtitan,
/// parallelize_llama.py of June 2025, _apply_ac_to_transformer_block (ops).
Lowered recompute(Lowered lowered);

}  // namespace gputwin
