// Planners of pipelines without a flush: PipeDream's, run as PipeDream runs them, and all cuts.
//
// In the steady state a stage of r replicas takes r micro-batches a round, each replica one, and
// then sums its gradients under the backward pass (with a step every round):
//
//   t_s = max( (F_s + B_s + max(0, AR_s - B_s) + O_s) / r, a_cut / BW )     T = max_s t_s
//
// per micro-batch, with O_s the optimizer's step, AR_s = 2 (r-1)/r w / BW and a_cut the bytes that
// leave the stage; both ways of a link carry them at once. Source: PipeDream (Narayanan et al.
// 2019), section 3.1, with a ring in the place of its parameter server.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/core/layout.h"
#include "strategies/layouts/synchronous.h"

namespace gputwin {

/// `stale`: gradients are computed with weights older than those they change. What that does to
/// accuracy is not modelled, so nobody gets these plans without asking.
struct EndlessEntry {
  const char* name;
  const char* what;
  Schedule schedule;
  bool stale;
};

/// data-parallel-step (what PipeDream compares itself to), pipedream-stash, hybrid-stash,
/// pipedream-2bw.
std::span<const EndlessEntry> endless_planners();

/// T of a plan whose stages take devices in order; `world` is that of a micro-batch of one device.
Seconds endless_time(const PipelineWorld& world, const PipelinePlan& plan);

/// For each number of stages from two on the plan of least T over all cuts and replicas, all
/// devices used, and that with messages added in the place of hidden ones; ascending in T.
/// O(stages units^2 devices^2).
std::vector<PipelinePlan> endless_plans(const PipelineWorld& world);

/// What an endless planner leaves to a simulation to choose from.
std::vector<PipelinePlan> endless_proposals(const std::string& planner, const PipelineWorld& world);

/// The layout of a plan, with `samples` of a micro-batch, which one replica works on.
Layout endless_layout(const EndlessEntry& planner, const PipelinePlan& plan, std::int64_t samples);

}  // namespace gputwin
