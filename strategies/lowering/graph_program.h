// The program of one stage of a layer graph: what its replicas issue, schedule included.
#pragma once

#include <string>
#include <vector>

#include "sim/core/job.h"
#include "sim/core/layout.h"
#include "sim/core/plan_builder.h"
#include "sim/core/workload.h"

namespace gputwin {

/// Samples of a micro-batch that one replica exchanges with replica `peer` of a neighbouring stage.
struct Piece {
  std::int32_t peer = 0;
  std::int64_t first = 0, count = 0;  // of the replica's own samples
};

/// What all replicas of a stage that run one program have in common.
///
/// With a flush a replica exchanges all pieces of a neighbour in every micro-batch. Without one it
/// takes whole micro-batches in turn, and each with one replica of a neighbour: the piece whose
/// index stands in `previous_of` and `next_of`, by the replica's own micro-batches (frames).
struct Role {
  std::int32_t stage = 0;
  std::int32_t first = 0, last = 0;  // layers
  std::int64_t samples = 0;          // of a frame
  std::int32_t frames = 0;           // micro-batches of one iteration that the replica works on
  std::vector<Piece> previous, next;
  std::vector<std::size_t> previous_of, next_of;
  std::int32_t ahead = 0;     // frames that went forward when the first goes backward
  std::int32_t received = 0;  // frames that have arrived by then; at least `ahead`

  /// True if both exchange the same samples in the same order, with whomever.
  bool same_messages(const Role& other) const;
};

struct GraphJob {
  const LayerGraph& graph;
  const Layout& layout;
  Job job;                         // global_batch: the samples between two steps of the optimizer
  std::int32_t micro_batches = 0;  // of an iteration
  std::vector<std::int32_t> replicas;  // by stage
};

/// The program, its buffers in `plan`. Slots: the data-parallel communicator where the stage has
/// replicas, then the peers of `previous`, then those of `next`.
Program graph_program(PlanBuilder& plan, const GraphJob& job, const Role& role,
                      const std::string& name);

}  // namespace gputwin
