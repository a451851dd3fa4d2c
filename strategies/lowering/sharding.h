// What ZeRO 2 and 3 (FSDP) add to every micro-batch: gathering the weights of a unit, reducing its
// gradients.
#pragma once

#include "strategies/lowering/stage_builder.h"

namespace gputwin {

/// Gathers the weights of unit `index` from the shards, for the forward pass or `again` for
/// backward. On the stream of the reductions: FSDP's process group orders all of its collectives.
void gather_unit(StageBuilder& b, std::int32_t index, bool again);

/// Zeroes the whole gradient of unit `index`, into which weight-gradient kernels accumulate. It
/// stands where torch's autograd copies them into one flat gradient, and moves as many bytes: this
/// one write and the read of every accumulating kernel.
void zero_unit(StageBuilder& b, std::int32_t index);

/// Reduces the gradient of unit `index` to the shards, over the copies with hybrid sharding, and
/// adds it to what earlier micro-batches left (FSDP without no_sync).
void reduce_unit(StageBuilder& b, std::int32_t index);

/// Sums the gradient shards over the copies at the end of the iteration, where the stack does so.
void sum_copies(StageBuilder& b);

}  // namespace gputwin
