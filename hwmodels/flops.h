// FLOPs of one training iteration of a Transformer, for MFU and HFU.
//
// Model FLOPs are 3 x the forward pass (backward = 2 x forward): every linear layer 2 x tokens x
// weights, attention 4 s u d per head and sample, LM head 2 x tokens x h x v. Embedding, norms and
// softmax count nothing. With low-rank adapters the frozen weights count 2 x their forward pass.
// Two conventions for attention: Megatron counts the full s x s square, the causal one only what
// the mask leaves, s (s + 1) / 2. Hardware FLOPs add what the layout recomputes: layers as a whole,
// attention, or the products of `recompute_modules` (strategies/passes/recompute.h). A flash
// kernel's own recomputation of the scores is not counted, as usual.
//
// With h = heads x head size, ffn = 4h, and the full square this is the formula of Narayanan et al.
// (SC 2021): 72 B s l h^2 (1 + s/6h + V/12lh), with full recomputation
// 96 B s l h^2 (1 + s/6h + V/16lh).
#pragma once

#include <string_view>

#include "sim/core/job.h"
#include "sim/core/layout.h"
#include "sim/core/units.h"
#include "sim/core/workload.h"

namespace gputwin {

enum class FlopsConvention : std::uint8_t { Megatron, Causal };

struct IterationFlops {
  Flops model{};     // the mathematics of one iteration over all ranks
  Flops hardware{};  // with what is recomputed
};

/// FLOPs of one iteration of `job.global_batch` samples over all ranks.
IterationFlops iteration_flops(const Transformer& model, const Job& job, const Layout& layout,
                               FlopsConvention convention);

/// The same of a layer graph: 3 x its convolutions, products and attention, whole squares; with
/// recomputation the forward pass again (of all micro-batches but the last, if that is spared).
/// Convolutions count as direct products: Winograd's kernels multiply 2.25 times less and more, so
/// that more than the peak can come out.
IterationFlops iteration_flops(const LayerGraph& graph, const Job& job, const Layout& layout);

/// One sentence for reports: what is counted.
std::string_view flops_convention_text(FlopsConvention convention);
std::string_view graph_flops_text();

}  // namespace gputwin
