#include <algorithm>
#include <utility>

#include "sim/core/check.h"
#include "sim/core/codec.h"
#include "strategies/passes/codec_writer.h"
#include "strategies/passes/compress_parts.h"

namespace gputwin {
namespace {

View as_rows(View flat) {
  GPUTWIN_CHECK(flat.elements() % kGradientRow == 0, "lowering pads buckets to whole rows");
  flat.rows = flat.elements() / kGradientRow;
  flat.cols = flat.ld = kGradientRow;
  return flat;
}

// One bucket by a code of rows.
class RowCode {
 public:
  RowCode(CodecWriter& write, const Compression& chosen, std::int64_t ranks)
      : write_(write), codec_(chosen.reduced), chosen_(chosen), ranks_(ranks) {}

  CodedSum steps(const Call& call, const SegmentOp& source) {
    const View x = as_rows(call.reads[0]), y = as_rows(call.writes[0]);
    const SlotId slot = call.op.slot;
    const bool scatter = call.op.kind == OpKind::ReduceScatter;
    const bool gather = !scatter && chosen_.sum == CompressedSum::Gather;
    CodedSum steps(scatter || gather ? 2 : 3);
    write_.into(steps[0], source);
    const View payload = write_.encoded(codec_, x, "", residual("_residual", x));
    if (gather) {
      const View all = write_.tensor("_payloads", x.rows * ranks_, payload.cols, DType::U8);
      write_.exchange(slot, OpKind::AllGather, "_all_gather", payload, all);
      write_.into(steps[1], source);
      write_.decoded(codec_, all, y, ranks_, "");
      return steps;
    }
    const View parts = write_.tensor("_parts", x.rows, payload.cols, DType::U8);
    write_.exchange(slot, OpKind::AllToAll, "_all_to_all", payload, parts);
    write_.into(steps[1], source);
    if (scatter) {
      write_.decoded(codec_, parts, y, ranks_, "");
      return steps;
    }
    const View part = write_.tensor("_part", x.rows / ranks_, x.cols, x.dtype);
    write_.decoded(codec_, parts, part, ranks_, "");
    const View sum = write_.encoded(codec_, part, "_sum", residual("_sum_residual", part));
    const View sums = write_.tensor("_sums", x.rows, sum.cols, DType::U8);
    write_.exchange(slot, OpKind::AllGather, "_all_gather", sum, sums);
    write_.into(steps[2], source);
    write_.decoded(codec_, sums, y, 1, "_sum");
    return steps;
  }

 private:
  View residual(const char* name, const View& x) {
    if (!chosen_.feedback) return {};
    return write_.kept(name, x.rows, x.cols, DType::F32);
  }

  CodecWriter& write_;
  const Codec& codec_;
  const Compression& chosen_;
  std::int64_t ranks_;
};

// One bucket by two factors of low rank for each of its matrices.
class LowRank {
 public:
  LowRank(CodecWriter& write, const Compression& chosen, const std::vector<Parameter>& parameters)
      : write_(write), chosen_(chosen), rank_(chosen.reduced.rank), parameters_(parameters) {}

  CodedSum steps(const Call& call, const SegmentOp& source) {
    const View& g = call.reads[0];
    slot_ = call.op.slot;
    find(g);
    CodedSum steps(3);
    write_.into(steps[0], source);
    add_residual(g);
    pack(true);
    if (!rest_.empty()) {
      write_.exchange(slot_, OpKind::AllReduce, "_all_reduce", rest_pack_, rest_pack_);
    }
    if (!matrices_.empty()) left_factors();
    write_.into(steps[1], source);
    if (!matrices_.empty()) right_factors();
    write_.into(steps[2], source);
    for (const Matrix& m : matrices_) {
      product("_product", false, m.p, m.q, m.value);
    }
    pack(false);
    return steps;
  }

 private:
  struct Matrix {
    View value, residual;  // [rows, cols]
    View p{}, minus_p{};   // [rows, rank]
    View own_q{}, q{};     // [cols, rank]: of this rank; the sum, which the next step starts with
  };

  static std::int64_t elements(const std::vector<View>& views) {
    std::int64_t n = 0;
    for (const View& v : views) n += v.elements();
    return n;
  }

