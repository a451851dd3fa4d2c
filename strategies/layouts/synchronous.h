// Pipelines with a flush: stages of consecutive units with replicas that share every micro-batch.
//
//   T = sum_s t_s + (M - 1) max_s t_s + max_s max(0, AR_s - s blk)
//   t_s = time(units of s) / r + 2 a_cut / (BW r)      AR_s = 2 (r-1)/r w / BW
//
// with M micro-batches, r replicas, a_cut the bytes that enter the stage, w its weights, blk the
// slowest stage: late stages reduce gradients while earlier ones drain. Source: DAPPLE (Fan et al.
// 2021), section 4, and Alpa (Zheng et al. 2022), section 5.2; the search is a reconstruction.
#pragma once

#include <vector>

#include "strategies/layouts/layer_costs.h"

namespace gputwin {

struct PipelineWorld {
  LayerCosts units;  // a chain; times and output of one micro-batch on one device
  std::int32_t devices = 1, devices_per_node = 1;
  BytesPerSecond in_node{}, between{};  // of one device; of one node
  std::int32_t micro_batches = 1;
  Bytes bucket{};            // of gradients that are reduced together; 0: of one unit
  std::int64_t samples = 0;  // of a micro-batch; replicas divide it. 0: any count of replicas
};

struct PipelineStage {
  std::int32_t first = 0, last = 0;  // units [first, last)
  std::int32_t replicas = 1;
  std::vector<std::int32_t> devices{};  // of each replica; empty: those after the stage before
  bool operator==(const PipelineStage&) const = default;
};
using PipelinePlan = std::vector<PipelineStage>;

/// T of a plan whose stages take devices in order, node by node.
Seconds synchronous_time(const PipelineWorld& world, const PipelinePlan& plan);

/// The plan of least T over all cuts and replicas in `allowed` (ascending), all devices used.
///
/// For each bound on the slowest stage, in ascending order, the least sum of stage times; bounds
/// closer than `gap` (relative) to the last are skipped, 0: none. Gradients are counted twice, not
/// at all and spread over the micro-batches, and the better plan is kept. O(bounds units^2 devices
/// |allowed|).
PipelinePlan synchronous_plan(const PipelineWorld& world, const std::vector<std::int32_t>& allowed,
                              double gap = 2e-3);

/// Of the plans that this search passes, the best of each number of stages, ascending in T: the
/// first is synchronous_plan.
std::vector<PipelinePlan> synchronous_plans(const PipelineWorld& world,
                                            const std::vector<std::int32_t>& allowed,
                                            double gap = 2e-3);

/// One stage per device of as many units as even as possible (GPipe), and with the slowest stage as
/// fast as can be.
PipelinePlan even_plan(const PipelineWorld& world);
PipelinePlan balanced_plan(const PipelineWorld& world);

}  // namespace gputwin
