// Schedules as tables: the order in which a stage runs forward and backward passes.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/layout.h"

namespace gputwin {

/// One forward or backward pass of a chunk for one micro-batch.
struct Pass {
  bool backward = false;
  std::int32_t chunk = 0;  // local to the stage, in model order
  std::int32_t micro_batch = 0;
  bool operator==(const Pass&) const = default;
};

/// Order of passes of one stage. Every (chunk, micro-batch) has one forward and, later, one
/// backward.
using StageTable = std::vector<Pass>;

/// All forwards, then all backwards (GPipe, Huang et al. 2019). Bubble (p-1)(F+B); all M in flight.
StageTable gpipe_table(std::int32_t micro_batches);

/// p - r - 1 warm-up forwards, then pairs of one forward and one backward, then the rest
/// (PipeDream-flush, DAPPLE). Bubble (p-1)(F+B); min(M, p - r) in flight on stage r.
StageTable one_f_one_b_table(std::int32_t stages, std::int32_t stage, std::int32_t micro_batches);

/// Megatron's interleaved order (Narayanan et al. 2021): v chunks per stage, groups of p
/// micro-batches, 2 (p - r - 1) + (v - 1) p warm-up forwards; backward takes the chunks in reverse.
/// With p micro-batches all forwards come first, as in Megatron (all_warmup_microbatches). Bubble
/// (p-1)(F+B)/v.
/// `micro_batches` is a multiple of `stages`.
StageTable interleaved_table(std::int32_t stages, std::int32_t chunks, std::int32_t stage,
                             std::int32_t micro_batches);

/// One table per stage of `layout`.
std::vector<StageTable> schedule_tables(const Layout& layout, std::int32_t micro_batches);

}  // namespace gputwin
