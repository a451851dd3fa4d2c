// Splits a micro-batch, by samples or by the tokens of its one sample, into chunks through the
// layers of a stage, so that the tensor-parallel collective of one chunk runs under the kernels of
// the next, across layers.
#pragma once

#include <optional>
#include <string>

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

/// What the pass does not cut although it is asked to; sentences for the reader of a result.
std::vector<std::string> chunk_notes(const Layout& layout, const Job& job);

/// Where the parts of a micro-batch that chunks are made of begin, and their end: its samples; of
/// one sample's sequence the tokens of at most 16 parts of whole tiles of 128 tokens, alike where
/// eight or more such parts are the sequence. Else parts differ by a tile, and what no tile fills
/// is the last part's. A sequence of less than two tiles has parts of tokens; with token shards, of
/// as many as divide by tp.
std::vector<std::int64_t> chunk_borders(const Layout& layout, const Job& job);

/// Kernels and collectives of one layer in the middle of the first stage, by units of a chunk and
/// in order of issue: the parts of a sequence from its end in the backward pass.
struct LayerBlocks {
  std::vector<BlockCosts> forward, backward;
  double filler_seconds = 0;  // weight gradients, which no chunk waits for
};
LayerBlocks layer_blocks(const Lowered& lowered, const StagePrices& prices, const Job& job);

}  // namespace gputwin
