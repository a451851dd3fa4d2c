// The parts of the pass `compress` beyond the layers.
#pragma once

#include <vector>

#include "sim/core/pass_options.h"
#include "sim/core/plan_builder.h"
#include "sim/core/segment.h"

namespace gputwin {

/// Codes the sums of gradient buckets over data-parallel ranks (zero 0 and 1).
///
/// A bucket is rows of kGradientRow values. All-reduce: as in the layers, in one step or two;
/// reduce-scatter (zero 1): the first of two. A bucket's kernels do not hold up the backward pass:
/// it is encoded where its reduction stood, what lies between two exchanges runs after the next
/// bucket is encoded, and what ends a sum runs after the last backward pass. With feedback what a
/// payload lacks stays in a buffer of 4 bytes a value, on the rank that encodes (with two steps
/// also of its part of the sum), and is added before the next encoding (Karimireddy et al. 2019).
///
/// Low rank: matrix M of each parameter as P Q^T, P = M Q of the last iteration, summed and made
/// orthonormal, Q = M^T P, summed: two all-reduces of 16-bit factors and one of what is too small
/// to gain (vectors). Feedback keeps M - P Q^T with the rank's own Q.
/// Source  Vogels et al. 2019 (arXiv 1905.13727), algorithms 1 and 2.
void compress_gradients(PlanBuilder& builder, const Layout& layout, StageSegments& stage);

/// What stands for the sum of one bucket: each step but the last ends in an exchange.
using CodedSum = std::vector<std::vector<SegmentOp>>;

/// Of `sum`, an all-reduce or reduce-scatter over `ranks` of a bucket padded to whole rows, whose
/// matrices are among `parameters`. Kernels go to stream `compute`.
CodedSum coded_sum(PlanBuilder& builder, const Compression& chosen, std::int64_t ranks,
                   const std::vector<Parameter>& parameters, std::uint8_t compute,
                   const SegmentOp& sum);

/// Codes what goes from stage to stage: encoded after the pass, decoded before the next, by token.
void compress_messages(PlanBuilder& builder, const Compression& chosen, StageSegments& stage);

}  // namespace gputwin
