// Splits a micro-batch, by samples or by the tokens of its one sample, into chunks through the
// layers of a stage, so that the tensor-parallel collective of one chunk runs under the kernels of
// the next, across layers.
#pragma once

#include <optional>

#include "sim/core/error.h"
#include "sim/core/job.h"
#include "sim/core/segment.h"
#include "sim/core/workload.h"
#include "strategies/overlap/partition.h"
#include "strategies/passes/stage_clock.h"

namespace gputwin {

/// `lowered` with the layers' operations cut into the chunks of layout.chunk_overlap, which must be
/// chosen. One chunk leaves it as it is.
///
/// Shapes  a tensor of a micro-batch of b samples has rows in proportion to them; chunk [i, j) is
///         rows [rows i / b, rows j / b) of every framed view, and dims[0] of the op shrinks alike.
///         With sequence parallelism a rank's token shard lists the chunks in order, which gathers
///         undo with the same borders, also at both ends of the model.
/// Tokens  as chunk_cut.h says. Chunks pass attention in order, backward from the end.
/// Weight gradients stay whole and fill the waits of the compute stream. Order: whichever chunk's
/// next kernels can start first, from the prices of both streams.
/// Source  Domino (row split), Merak; strategies/overlap/partition.h for the choice of chunks.
Lowered overlap(Lowered lowered, const StagePrices& prices);

/// Why the layers of such a job cannot be cut so, if so.
std::optional<Infeasible> overlap_refusal(const Transformer& model, const Layout& layout,
                                          const Job& job);

/// Equal parts of a micro-batch that chunks are made of: its samples; of one sample's sequence the
/// most parts up to 16 of whole tiles of 128 tokens, or of tokens where those do not fit.
std::int64_t chunk_units(const Layout& layout, const Job& job);

/// Kernels and collectives of one layer in the middle of the first stage, by units of a chunk and
/// in order of issue: the parts of a sequence from its end in the backward pass.
struct LayerBlocks {
  std::vector<BlockCosts> forward, backward;
  double filler_seconds = 0;  // weight gradients, which no chunk waits for
};
LayerBlocks layer_blocks(const Lowered& lowered, const StagePrices& prices, const Job& job);

}  // namespace gputwin
