// Layer graphs (CNN, RNN, encoders) as data-parallel pipelines: stages of consecutive units, each
// with replicas of its own.
//
// Every stage works on every micro-batch; its replicas split it by samples. With as many replicas
// everywhere (layout.dp) these are whole pipelines side by side; with layout.stage_replicas a stage
// of three sends thirds of the micro-batch to a stage of one, as PipeDream's plans run
// synchronously. Tensors that several later stages read are handed on from stage to stage.
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

/// The plan of one iteration, schedule included.
///
/// Schedules  none, gpipe (backward in reverse order of micro-batches, as in GPipe), 1f1b.
/// Recompute  none; full: a stage keeps what it receives and repeats its forward pass before its
///            backward pass, but for the loss; all-but-last: the last micro-batch is spared
///            (torchgpipe's default).
/// Fails      Infeasible for tensor, context and expert parallelism, ZeRO, interleaving; for more
///            stages than units; where replicas do not divide the micro-batch.
Outcome<Plan> lower_graph(const LayerGraph& graph, const Cluster& cluster, const Layout& layout,
                          const Job& job);

}  // namespace gputwin
