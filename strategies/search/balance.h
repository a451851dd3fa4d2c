// Uneven stages, and stages on the GPUs that suit them, for a layout whose degrees are chosen.
#pragma once

#include <optional>

#include "strategies/search/chain_partition.h"
#include "strategies/search/estimate.h"

namespace gputwin {

/// `layout` as a chain: one option (its ranks of a stage), layers with the embedding on the first
/// and the head on the last, costs by device kind. For one chunk per stage and all of the layout's
/// ranks in use on whole kinds of devices.
ChainProblem chain_of(const Layout& layout, const Transformer& model, const Cluster& cluster,
                      const Job& job, const Topology& topology, const CostModel& costs,
                      LayoutEstimator& estimator);

/// The layout with layers moved between stages (stage_layers), and on a cluster of several kinds of
/// GPUs with its stages placed anew (devices), as the dynamic programme has it; none if its stages
/// have several chunks or it is a single one, or if no partition fits.
std::optional<Layout> balanced(const Layout& layout, const Transformer& model,
                               const Cluster& cluster, const Job& job, const Topology& topology,
                               const CostModel& costs, LayoutEstimator& estimator);

}  // namespace gputwin
