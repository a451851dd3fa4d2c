#include "strategies/passes/compress.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/core/codecs.h"
#include "sim/core/plan_builder.h"

namespace gputwin {
namespace {

// Rewrites the collectives of one segment.
class Compressor {
 public:
  Compressor(PlanBuilder& builder, const Layout& layout, std::uint8_t compute)
      : builder_(builder), layout_(layout), compute_(compute) {}

  void rewrite(Segment& segment, const Codec& codec) {
    if (codec.kind == CodecKind::None) return;
    codec_ = codec;
    for (const SegmentOp& op : std::exchange(segment.ops, {})) {
      source_ = op;
      out_ = &segment;
      const Call call = builder_.plan().calls[op.call.value];
      if (!replace(call)) segment.ops.push_back(op);
    }
  }

 private:
  bool replace(const Call& call) {
    if (source_.kind != Kind::Collective || call.op.reduce_max) return false;
    const View& x = call.reads[0];
    const View& y = call.writes[0];
    const Buffer& buffer = builder_.plan().buffers[x.buffer.value];
    if (!buffer.framed || bits(x.dtype) != 16 || x.cols < 2) return false;
    slot_ = call.op.slot;
    if (call.op.kind == OpKind::AllReduce) {
      if (layout_.compression.sum == CompressedSum::Gather) {
        gather_sum(x);
      } else {
        const View part = framed("_part", x.rows / layout_.tp, x.cols, x.dtype);
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
    const View payload = encoded(x, "");
    const View all = framed("_payloads", x.rows * layout_.tp, payload.cols, DType::U8);
    exchange(OpKind::AllGather, "_all_gather", payload, all);
    decoded(all, x, layout_.tp, "");
  }

  bool scatter(const View& x, const View& part) {
    const View payload = encoded(x, "");
    const View parts = framed("_parts", x.rows, payload.cols, DType::U8);
    exchange(OpKind::AllToAll, "_all_to_all", payload, parts);
    decoded(parts, part, layout_.tp, "");
    return true;
  }

  bool gather(const View& part, const View& y) {
    const View payload = encoded(part, "_sum");
    const View all = framed("_sums", y.rows, payload.cols, DType::U8);
    exchange(OpKind::AllGather, "_all_gather", payload, all);
    decoded(all, y, 1, "_sum");
    return true;
  }

  View encoded(const View& x, const char* step) {
    const View payload =
        framed(std::string(step) + "_payload", x.rows, row_bytes(codec_, x.cols), DType::U8);
    kernel(std::string(step) + "_encode", codec_op(OpKind::Encode, x, 0), {x}, payload);
    return payload;
  }
  void decoded(const View& payloads, const View& y, std::int64_t parts, const char* step) {
    kernel(std::string(step) + "_decode", codec_op(OpKind::Decode, y, parts), {payloads}, y);
  }
  Op codec_op(OpKind kind, const View& x, std::int64_t parts) const {
    return {.kind = kind,
            .dims = {x.rows, x.cols, kept_values(codec_, x.cols), codec_.bits,
                     static_cast<std::int64_t>(codec_.kind), parts}};
  }

  std::string base() const { return builder_.plan().names[source_.name.value].op; }

  View framed(const std::string& name, std::int64_t rows, std::int64_t cols, DType dtype) {
    const Name& of = builder_.plan().names[source_.name.value];
    const BufferId buffer =
        builder_.buffer({.name = "layer" + std::to_string(of.layer) + "." + of.op + name,
                         .bytes = Bytes(stored_bytes(dtype, rows * cols)),
                         .memory = MemoryClass::Communication,
                         .dtype = dtype,
                         .framed = true});
    return {.buffer = buffer, .rows = rows, .cols = cols, .ld = cols, .dtype = dtype};
  }

  void kernel(const std::string& name, Op op, std::vector<View> reads, const View& write) {
    op.dtype = reads[0].dtype;
    op.out = write.dtype;
    add(Kind::Kernel, compute_, name, {.op = op, .reads = std::move(reads), .writes = {write}});
  }
  void exchange(OpKind kind, const std::string& name, const View& x, const View& y) {
    const Op op{.kind = kind,
                .dtype = x.dtype,
                .out = y.dtype,
                .slot = slot_,
                .dims = {std::max(x.elements(), y.elements())}};
    add(Kind::Collective, source_.stream, name, {.op = op, .reads = {x}, .writes = {y}});
  }
  void add(Kind kind, std::uint8_t stream, const std::string& name, Call call) {
    Name n = builder_.plan().names[source_.name.value];
    n.op += name;
    const NameId id = builder_.name(std::move(n));
    out_->ops.push_back(
        {.kind = kind, .stream = stream, .call = builder_.call(std::move(call)), .name = id});
  }

  PlanBuilder& builder_;
  const Layout& layout_;
  std::uint8_t compute_;
  Codec codec_;
  SegmentOp source_;
  Segment* out_ = nullptr;
  SlotId slot_;
};

bool is_layer(const Segment& s) {
  return s.layer >= 0 && (s.phase == Phase::Forward || s.phase == Phase::Backward);
}

}  // namespace

Lowered compress(Lowered lowered) {
  const Compression& chosen = lowered.layout.compression;
  if (!chosen.on()) return lowered;
  PlanBuilder builder(std::move(lowered.plan));
  for (StageSegments& stage : lowered.stages) {
    Compressor compressor(builder, lowered.layout, stage.compute_stream);
    for (Chunk& chunk : stage.chunks) {
      for (Segment& s : chunk.forward) {
        if (is_layer(s)) compressor.rewrite(s, chosen.forward);
      }
      for (Segment& s : chunk.backward) {
        if (is_layer(s)) compressor.rewrite(s, chosen.backward);
      }
    }
  }
  lowered.plan = std::move(builder).take();
  return lowered;
}

std::optional<double> exchange_error(const Codec& codec, CompressedSum sum, std::int64_t width,
                                     bool sequence_parallel) {
  const std::optional<double> once = expected_error(codec, width);
  const bool twice = sum == CompressedSum::TwoStep && !sequence_parallel;
  return once && twice ? *once * std::sqrt(2.0) : once;
}

std::optional<Infeasible> compress_refusal(const Transformer& model, const Layout& layout,
                                           const Job& job) {
  const auto no = [](std::string reason, std::string fix) {
    return Infeasible{.reason = "the compress pass does not take " + std::move(reason),
                      .fix = std::move(fix)};
  };
  const Compression& c = layout.compression;
  if (layout.tp < 2) return no("layers without tensor parallelism", "set layout.tp to 2 or more");
  if (layout.tp_overlap != TpOverlap::None) {
    return no("collectives in pieces", "set layout.tp_overlap to none");
  }
  if (model.has_experts()) return no("experts' exchanges", "use a model without experts");
  if (bits(job.precision.compute) != 16) {
    return no("operands that are not 16 bits wide", "set job.precision.compute to bf16");
  }
  if (c.forward.kind == CodecKind::LowRank || c.backward.kind == CodecKind::LowRank) {
    return no("low rank on tensor-parallel sums: its orthogonalisation is not lowered",
              "choose topk_pwq, int8 or int4");
  }
  if (layout.micro_batch * job.sequence % layout.tp != 0) {
    return no("tokens that tp does not divide", "change layout.micro_batch");
  }
  return std::nullopt;
}

}  // namespace gputwin
