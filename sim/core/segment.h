// Segments: the operations of one (chunk, layer, phase) before any order across micro-batches is
// chosen.
//
// Lowering makes them, graph passes rewrite them, a schedule strings them together. The order of
// `ops` is the issue order within the segment; the edges of its DAG, within the segment and to its
// neighbours, are what the views say (see data_edges). Views of framed buffers mean the frame the
// schedule gives the segment.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/core/job.h"
#include "sim/core/layout.h"
#include "sim/core/plan.h"

namespace gputwin {

struct SegmentOp {
  Kind kind = Kind::Kernel;
  std::uint8_t stream = 0;
  std::uint16_t flags = 0;
  CallId call{};
  NameId name{};
};

struct Segment {
  Phase phase = Phase::Forward;
  std::int32_t layer = -1;  // as in Name
  std::vector<SegmentOp> ops;
};

/// Weights of a layer that forward and backward each gather into a buffer of their own (ZeRO 3).
struct Regathered {
  std::int32_t layer = 0;
  BufferId forward{}, backward{};
};

/// One model chunk of a stage. A view with an invalid buffer means "none" (first chunk receives
/// nothing).
struct Chunk {
  std::int32_t index = 0;                  // in model order, 0 .. pp x vpp - 1
  std::vector<Segment> forward, backward;  // each in execution order
  std::vector<Regathered> regathered;
  View input, output;                 // activations received and sent, one frame
  View output_grad, input_grad;       // gradients received and sent
  SlotId from_previous{}, to_next{};  // peer slots for activations in, activations out
  SlotId from_next{}, to_previous{};  // peer slots for gradients in, gradients out
};

/// Operations issued right after one backward segment of the last micro-batch: the reduction of a
/// gradient bucket that this segment completes.
struct Reduction {
  std::int32_t chunk = 0;    // local index of the chunk
  std::int32_t segment = 0;  // index into Chunk::backward
  Segment operations;
};

/// Everything one pipeline stage does.
struct StageSegments {
  ProgramId program{};
  std::uint8_t compute_stream = 0, send_stream = 0, receive_stream = 0;
  std::uint8_t gradient_send_stream = 0, gradient_receive_stream = 0;
  std::vector<Reduction> reductions;  // in order of issue
  std::vector<Chunk> chunks;          // vpp of them, in model order
  std::vector<Segment> begin,
      finish;  // once per body: zero gradients …; reduce, clip, optimizer, gather
};

/// The lowered job: tables and ranks in `plan` (bodies still empty), segments by stage.
struct Lowered {
  Plan plan;
  Layout layout;
  bool blocking_messages = false;      // the host waits for pipeline messages after every pass
  bool recompute_stops_early = false;  // nothing is recomputed that no backward operation reads
  std::int32_t micro_batches = 0;      // per data-parallel rank
  std::vector<StageSegments> stages;
};

/// Edges (earlier, later) of a segment's DAG: ops with conflicting views, transitively reduced per
/// stream.
std::vector<std::pair<std::uint32_t, std::uint32_t>> data_edges(const Plan& plan,
                                                                const Segment& segment);

}  // namespace gputwin
