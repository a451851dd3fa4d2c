// Planners of pipelines without a flush: PipeDream's, run as PipeDream runs them, and all cuts.
//
// In the steady state a stage of r replicas takes r micro-batches a round, each replica one, and
// then sums its gradients under the backward pass (with a step every round):
//
//   t_s = max( (F_s + B_s + X_s + O_s) / r, a_cut / BW )
//
// per micro-batch, with O_s the optimizer's step, X_s what is left of the gradients' ring, 2
// (r-1)/r w / BW bucket by bucket, after the backward pass, and a_cut the bytes that leave the
// stage; both ways of a link carry them at once. Source: PipeDream (Narayanan et al. 2019),
// section 3.1, with a ring in the place of its parameter server and hiding by bucket.
//
// Messages also make neighbours wait. Stage s sends A_s micro-batches forward before the first
// comes back (graph_program, as PipeDream's runtime), so q goes back through the next stage after
// q + A_s+1 went forward there, which this stage begins after the end of q + A_s+1 - A_s - r:
//
//   u_s = (F_s + B_s + 2 a_cut / BW + F_s+1 + B_s+1) / (A_s + r - A_s+1)
//
// A step every round keeps replicas in rounds: A_s+1 then counts as its next multiple of r, X_s
// adds to the trip, and so do those of a round that the next stage serves before, (r - 1 + A_s+1)
// mod r of them. T = max_s max(t_s, u_s), u_s for all stages but the last.
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

/// max t_s of a plan whose stages take devices in order; `world` is that of a micro-batch of one
/// device.
Seconds slowest_stage(const PipelineWorld& world, const PipelinePlan& plan);
/// T of such a plan. A step is every round's, or one of so many micro-batches that it is left out.
Seconds endless_time(const PipelineWorld& world, const PipelinePlan& plan, bool step_every_round);

/// For each number of stages from two on the plan of least max t_s over all cuts and replicas, all
/// devices used, and that with messages added in the place of hidden ones; ascending in max t_s.
/// O(stages units^2 devices^2).
std::vector<PipelinePlan> endless_plans(const PipelineWorld& world);

/// What an endless planner leaves to a simulation to choose from.
std::vector<PipelinePlan> endless_proposals(const std::string& planner, const PipelineWorld& world);

/// The layout of a plan, with `samples` of a micro-batch, which one replica works on.
Layout endless_layout(const EndlessEntry& planner, const PipelinePlan& plan, std::int64_t samples);

}  // namespace gputwin
