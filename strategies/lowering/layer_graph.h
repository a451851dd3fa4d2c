// Layer graphs (CNN, RNN, encoders) as data-parallel pipelines: stages of consecutive units, each
// with replicas of its own.
//
// Every stage works on every micro-batch; its replicas split it by samples. With as many replicas
// everywhere (layout.dp) these are whole pipelines side by side; with layout.stage_replicas a stage
// of three sends thirds of the micro-batch to a stage of one, as PipeDream's plans run
// with a flush. Without one they take whole micro-batches in turn. Tensors that several later
// stages read are handed on from stage to stage.
#pragma once

#include <vector>

#include "sim/core/cluster.h"
#include "sim/core/error.h"
#include "sim/core/job.h"
#include "sim/core/layout.h"
#include "sim/core/plan.h"
#include "sim/core/workload.h"

namespace gputwin {

/// Replicas of each stage: layout.stage_replicas, or dp of each.
std::vector<std::int32_t> replicas_of(const Layout& layout);

/// Units of each stage: layout.stage_layers, or as even as possible, the remainder on the first.
std::vector<std::int32_t> units_of(const LayerGraph& graph, const Layout& layout);

/// Micro-batches of an iteration without a flush: the multiple of all counts of replicas that is
/// not above `wanted`, or the least that runs.
std::int64_t endless_micro_batches(const Layout& layout, std::int64_t wanted);

/// The plan of one iteration, schedule included.
///
/// Schedules  none, gpipe (backward in reverse order of micro-batches, as in GPipe), 1f1b; without
///            a flush pipedream-stash (a step after every round of a stage's replicas, weights kept
///            for every micro-batch in flight) and pipedream-async (2BW: one step an iteration, two
///            versions). Without a flush a replica takes whole micro-batches in turn
///            (layout.micro_batch samples each, dp copies alike), as in PipeDream.
/// Recompute  none; full: a stage keeps what it receives and repeats its forward pass before its
///            backward pass, but for the loss; all-but-last: the last micro-batch is spared
///            (torchgpipe's default; not without a flush).
/// Gradients  sums over what a step covers: the global batch, or the replicas' micro-batches of a
///            round (torch's DDP in PipeDream takes their mean; the same time).
/// Fails      Infeasible for tensor, context and expert parallelism, ZeRO, interleaving; for more
///            stages than units; where replicas do not divide the micro-batch.
Outcome<Plan> lower_graph(const LayerGraph& graph, const Cluster& cluster, const Layout& layout,
                          const Job& job);

}  // namespace gputwin
