// What one stage issues for one micro-batch, with events and memory already derived, ready to be
// stamped.
#pragma once

#include "sim/core/plan_builder.h"
#include "sim/core/segment.h"

namespace gputwin {

/// Instructions of one pass. Tasks, Alloc and Free of framed buffers carry frame 0; events count
/// from 0.
struct PassTemplate {
  std::vector<Instruction> receive, body,
      send;  // receive and send are empty where nothing comes or goes
};

/// Everything a stage issues. Micro-batches differ by frame and event numbers alone, except the
/// last, whose backward also reduces gradient buckets.
struct StageTemplates {
  std::vector<PassTemplate> forward, backward;  // by local chunk; any micro-batch but the last
  std::vector<PassTemplate> last_forward, last_backward;  // the last micro-batch
  std::vector<Instruction> begin, finish;     // their events belong to the last micro-batch
  std::uint32_t events = 0, last_events = 0;  // of one micro-batch, of the last
  std::vector<BufferId> buffers;              // that the stage uses
  std::uint8_t compute_stream = 0;
};

/// Templates of one stage.
///
/// Events and memory are derived by synchronise() and place_memory() on a program of one
/// micro-batch: two micro-batches share no framed buffer, and what they share (weights, gradients,
/// loss) only the compute stream touches before the last backward. So the order of micro-batches
/// cannot add a hazard.
StageTemplates stage_templates(PlanBuilder& builder, const Lowered& lowered, std::int32_t stage);

}  // namespace gputwin
