// The parts of a layout's closed form: what its place on the cluster costs, and how all parts add
// up.
#pragma once

#include <vector>

#include "strategies/search/estimate.h"

namespace gputwin {

/// What a stage holds besides its layers.
ChunkKind kind_of_stage(const Layout& layout, std::int32_t stage);

/// Of the layers of each chunk, those before the first layer with experts; 0 without experts.
std::vector<std::int32_t> dense_layers(const Transformer& model,
                                       const std::vector<std::int32_t>& layers_per_chunk);

/// Chunk tables by device kind, without and with full recomputation (equal but for Block).
struct Tables {
  std::vector<const ChunkTable*> plain, full;
};

/// One stage of a layout: where it lies, and what it does once per iteration.
struct StageCosts {
  std::uint32_t device = 0;  // slowest kind among its GPUs
  Bytes capacity{};          // of the smallest of them
  double outside = 0;        // bytes beside the allocator: context and communicators
  double workspace = 0;      // bytes of library workspaces
  double persistent = 0;     // bytes of weights, gradients, states, inputs
  double step = 0;           // bytes that the optimizer's step adds for a moment
  double begin = 0;          // seconds: zeroing
  double reduce = 0;         // seconds: all gradient reductions
  double reduce_late = 0;    // seconds: of it, what cannot start before the last backward ends
  double finish = 0;         // seconds: norm, step, gathering
  // With offload (offload_costs.h):
  double forward_copies = 0, backward_copies = 0;  // seconds, by micro-batch
  bool copies_wait = false;  // for kernels, and these for them; else both run side by side
  double host = 0;           // seconds: the host's step, weights going up meanwhile
  double host_share = 0;     // of the parameters that it steps
  bool host_early = false;   // a bucket is stepped as soon as its gradient is there
};

/// One message of activations between neighbouring stages, in seconds.
struct MessageCosts {
  double slowest = 0;
  double all = 0;  // over every boundary, one after the other
};

/// What depends on the grid of ranks and its place, not on micro-batches.
struct GridCosts {
  std::vector<std::int32_t> layers;  // by chunk
  std::vector<std::int32_t> dense;   // of them, see dense_layers
  std::vector<StageCosts> stages;
  double tied = 0;  // seconds: sum of the tied embedding's gradients
  double norm = 0;  // seconds: the gradient norm's all-reduce
};

GridCosts grid_costs(const Probed& probed, const Layout& layout, const Tables& tables,
                     Prices& prices);

MessageCosts message_costs(const Layout& layout, Bytes message, Prices& prices);

/// The formulas of estimate.h.
Estimate compose(const Probed& probed, const Layout& layout, const Tables& tables,
                 const GridCosts& grid, const MessageCosts& messages);

}  // namespace gputwin
