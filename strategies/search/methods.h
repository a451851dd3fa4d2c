// Layouts that other methods and rules of thumb would choose, to hold the search against.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "strategies/search/estimate.h"

namespace gputwin {

struct Method {
  const char* name;
  const char* what;  // its rule, and where it comes from
};

/// In the order of reports: data-parallel, fsdp, tensor-in-node, gpipe, 1f1b, megatron, amp, alpa,
/// galvatron.
std::span<const Method> methods();

/// What the methods look at.
struct MethodWorld {
  const Transformer& model;
  const Cluster& cluster;
  const Job& job;
  LayoutEstimator& estimator;
};

/// Index of the layout that `method` would choose of `layouts`, which fit and come in ascending
/// closed form; none if none is of its kind. Where a method leaves a setting open (recomputation,
/// sharded optimizer states, chunks) the closed form sets it. Unknown names are a programming
/// error.
std::optional<std::size_t> choose(const std::string& method, std::span<const Layout* const> layouts,
                                  const MethodWorld& world);

/// AMP's estimate of an iteration, in seconds: with stage times t of forward and backward, M
/// micro-batches and messages c,
///   sum t + sum c + (M - 1) max t + 2 (d - 1) / d x gradients / slowest link of the replicas
/// of even stages, no reduction hidden.
/// Source  Li et al. 2022 (AMP, NeurIPS), section 4, and its code (src/pipe.py, src/amp_utils.py);
/// stage times are this tool's, where AMP profiles them.
double amp_seconds(const Layout& layout, const MethodWorld& world);

/// `layout` with as few layers computed again as let it fit, stage by stage from the fullest
/// (recompute "block"); none if it fits as it is, or not even with all of them. Layers of a
/// Transformer are alike, so this is what Galvatron's programme over layers and memory
/// (f[v] = min over strategies of f[v - memory] + time) gives for kept or recomputed layers.
std::optional<Layout> recomputed_as_needed(Layout layout, const Transformer& model,
                                           LayoutEstimator& estimator);

}  // namespace gputwin
