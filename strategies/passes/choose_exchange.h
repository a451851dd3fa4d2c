// How expert-parallel ranks exchange rows: all with all, or within the nodes first.
#pragma once

#include "sim/core/cluster.h"
#include "sim/core/error.h"
#include "sim/core/job.h"
#include "sim/core/layout.h"
#include "sim/core/workload.h"
#include "strategies/passes/stage_clock.h"

namespace gputwin {

/// Ranks of an expert group on one node, if they follow one another and every node has as many of
/// every group; else 0. ep where each group lies in one node.
std::int32_t experts_ranks_in_node(const Layout& layout, const Topology& topology);

/// The layout with `ep_inner` as `ep_comm` asks. Hierarchical: Infeasible where the ranks of an
/// expert group are not several on each of several nodes. Auto: of both ways the one whose
/// exchanges of a layer, forward and backward, take less time with all groups of a stage at once:
/// kernels and links shared by their communicators counted. Flat without `prices.costs` and where
/// only it can be.
Outcome<Layout> choose_exchange(const Transformer& model, const Cluster& cluster,
                                const Layout& layout, const Job& job, const StagePrices& prices);

}  // namespace gputwin
