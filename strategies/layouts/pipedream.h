// PipeDream's planner: a hierarchical dynamic programme over the cuts of a network.
//
//   A[i][j][m] = least time of the slowest stage for the layers between cuts i and j on m machines
//   A[i][j][m] = min( (T(i..j) + 4 (m-1)/m w(i..j) / BW / q) / m,
//                     min over k, m' of max( A[i][k][m-m'], 2 a_k / (BW m'), 2 a_j / (BW m'),
//                                            (T(k+1..j) + 4 (m'-1)/m' w(k+1..j) / BW) / m' ) )
//
// with T forward and backward time, w weights, a the bytes that cross a cut, q the devices of one
// machine of this level. The best time of all machines of a level is the compute time of the next.
// Source  Narayanan et al. 2019 (SOSP), section 3.1; msr-fiddle/pipedream,
//         optimizer/optimizer_graph_hierarchical.py with activation_compression_ratio 1. The factor
//         4 counts a parameter server's traffic; q divides in the first branch alone, as there.
#pragma once

#include "strategies/layouts/layer_costs.h"

namespace gputwin {

/// Machines that one machine of the level above holds, and the bandwidth between them.
struct PlannerLevel {
  std::int32_t machines = 1;
  BytesPerSecond bandwidth{};
};

/// Layers [first, last) of the states' order on `replicas` machines of the level.
struct PlannedStage {
  std::int32_t first = 0, last = 0;
  std::int32_t replicas = 1;
  bool operator==(const PlannedStage&) const = default;
};

struct PipeDreamPlan {
  // By level, the innermost first; the stages of an inner level stand in the order of the outer
  // level's and each divides one of these.
  std::vector<std::vector<PlannedStage>> levels;
  Seconds time{};           // of the slowest stage: per minibatch in the steady state
  Seconds one_machine{};    // of one device alone
  Seconds data_parallel{};  // of data parallelism over all levels, by the same formula

  const std::vector<PlannedStage>& top() const { return levels.back(); }
};

/// The plan of least time for `states` (antichain_states) over `levels`, the innermost first.
/// O(cuts^2 machines^2) per level and first cut.
PipeDreamPlan pipedream_plan(const std::vector<GraphState>& states,
                             const std::vector<PlannerLevel>& levels);

}  // namespace gputwin
