#include <utility>

#include "sim/core/codec.h"
#include "strategies/passes/codec_writer.h"
#include "strategies/passes/compress_parts.h"

namespace gputwin {
namespace {

class Messages {
 public:
  Messages(PlanBuilder& builder, StageSegments& stage)
      : builder_(builder), stage_(stage), write_(builder, stage.compute_stream) {}

  /// Of local chunk `index`: what `chunk.*whole` names is encoded at the end of the pass.
  void send(std::vector<Segment>& pass, const Chunk& chunk, const Codec& codec, const char* name,
            View& whole) {
    if (codec.kind == CodecKind::None) return;
    Segment segment = begin(pass.back().layer, chunk, name);
    std::vector<SegmentOp> ops;
    write_.into(ops, source_);
    whole = write_.encoded(codec, whole, "");
    segment.ops = std::move(ops);
    pass.push_back(std::move(segment));
  }

  /// ... is decoded at its start.
  void receive(std::vector<Segment>& pass, const Chunk& chunk, const Codec& codec, const char* name,
               View& whole) {
    if (codec.kind == CodecKind::None) return;
    Segment segment = begin(pass.front().layer, chunk, name);
    const View payload =
        write_.tensor("_payload", whole.rows, row_bytes(codec, whole.cols), DType::U8);
    std::vector<SegmentOp> ops;
    write_.into(ops, source_);
    write_.decoded(codec, payload, whole, 1, "");
    whole = payload;
    segment.ops = std::move(ops);
    pass.insert(pass.begin(), std::move(segment));
    if (&pass != &chunk.backward) return;
    for (Reduction& r : stage_.reductions) {
      if (&stage_.chunks[static_cast<std::size_t>(r.chunk)] == &chunk) ++r.segment;
    }
  }

 private:
  Segment begin(std::int32_t layer, const Chunk& chunk, const char* name) {
    source_.name = builder_.name({.phase = Phase::Pipeline, .layer = layer, .op = name});
    write_.name_buffers("chunk" + std::to_string(chunk.index) + "." + name, true);
    return {.phase = Phase::Pipeline, .layer = layer, .ops = {}};
  }

  PlanBuilder& builder_;
  StageSegments& stage_;
  CodecWriter write_;
  SegmentOp source_;
};

}  // namespace

void compress_messages(PlanBuilder& builder, const Compression& chosen, StageSegments& stage) {
  Messages messages(builder, stage);
  for (Chunk& c : stage.chunks) {
    if (c.from_previous.peer.valid()) {
      messages.receive(c.forward, c, chosen.sent, "input", c.input);
    }
    if (c.to_next.peer.valid()) messages.send(c.forward, c, chosen.sent, "output", c.output);
    if (c.from_next.peer.valid()) {
      messages.receive(c.backward, c, chosen.sent_back, "output_grad", c.output_grad);
    }
    if (c.to_previous.peer.valid()) {
      messages.send(c.backward, c, chosen.sent_back, "input_grad", c.input_grad);
    }
  }
}

}  // namespace gputwin
