#include "strategies/passes/chunk_cut.h"

#include <string>
#include <utility>

#include "sim/core/check.h"

namespace gputwin {
namespace {

std::int64_t part(std::int64_t whole, std::int64_t count, std::int64_t all) {
  GPUTWIN_CHECK(whole * count % all == 0, "rows of a micro-batch divide by its units");
  return whole * count / all;
}

bool is_softmax(OpKind k) { return k == OpKind::SoftmaxForward || k == OpKind::SoftmaxBackward; }

bool is_fused(OpKind k) { return k == OpKind::FlashForward || k == OpKind::FlashBackward; }

// Reads of an attention op that are keys or values.
std::vector<std::size_t> key_reads(OpKind kind) {
  if (is_fused(kind)) return {1, 2};
  const bool reads = kind == OpKind::AttentionScores || kind == OpKind::AttentionContext ||
                     kind == OpKind::AttentionGradProbs || kind == OpKind::AttentionGradQuery;
  return reads ? std::vector<std::size_t>{1} : std::vector<std::size_t>{};
}

// Writes that are gradients of keys or values.
std::vector<std::size_t> key_writes(OpKind kind) {
  if (kind == OpKind::FlashBackward) return {1, 2};
  const bool writes = kind == OpKind::AttentionGradValue || kind == OpKind::AttentionGradKey;
  return writes ? std::vector<std::size_t>{0} : std::vector<std::size_t>{};
}

}  // namespace

bool reads_earlier_keys(OpKind kind) {
  return kind == OpKind::FlashForward || kind == OpKind::AttentionScores;
}

bool adds_to_earlier_keys(OpKind kind) { return !key_writes(kind).empty(); }

ChunkCutter::ChunkCutter(PlanBuilder& builder, bool sequence)
    : builder_(builder), sequence_(sequence) {
  if (!sequence_) return;
  for (const Call& call : builder_.plan().calls) {
    const OpKind k = call.op.kind;
    const bool writes = k == OpKind::AttentionScores || k == OpKind::AttentionGradProbs;
    if (!writes && !is_softmax(k)) continue;
    for (const View& v : call.writes) scores_.insert(v.buffer);
    for (const View& v : call.reads) {
      if (is_softmax(k)) scores_.insert(v.buffer);
    }
  }
}

std::vector<ChunkCall> ChunkCutter::cut(const Call& call, const ChunkRange& range) {
  Call piece = rows_of(call, range);
  if (!sequence_) return {{std::move(piece)}};
  if (piece.op.kind == OpKind::Rope) piece.op.dims[5] = range.first;
  take_keys(piece, range);
  return with_key_gradients(std::move(piece), range);
}

Call ChunkCutter::rows_of(Call call, const ChunkRange& r) const {
  const OpKind kind = call.op.kind;
  const std::int64_t count = r.last - r.first;
  const bool attention = is_attention_gemm(kind) || is_fused(kind);
  if (sequence_ && attention) {
    GPUTWIN_CHECK(call.op.dims[0] == 1 && call.op.causal, "one causal sequence is cut");
    call.op.dims[3] = part(call.op.dims[3], count, r.all);
    call.op.dims[4] = part(call.op.dims[4], r.last, r.all);
  } else if (sequence_ && is_softmax(kind)) {
    call.op.dims[2] = part(call.op.dims[2], count, r.all);
    call.op.dims[3] = part(call.op.dims[3], r.last, r.all);
  } else {
    call.op.dims[0] = part(call.op.dims[0], count, r.all);
  }
  for (auto* views : {&call.reads, &call.writes}) {
    for (View& v : *views) {
      if (!builder_.plan().buffers[v.buffer.value].framed) continue;
      v.offset += part(v.rows, r.first, r.all) * v.ld;
      v.rows = part(v.rows, count, r.all);
      if (is_scores(v)) v.cols = part(v.cols, r.last, r.all);
    }
  }
  // What passes over scores alone counts their elements.
  const bool passes = kind == OpKind::CastCopy && !call.reads.empty() && is_scores(call.reads[0]);
  if (passes) call.op.dims[0] = call.reads[0].elements();
  return call;
}

// From the chunk's own rows to all rows up to its end.
void ChunkCutter::take_keys(Call& call, const ChunkRange& r) const {
  const auto extend = [&](View& v) {
    const std::int64_t before = part(v.rows, r.first, r.last - r.first);
    v.offset -= before * v.ld;
    v.rows += before;
  };
  for (const std::size_t i : key_reads(call.op.kind)) extend(call.reads[i]);
  for (const std::size_t i : key_writes(call.op.kind)) extend(call.writes[i]);
}

std::vector<ChunkCall> ChunkCutter::with_key_gradients(Call call, const ChunkRange& r) {
  std::vector<ChunkCall> list(1);
  if (r.last < r.all) {
    for (const std::size_t i : key_writes(call.op.kind)) {
      const View whole = call.writes[i];
      const View part = part_of(whole, whole.rows * r.all / r.last);
      call.writes[i] = part;
      const Op add{.kind = OpKind::Add,
                   .dtype = whole.dtype,
                   .out = whole.dtype,
                   .dims = {whole.elements()}};
      list.push_back({{.op = add, .reads = {whole, part}, .writes = {whole}}, "_add"});
    }
  }
  list[0].call = std::move(call);
  return list;
}

// Rows of a tensor of the gradient's shape, all `rows` of it.
View ChunkCutter::part_of(const View& gradient, std::int64_t rows) {
  const std::pair key{gradient.buffer, gradient.offset};
  if (!parts_.contains(key)) {
    Buffer buffer = builder_.plan().buffers[gradient.buffer.value];
    buffer.name += ".part" + std::to_string(gradient.offset);
    buffer.bytes = Bytes(stored_bytes(gradient.dtype, rows * gradient.cols));
    parts_[key] = builder_.buffer(std::move(buffer));
  }
  View part = gradient;
  part.buffer = parts_[key];
  part.offset = 0;
  part.ld = gradient.cols;
  return part;
}

}  // namespace gputwin
