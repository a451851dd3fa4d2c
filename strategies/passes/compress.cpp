#include "strategies/passes/compress.h"

#include <cmath>
#include <utility>

#include "sim/core/codecs.h"
#include "sim/core/plan_builder.h"
#include "strategies/passes/codec_writer.h"
#include "strategies/passes/compress_parts.h"

namespace gputwin {
namespace {

// Rewrites the collectives of one segment.
class Compressor {
 public:
  Compressor(PlanBuilder& builder, const Layout& layout, std::uint8_t compute)
      : builder_(builder), layout_(layout), write_(builder, compute) {}

  void rewrite(Segment& segment, const Codec& codec) {
    if (codec.kind == CodecKind::None) return;
    codec_ = codec;
    for (const SegmentOp& op : std::exchange(segment.ops, {})) {
      const Name& name = builder_.plan().names[op.name.value];
      write_.into(segment.ops, op);
      write_.name_buffers("layer" + std::to_string(name.layer) + "." + name.op, true);
      const Call call = builder_.plan().calls[op.call.value];
      if (op.kind != Kind::Collective || !replace(call)) segment.ops.push_back(op);
    }
  }

 private:
  bool replace(const Call& call) {
    if (call.op.reduce_max) return false;
    const View& x = call.reads[0];
    const View& y = call.writes[0];
    const Buffer& buffer = builder_.plan().buffers[x.buffer.value];
    if (!buffer.framed || bits(x.dtype) != 16 || x.cols < 2) return false;
    slot_ = call.op.slot;
    if (call.op.kind == OpKind::AllReduce) {
      if (layout_.compression.sum == CompressedSum::Gather) {
        gather_sum(x);
      } else {
        const View part = write_.tensor("_part", x.rows / layout_.tp, x.cols, x.dtype);
        scatter(x, part);
        gather(part, x);
      }
      return true;
    }
    if (call.op.kind == OpKind::ReduceScatter) return scatter(x, y);
    if (call.op.kind == OpKind::AllGather) return gather(x, y);
    return false;
  }

  void gather_sum(const View& x) {
    const View payload = write_.encoded(codec_, x, "");
    const View all = write_.tensor("_payloads", x.rows * layout_.tp, payload.cols, DType::U8);
    write_.exchange(slot_, OpKind::AllGather, "_all_gather", payload, all);
    write_.decoded(codec_, all, x, layout_.tp, "");
  }

  bool scatter(const View& x, const View& part) {
    const View payload = write_.encoded(codec_, x, "");
    const View parts = write_.tensor("_parts", x.rows, payload.cols, DType::U8);
    write_.exchange(slot_, OpKind::AllToAll, "_all_to_all", payload, parts);
    write_.decoded(codec_, parts, part, layout_.tp, "");
    return true;
  }

  bool gather(const View& part, const View& y) {
    const View payload = write_.encoded(codec_, part, "_sum");
    const View all = write_.tensor("_sums", y.rows, payload.cols, DType::U8);
    write_.exchange(slot_, OpKind::AllGather, "_all_gather", payload, all);
    write_.decoded(codec_, all, y, 1, "_sum");
    return true;
  }

  PlanBuilder& builder_;
  const Layout& layout_;
  CodecWriter write_;
  Codec codec_;
  SlotId slot_;
};

bool is_layer(const Segment& s) {
  return s.layer >= 0 && (s.phase == Phase::Forward || s.phase == Phase::Backward);
}

void compress_layers(PlanBuilder& builder, const Layout& layout, StageSegments& stage) {
  const Compression& chosen = layout.compression;
  Compressor compressor(builder, layout, stage.compute_stream);
  for (Chunk& chunk : stage.chunks) {
    for (Segment& s : chunk.forward) {
      if (is_layer(s)) compressor.rewrite(s, chosen.forward);
    }
    for (Segment& s : chunk.backward) {
      if (is_layer(s)) compressor.rewrite(s, chosen.backward);
    }
  }
}

}  // namespace

Lowered compress(Lowered lowered) {
  const Compression& chosen = lowered.layout.compression;
  if (!chosen.on()) return lowered;
  PlanBuilder builder(std::move(lowered.plan));
  for (StageSegments& stage : lowered.stages) {
    compress_layers(builder, lowered.layout, stage);
    compress_gradients(builder, lowered.layout, stage);
    compress_messages(builder, chosen, stage);
  }
  lowered.plan = std::move(builder).take();
  return lowered;
}

std::optional<double> exchange_error(const Codec& codec, CompressedSum sum, std::int64_t width,
                                     bool scattered) {
  const std::optional<double> once = expected_error(codec, width);
  const bool twice = sum == CompressedSum::TwoStep && !scattered;
  return once && twice ? *once * std::sqrt(2.0) : once;
}

}  // namespace gputwin