  // The parameters whose gradients lie in the bucket: matrices that gain, and the rest.
  void find(const View& g) {
    matrices_.clear();
    rest_.clear();
    std::int64_t rows = 0, cols = 0;
    for (const Parameter& p : parameters_) {
      const View& v = p.gradient;
      if (!v.buffer.valid() || v.buffer != g.buffer) continue;
      if (rank_ * (v.rows + v.cols) >= v.elements()) {
        rest_.push_back(v);
        continue;
      }
      matrices_.push_back({.value = v, .residual = v});
      rows += v.rows;
      cols += v.cols;
    }
    place_factors(rows, cols);
    if (elements(rest_) > 0) rest_pack_ = write_.tensor("_rest", 1, elements(rest_), g.dtype);
    if (!chosen_.feedback) return;
    const View residual = write_.kept("_residual", 1, g.elements(), DType::F32);
    residual_ = residual;
    for (Matrix& m : matrices_) {
      m.residual.buffer = residual.buffer;
      m.residual.offset -= g.offset;
      m.residual.dtype = DType::F32;
    }
  }

  void place_factors(std::int64_t rows, std::int64_t cols) {
    if (matrices_.empty()) return;
    constexpr std::uint64_t kSeed = 41;  // of the first right factors, alike on all ranks
    const DType narrow = DType::Bf16;
    left_ = write_.tensor("_left", rows, rank_, narrow);
    if (chosen_.feedback) minus_left_ = write_.tensor("_minus_left", rows, rank_, narrow);
    own_right_ = write_.tensor("_own_right", cols, rank_, narrow);
    right_ = write_.kept("_right", cols, rank_, narrow, kSeed);
    const auto part = [&](const View& of, std::int64_t first, std::int64_t count) {
      View v = of;
      v.offset = first * rank_;
      v.rows = count;
      return v;
    };
    std::int64_t row = 0, col = 0;
    for (Matrix& m : matrices_) {
      m.p = part(left_, row, m.value.rows);
      if (chosen_.feedback) m.minus_p = part(minus_left_, row, m.value.rows);
      m.own_q = part(own_right_, col, m.value.cols);
      m.q = part(right_, col, m.value.cols);
      row += m.value.rows;
      col += m.value.cols;
    }
  }

  void add_residual(const View& g) {
    if (!chosen_.feedback) return;
    write_.kernel("_feedback", {.kind = OpKind::Add, .dims = {g.elements()}}, {g, residual_}, {g});
  }

  // What is not factored, side by side, or back in its place.
  void pack(bool together) {
    if (rest_.empty()) return;
    std::vector<View> pieces;
    std::int64_t at = 0;
    for (const View& v : rest_) {
      View piece = v;
      piece.buffer = rest_pack_.buffer;
      piece.offset = at;
      piece.ld = piece.cols;
      pieces.push_back(piece);
      at += v.elements();
    }
    write_.kernel(together ? "_pack" : "_unpack", {.kind = OpKind::CastCopy, .dims = {at}},
                  together ? rest_ : pieces, together ? pieces : rest_);
  }

  void left_factors() {
    for (const Matrix& m : matrices_) {
      const Op op{.kind = OpKind::Gemm, .dims = {m.value.rows, rank_, m.value.cols}};
      write_.kernel("_left", op, {m.value, m.q}, {m.p});
    }
    write_.exchange(slot_, OpKind::AllReduce, "_left_all_reduce", left_, left_);
  }

  void right_factors() {
    constexpr std::uint16_t kPerColumn =
        4;  // norm, scaling, products with the others, their update
    for (const Matrix& m : matrices_) {
      const Op op{.kind = OpKind::Orthonormalise,
                  .launches = static_cast<std::uint16_t>(kPerColumn * rank_),
                  .dims = {m.p.rows, rank_}};
      write_.kernel("_orthonormalise", op, {m.p}, {m.p});
    }
    for (const Matrix& m : matrices_) {
      const Op op{
          .kind = OpKind::Gemm, .trans_a = true, .dims = {m.value.cols, rank_, m.value.rows}};
      write_.kernel("_right", op, {m.value, m.p}, {m.own_q});
    }
    if (chosen_.feedback) keep_residual();
    write_.exchange(slot_, OpKind::AllReduce, "_right_all_reduce", own_right_, right_);
  }

