// Schedules as tables: the order in which a stage runs forward and backward passes.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/layout.h"

namespace gputwin {

/// Backward is the whole backward pass, or its part for the input where the schedule splits it.
enum class PassKind : std::uint8_t { Forward, Backward, WeightGrad };
inline constexpr std::size_t kPassKinds = 3;

/// One pass of a chunk for one micro-batch.
struct Pass {
  PassKind kind = PassKind::Forward;
  std::int32_t chunk = 0;  // local to the stage
  std::int32_t micro_batch = 0;
  bool joined = false;  // one unit with the next pass: its message leaves with that one's
  bool operator==(const Pass&) const = default;
};

/// Order of passes of one stage. Every (chunk, micro-batch) has one forward, later one backward
/// and, where the schedule splits it, still later one weight-gradient pass. (Two ways: each
/// micro-batch on one of the two chunks.)
using StageTable = std::vector<Pass>;

/// What passes of one chunk take and hold, in any unit: schedules that are searched for weigh them.
struct PassCosts {
  double forward = 1, backward = 1, weight_grad = 1;
  double kept = 1;      // memory that a forward pass adds
  double released = 0;  // of it, what the backward pass gives back; the weight gradient the rest
};

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

/// ZB-H1 (Qi et al. 2023): 1F1B with a split backward pass; stage r leaves r weight gradients
/// behind, so that every stage holds p micro-batches, what the first holds in 1F1B. Bubble
/// (p-1)(F+B-W), if F, B and W take the same time.
StageTable zb_h1_table(std::int32_t stages, std::int32_t stage, std::int32_t micro_batches);

/// DualPipe (DeepSeek-V3, 2024; order of its published code): the stages hold the model twice, in
/// opposite order, and each half of the micro-batches runs one way. Local chunk 0 runs down. A
/// forward and a backward pass that run together are one unit, and so are a backward pass and its
/// weight gradient but at the end, where these are left behind to fill waits. Bubble (p/2-1)(F +
/// 2B' - 3W), B' = B + W; p + 1 in flight. `stages` is even, `micro_batches` even and at least 2 p.
StageTable dualpipe_table(std::int32_t stages, std::int32_t stage, std::int32_t micro_batches);

/// One table per stage of `layout`; those that weigh passes use `costs`, by model chunk (empty: all
/// passes alike), and the time of a `message` between stages.
std::vector<StageTable> schedule_tables(const Layout& layout, std::int32_t micro_batches,
                                        const std::vector<PassCosts>& costs = {},
                                        double message = 0);

}  // namespace gputwin
