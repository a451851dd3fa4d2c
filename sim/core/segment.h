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

/// Where a message goes or comes from: a peer slot, none where there is no message, and the stream.
struct Channel {
  SlotId peer{};
  std::uint8_t stream = 0;
};

/// One model chunk of a stage. A view with an invalid buffer means "none" (first chunk receives
/// nothing). Where two chunks of a stage follow one another the second's input is the first's
/// output, and no message lies between.
struct Chunk {
  std::int32_t index = 0;                  // in model order, 0 .. pp x vpp - 1
  std::vector<Segment> forward, backward;  // each in execution order
  /// What of backward segment i is left for later, where the schedule splits the backward pass;
  /// else empty.
  std::vector<Segment> weight_grad;
  std::vector<Regathered> regathered;
  View input, output;                  // activations received and sent, one frame
  View output_grad, input_grad;        // gradients received and sent
  Channel from_previous{}, to_next{};  // activations in, activations out
  Channel from_next{}, to_previous{};  // gradients in, gradients out
};

/// Operations issued right after one backward segment of the last micro-batch, or after what of it
/// was left for later: the reduction of a gradient bucket that this segment completes.
struct Reduction {
  std::int32_t chunk = 0;    // local index of the chunk
  std::int32_t segment = 0;  // index into Chunk::backward
  Segment operations;
};

/// Everything one pipeline stage does.
struct StageSegments {
  ProgramId program{};
  std::uint8_t compute_stream = 0;
  std::vector<Reduction> reductions;  // in order of issue
  std::vector<Chunk> chunks;          // Layout::local_chunks of them
  std::vector<Segment> begin,
      finish;  // once per body: zero gradients …; reduce, clip, optimizer, gather
  std::vector<Segment> validate;  // right before the first backward pass: what the optimizer's last
                                  // step took for granted
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