  void keep_residual() {
    std::vector<View> values, residuals;
    for (const Matrix& m : matrices_) {
      values.push_back(m.value);
      residuals.push_back(m.residual);
    }
    write_.kernel("_keep", {.kind = OpKind::CastCopy, .dims = {elements(values)}}, values,
                  residuals);
    write_.kernel("_negate", {.kind = OpKind::CastCopy, .scale = -1.0f, .dims = {left_.elements()}},
                  {left_}, {minus_left_});
    for (const Matrix& m : matrices_) product("_residual", true, m.minus_p, m.own_q, m.residual);
  }

  // y (+)= p q^T
  void product(const char* name, bool accumulate, const View& p, const View& q, const View& y) {
    const Op op{.kind = OpKind::Gemm,
                .trans_b = true,
                .accumulate = accumulate,
                .dims = {y.rows, y.cols, rank_}};
    write_.kernel(name, op, {p, q}, {y});
  }

  CodecWriter& write_;
  const Compression& chosen_;
  std::int64_t rank_;
  const std::vector<Parameter>& parameters_;
  SlotId slot_;
  std::vector<Matrix> matrices_;
  std::vector<View> rest_;
  View rest_pack_, residual_, left_, minus_left_, own_right_, right_;
};

// Rewrites the reductions of a stage in their order of issue.
class GradientCompressor {
 public:
  GradientCompressor(PlanBuilder& builder, const Layout& layout, StageSegments& stage)
      : builder_(builder), layout_(layout), stage_(stage) {}

  void run() {
    for (Reduction& r : stage_.reductions) rewrite(r.operations.ops);
    const auto is_reduction = [](const Segment& s) { return s.phase == Phase::Reduce; };
    auto end = stage_.finish.begin();
    for (; end != stage_.finish.end() && is_reduction(*end); ++end) rewrite(end->ops);
    Segment rest{.phase = Phase::Reduce, .layer = -2, .ops = {}};
    between(rest.ops);
    rest.ops.insert(rest.ops.end(), ends_.begin(), ends_.end());
    if (!rest.ops.empty()) stage_.finish.insert(end, std::move(rest));
  }

 private:
  bool sums_gradients(const SegmentOp& op) const {
    const std::string& name = builder_.plan().names[op.name.value].op;
    return op.kind == Kind::Collective &&
           (name == "grad_all_reduce" || name == "grad_reduce_scatter");
  }

  void rewrite(std::vector<SegmentOp>& ops) {
    for (const SegmentOp& op : std::exchange(ops, {})) {
      if (!sums_gradients(op)) {
        ops.push_back(op);
        continue;
      }
      const std::vector<Parameter> parameters =
          builder_.plan().programs[stage_.program.value].parameters;
      CodedSum steps =
          coded_sum(builder_, layout_.compression, std::int64_t{layout_.dp} * layout_.cp,
                    parameters, stage_.compute_stream, op);
      ops.insert(ops.end(), steps[0].begin(), steps[0].end());
      between(ops);
      if (steps.size() > 2) between_ = std::move(steps[1]);
      ends_.insert(ends_.end(), steps.back().begin(), steps.back().end());
    }
  }

  // What the last bucket has left to do between its exchanges.
  void between(std::vector<SegmentOp>& ops) {
    ops.insert(ops.end(), between_.begin(), between_.end());
    between_.clear();
  }

  PlanBuilder& builder_;
  const Layout& layout_;
  StageSegments& stage_;
  std::vector<SegmentOp> between_, ends_;
};

}  // namespace

CodedSum coded_sum(PlanBuilder& builder, const Compression& chosen, std::int64_t ranks,
                   const std::vector<Parameter>& parameters, std::uint8_t compute,
                   const SegmentOp& sum) {
  const Call call = builder.plan().calls[sum.call.value];
  CodecWriter write(builder, compute);
  write.name_buffers(builder.plan().buffers[call.reads[0].buffer.value].name, false);
  if (chosen.reduced.kind == CodecKind::LowRank) {
    return LowRank(write, chosen, parameters).steps(call, sum);
  }
  return RowCode(write, chosen, ranks).steps(call, sum);
}

void compress_gradients(PlanBuilder& builder, const Layout& layout, StageSegments& stage) {
  if (layout.compression.on_gradients()) GradientCompressor(builder, layout, stage).run();
}

}  // namespace gputwin
