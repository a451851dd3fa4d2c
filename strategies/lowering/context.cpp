#include "strategies/lowering/context.h"

namespace gputwin {
namespace {

bool exchanges(const StageBuilder& b, ContextComm comm) {
  return b.layout.cp > 1 && b.layout.cp_comm == comm;
}

// Rows [first, first + count) of a matrix.
View rows(const View& matrix, std::int64_t first, std::int64_t count) {
  View v = matrix;
  v.offset += first * matrix.ld;
  v.rows = count;
  return v;
}

struct Copies {
  std::vector<View> from, to;
  void add(const View& source, const View& target) {
    from.push_back(source);
    to.push_back(target);
  }
};

// One kernel that makes all copies.
void copy(StageBuilder& b, const std::string& name, Copies copies) {
  std::int64_t elements = 0;
  for (const View& v : copies.from) elements += v.elements();
  b.kernel(name, {.kind = OpKind::CastCopy, .dims = {elements}}, std::move(copies.from),
           std::move(copies.to));
}

// Moves rows between `by_rank` [rank, sequence, row of the rank] and `by_position` [sequence,
// position].
void reorder(StageBuilder& b, const std::string& name, const View& by_rank, const View& by_position,
             bool to_positions) {
  const Sizes& s = b.sizes;
  const std::int64_t cp = b.layout.cp, chunk = s.sequence / 2;
  Copies copies;
  for (std::int64_t rank = 0; rank < cp; ++rank) {
    for (std::int64_t sample = 0; sample < s.sequences; ++sample) {
      for (const std::int64_t half : {0, 1}) {
        const std::int64_t index = half == 0 ? rank : 2 * cp - 1 - rank;
        const View here =
            rows(by_rank, (rank * s.sequences + sample) * s.sequence + half * chunk, chunk);
        const View there = rows(by_position, sample * s.positions + index * chunk, chunk);
        copies.add(to_positions ? here : there, to_positions ? there : here);
      }
    }
  }
  copy(b, name, std::move(copies));
}

View own_keys_and_values(const StageBuilder& b, const View& qkv) {
  return columns(qkv, b.sizes.query_width, 2 * b.sizes.kv_width);
}

// Keys and values of whole sequences [sequences x positions, k | v].
View gather_keys_and_values(StageBuilder& b, const View& qkv, bool keep) {
  const Sizes& s = b.sizes;
  const std::int64_t width = 2 * s.kv_width, all = s.tokens * b.layout.cp;
  const View own = b.temporary("kv_own", s.tokens, width);
  copy(b, "kv_pack", {{own_keys_and_values(b, qkv)}, {own}});
  const View by_rank = b.temporary("kv_gathered", all, width);
  b.collective(b.wiring.cp_stream, b.wiring.cp, OpKind::AllGather, "kv_all_gather", own, by_rank);
  const View kv = keep ? b.activation("kv", all, width) : b.temporary("kv", all, width);
  reorder(b, "kv_order", by_rank, kv, true);
  return kv;
}

void scatter_grads(StageBuilder& b, const View& dkv, const View& dqkv) {
  const Sizes& s = b.sizes;
  const View by_rank = b.temporary("kv_grad_by_rank", dkv.rows, dkv.cols);
  reorder(b, "kv_grad_order", by_rank, dkv, false);
  const View own = b.temporary("kv_grad_own", s.tokens, dkv.cols);
  b.collective(b.wiring.cp_stream, b.wiring.cp, OpKind::ReduceScatter, "kv_grad_reduce_scatter",
               by_rank, own);
  copy(b, "kv_grad_unpack", {{own}, {own_keys_and_values(b, dqkv)}});
}

Qkv gathered_inputs(const StageBuilder& b, const View& qkv, const View& kv) {
  const Sizes& s = b.sizes;
  return {columns(qkv, 0, s.query_width), columns(kv, 0, s.kv_width),
          columns(kv, s.kv_width, s.kv_width)};
}

}  // namespace

KernelSizes kernel_sizes(const StageBuilder& b) {
  const Sizes& s = b.sizes;
  return {.heads = s.heads,
          .kv_heads = s.kv_heads,
          .queries = s.sequence,
          .keys = exchanges(b, ContextComm::AllGather) ? s.positions : s.sequence,
          .query_width = s.query_width,
          .kv_width = s.kv_width,
          .cp_slot = b.wiring.cp};
}

Qkv split(const View& qkv, std::int64_t query_width, std::int64_t kv_width) {
  return {columns(qkv, 0, query_width), columns(qkv, query_width, kv_width),
          columns(qkv, query_width + kv_width, kv_width)};
}

Qkv kernel_inputs(StageBuilder& b, AttentionState& state) {
  if (exchanges(b, ContextComm::AllGather)) {
    state.exchanged = gather_keys_and_values(b, state.qkv, !is_flash(b.job.attention));
    return gathered_inputs(b, state.qkv, state.exchanged);
  }
  return split(state.qkv, b.sizes.query_width, b.sizes.kv_width);
}

Qkv kernel_inputs_again(StageBuilder& b, const AttentionState& state) {
  if (exchanges(b, ContextComm::AllGather)) {
    const View kv =
        is_flash(b.job.attention) ? gather_keys_and_values(b, state.qkv, false) : state.exchanged;
    return gathered_inputs(b, state.qkv, kv);
  }
  return split(state.qkv, b.sizes.query_width, b.sizes.kv_width);
}

View kernel_context(StageBuilder& b) {
  return b.activation("context", b.sizes.tokens, b.sizes.query_width);
}

void exchange_context(StageBuilder&, AttentionState& state) {
  state.context = state.kernel_context;
}

View kernel_context_grad(StageBuilder&, const View& dcontext) { return dcontext; }

KernelGrads kernel_grads(StageBuilder& b, const View& dqkv) {
  const Sizes& s = b.sizes;
  if (exchanges(b, ContextComm::AllGather)) {
    const View dkv = b.temporary("kv_grad", s.tokens * b.layout.cp, 2 * s.kv_width);
    return {gathered_inputs(b, dqkv, dkv), dkv};
  }
  return {split(dqkv, s.query_width, s.kv_width), {}};
}

void exchange_grads(StageBuilder& b, const KernelGrads& grads, const View& dqkv) {
  if (exchanges(b, ContextComm::AllGather)) scatter_grads(b, grads.whole, dqkv);
}

}  // namespace gputwin
