#include "strategies/lowering/context.h"

namespace gputwin {
namespace {

bool exchanges(const StageBuilder& b, ContextComm comm) {
  return b.layout.cp > 1 && b.layout.cp_comm == comm;
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

View packed_keys_and_values(StageBuilder& b, const View& qkv) {
  const View own = b.temporary("kv_own", b.sizes.tokens, 2 * b.sizes.kv_width);
  copy(b, "kv_pack", {{own_keys_and_values(b, qkv)}, {own}});
  return own;
}

// Keys and values of whole sequences [sequences x positions, k | v].
View gather_keys_and_values(StageBuilder& b, const View& qkv, bool keep) {
  const Sizes& s = b.sizes;
  const std::int64_t width = 2 * s.kv_width, all = s.tokens * b.layout.cp;
  const View own = packed_keys_and_values(b, qkv);
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

// A tensor [tokens, parts], each part cut by heads into cp blocks of columns; `widths` are those of
// a block. Its blocks go to [rank, tokens, blocks of the rank], or back.
Copies blocks_by_rank(const StageBuilder& b, const View& by_token, const View& by_rank,
                      const std::vector<std::int64_t>& widths, bool to_ranks) {
  const std::int64_t cp = b.layout.cp, tokens = b.sizes.tokens;
  Copies copies;
  for (std::int64_t rank = 0; rank < cp; ++rank) {
    std::int64_t part = 0, column = 0;
    for (const std::int64_t width : widths) {
      const View whole = columns(by_token, part + rank * width, width);
      const View block = columns(rows(by_rank, rank * tokens, tokens), column, width);
      copies.add(to_ranks ? whole : block, to_ranks ? block : whole);
      part += cp * width;
      column += width;
    }
  }
  return copies;
}

// From the rank's tokens of all heads to all tokens of the rank's heads: `by_position` [sequence x
// position, blocks].
void trade_tokens(StageBuilder& b, const std::string& name, const View& by_token,
                  const View& by_position, const std::vector<std::int64_t>& widths) {
  const View packed = b.temporary(name + "_by_rank", by_position.rows, by_position.cols);
  const View traded = b.temporary(name + "_traded", by_position.rows, by_position.cols);
  copy(b, name + "_pack", blocks_by_rank(b, by_token, packed, widths, true));
  b.collective(b.wiring.cp_stream, b.wiring.cp, OpKind::AllToAll, name + "_all_to_all", packed,
               traded);
  reorder(b, name + "_order", traded, by_position, true);
}

// The way back.
void trade_heads(StageBuilder& b, const std::string& name, const View& by_position,
                 const View& by_token, const std::vector<std::int64_t>& widths) {
  const View packed = b.temporary(name + "_by_rank", by_position.rows, by_position.cols);
  const View traded = b.temporary(name + "_traded", by_position.rows, by_position.cols);
  reorder(b, name + "_order", packed, by_position, false);
  b.collective(b.wiring.cp_stream, b.wiring.cp, OpKind::AllToAll, name + "_all_to_all", packed,
               traded);
  copy(b, name + "_unpack", blocks_by_rank(b, by_token, traded, widths, false));
}

std::vector<std::int64_t> qkv_widths(const KernelSizes& k) {
  return {k.query_width, k.kv_width, k.kv_width};
}

std::int64_t kernel_tokens(const StageBuilder& b, const KernelSizes& k) {
  return b.sizes.sequences * k.queries;
}

Qkv gathered_inputs(const StageBuilder& b, const View& qkv, const View& kv) {
  const Sizes& s = b.sizes;
  return {columns(qkv, 0, s.query_width), columns(kv, 0, s.kv_width),
          columns(kv, s.kv_width, s.kv_width)};
}

// Passes `x` to the next rank and returns what comes from the previous one.
View pass_on(StageBuilder& b, const std::string& name, const View& x, std::int64_t step) {
  const View next = b.temporary(name + std::to_string(step + 1), x.rows, x.cols);
  b.send(b.wiring.cp_stream, b.wiring.cp_next, name + "_send", x);
  b.receive(b.wiring.cp_receive_stream, b.wiring.cp_previous, name + "_receive", next);
  return next;
}

// x += y.
void add_to(StageBuilder& b, const std::string& name, const View& x, const View& y) {
  b.kernel(name, {.kind = OpKind::Add, .dims = {x.elements()}}, {x, y}, {x});
}

}  // namespace

KernelSizes kernel_sizes(const StageBuilder& b) {
  const Sizes& s = b.sizes;
  const std::int64_t cp = b.layout.cp;
  if (exchanges(b, ContextComm::AllToAll)) {
    return {.heads = s.heads / cp,
            .kv_heads = s.kv_heads / cp,
            .queries = s.positions,
            .keys = s.positions,
            .query_width = s.query_width / cp,
            .kv_width = s.kv_width / cp};
  }
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

bool is_ring(const StageBuilder& b) { return exchanges(b, ContextComm::Ring); }

void ring_forward(StageBuilder& b, Op flash, const AttentionState& state) {
  const Sizes& s = b.sizes;
  std::vector<std::pair<View, View>> parts;  // context and log-sum-exp of each step
  View kv = packed_keys_and_values(b, state.qkv);
  for (std::int32_t step = 0; step < b.layout.cp; ++step) {
    b.number(step);
    const bool last = step + 1 == b.layout.cp;
    const View next = last ? View{} : pass_on(b, "kv", kv, step);
    const std::string id = std::to_string(step);
    const View &whole = state.kernel_context, &sums = state.log_sum_exp;
    parts.emplace_back(
        step == 0 ? whole : b.temporary("context_part" + id, whole.rows, whole.cols),
        step == 0 ? sums : b.temporary("log_sum_exp_part" + id, sums.rows, 1, DType::F32));
    flash.ring_step = static_cast<std::uint32_t>(step);
    b.kernel("flash_attention", flash,
             {columns(state.qkv, 0, s.query_width), columns(kv, 0, s.kv_width),
              columns(kv, s.kv_width, s.kv_width)},
             {parts.back().first, parts.back().second});
    kv = next;
  }
  // After the last step, as Transformer Engine does.
  for (std::size_t step = 1; step < parts.size(); ++step) {
    b.number(static_cast<std::int32_t>(step));
    b.kernel(
        "attention_merge",
        {.kind = OpKind::AttentionMerge, .dims = {s.sequences, s.heads, s.sequence, s.head_dim}},
        {parts[step].first, parts[step].second}, {state.kernel_context, state.log_sum_exp});
  }
  b.number(0);
}

void ring_backward(StageBuilder& b, Op flash, const View& dcontext, const AttentionState& state,
                   const View& dqkv) {
  const Sizes& s = b.sizes;
  const View q = columns(state.qkv, 0, s.query_width), dq = columns(dqkv, 0, s.query_width);
  View kv = packed_keys_and_values(b, state.qkv), dkv;
  for (std::int32_t step = 0; step < b.layout.cp; ++step) {
    b.number(step);
    const std::string id = std::to_string(step);
    const bool first = step == 0, last = step + 1 == b.layout.cp;
    // The gradient of a part follows it: what earlier ranks found of this step's part comes in.
    const View next = last ? View{} : pass_on(b, "kv", kv, step);
    const View so_far = first ? View{} : pass_on(b, "kv_grad", dkv, step - 1);
    const View part = b.temporary("kv_grad_part" + id, s.tokens, 2 * s.kv_width);
    const View dq_part = first ? dq : b.temporary("q_grad_part" + id, s.tokens, s.query_width);
    flash.ring_step = static_cast<std::uint32_t>(step);
    b.kernel("flash_attention", flash,
             {q, columns(kv, 0, s.kv_width), columns(kv, s.kv_width, s.kv_width),
              state.kernel_context, state.log_sum_exp, dcontext},
             {dq_part, columns(part, 0, s.kv_width), columns(part, s.kv_width, s.kv_width)});
    if (!first) {
      add_to(b, "q_grad_add", dq, dq_part);
      add_to(b, "kv_grad_add", so_far, part);
    }
    dkv = first ? part : so_far;
    kv = next;
  }
  const View own = pass_on(b, "kv_grad", dkv, b.layout.cp - 1);
  b.number(0);
  copy(b, "kv_grad_unpack", {{own}, {own_keys_and_values(b, dqkv)}});
}

Qkv kernel_inputs(StageBuilder& b, AttentionState& state) {
  const KernelSizes k = kernel_sizes(b);
  if (exchanges(b, ContextComm::AllGather)) {
    state.exchanged = gather_keys_and_values(b, state.qkv, !is_flash(b.job.attention));
    return gathered_inputs(b, state.qkv, state.exchanged);
  }
  if (exchanges(b, ContextComm::AllToAll)) {
    state.exchanged =
        b.activation("qkv_of_heads", kernel_tokens(b, k), k.query_width + 2 * k.kv_width);
    trade_tokens(b, "qkv", state.qkv, state.exchanged, qkv_widths(k));
    return split(state.exchanged, k.query_width, k.kv_width);
  }
  return split(state.qkv, k.query_width, k.kv_width);
}

Qkv kernel_inputs_again(StageBuilder& b, const AttentionState& state) {
  const KernelSizes k = kernel_sizes(b);
  if (exchanges(b, ContextComm::AllGather)) {
    const View kv =
        is_flash(b.job.attention) ? gather_keys_and_values(b, state.qkv, false) : state.exchanged;
    return gathered_inputs(b, state.qkv, kv);
  }
  const View& qkv = exchanges(b, ContextComm::AllToAll) ? state.exchanged : state.qkv;
  return split(qkv, k.query_width, k.kv_width);
}

View kernel_context(StageBuilder& b) {
  const KernelSizes k = kernel_sizes(b);
  const bool traded = exchanges(b, ContextComm::AllToAll);
  return b.activation(traded ? "context_of_heads" : "context", kernel_tokens(b, k), k.query_width);
}

void exchange_context(StageBuilder& b, AttentionState& state) {
  state.context = state.kernel_context;
  if (!exchanges(b, ContextComm::AllToAll)) return;
  state.context = b.activation("context", b.sizes.tokens, b.sizes.query_width);
  trade_heads(b, "context", state.kernel_context, state.context, {kernel_sizes(b).query_width});
}

View kernel_context_grad(StageBuilder& b, const View& dcontext) {
  if (!exchanges(b, ContextComm::AllToAll)) return dcontext;
  const KernelSizes k = kernel_sizes(b);
  const View traded = b.temporary("context_grad_of_heads", kernel_tokens(b, k), k.query_width);
  trade_tokens(b, "context_grad", dcontext, traded, {k.query_width});
  return traded;
}

KernelGrads kernel_grads(StageBuilder& b, const View& dqkv) {
  const KernelSizes k = kernel_sizes(b);
  if (exchanges(b, ContextComm::AllGather)) {
    const View dkv = b.temporary("kv_grad", b.sizes.tokens * b.layout.cp, 2 * k.kv_width);
    return {gathered_inputs(b, dqkv, dkv), dkv};
  }
  if (exchanges(b, ContextComm::AllToAll)) {
    const View of_heads =
        b.temporary("qkv_grad_of_heads", kernel_tokens(b, k), k.query_width + 2 * k.kv_width);
    return {split(of_heads, k.query_width, k.kv_width), of_heads};
  }
  return {split(dqkv, k.query_width, k.kv_width), {}};
}

void exchange_grads(StageBuilder& b, const KernelGrads& grads, const View& dqkv) {
  if (exchanges(b, ContextComm::AllGather)) scatter_grads(b, grads.whole, dqkv);
  if (exchanges(b, ContextComm::AllToAll)) {
    trade_heads(b, "qkv_grad", grads.whole, dqkv, qkv_widths(kernel_sizes(b)));
  }
}

}  // namespace gputwin
