// What happens once per iteration: zeroing, reduction of gradient buckets, gradient norm, Adam,
// gathering.
#pragma once

#include "strategies/lowering/stage_builder.h"

namespace gputwin {

/// Zeroes what micro-batches add to: gradient buckets, or their shards with zero 2 and 3, and the
/// loss where there is one.
void zero_gradients(StageBuilder& b, const View& loss);

/// Adds what one micro-batch made of the gradients of a local chunk to those of the iteration,
/// where the stack keeps them apart (Bucket::fresh).
void accumulate_fresh(StageBuilder& b, std::int32_t chunk);

/// Sums bucket `index` over the ranks that share its parameters: over tp where sequence parallelism
/// left parts, over dp (to a shard with zero 1). For zero 0 and 1; see sharding.h for the others.
void reduce_bucket(StageBuilder& b, std::int32_t index);

/// Gradient norm over the whole model, the optimizer's step on every bucket, and with zero 1 and 2
/// the gathering of the weights. Parameters that all tp ranks hold count tp times in the norm, tied
/// embeddings on two stages twice: one kernel per bucket is what stacks launch, and the norm only
/// scales an update. `sum`: F32 [1], the sum of squares.
///
/// With post-validation (Qi et al. 2023, section 4) no stage waits for all others: each adds its
/// part to what comes from the stage before, into `arriving`, passes that on, and takes its step
/// with it. The step is redone where the whole norm would have clipped it; plans show the usual
/// case, in which it does not.
void update_weights(StageBuilder& b, const View& sum, const View& arriving);

/// Post-validation of the step before: the norm of the whole model travels back from the last
/// stage, into `total`.
void validate_step(StageBuilder& b, const View& sum, const View& total);

}  // namespace gputwin
