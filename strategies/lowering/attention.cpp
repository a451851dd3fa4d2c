// Self-attention: fused q, k, v projection, scores and softmax apart or a flash kernel, output
// projection.
#include "strategies/lowering/context.h"
#include "strategies/lowering/linear.h"

namespace gputwin {
namespace {

Op attention_op(const StageBuilder& b, OpKind kind) {
  const Sizes& s = b.sizes;
  const KernelSizes k = kernel_sizes(b);
  const bool scores = kind == OpKind::AttentionScores || kind == OpKind::FlashForward ||
                      kind == OpKind::FlashBackward;
  const bool alibi = scores && b.model.positions == Positions::Alibi;
  return {.kind = kind,
          .dtype = s.activation,
          .causal = b.model.causal,
          .alibi = alibi,
          .attention = b.job.attention,
          .window = static_cast<std::int32_t>(b.model.window_of(b.layer())),
          .slot = alibi ? b.wiring.tp : SlotId{},
          .cp_slot = k.cp_slot,
          .dims = {s.sequences, k.heads, k.kv_heads, k.queries, k.keys, s.head_dim}};
}

void rope(StageBuilder& b, const View& qkv, bool inverse) {
  if (b.model.positions != Positions::Rope) return;
  const Sizes& s = b.sizes;
  b.kernel("rope",
           {.kind = OpKind::Rope,
            .inverse = inverse,
            .cp_slot = b.wiring.cp,
            .dims = {s.tokens, s.heads, s.kv_heads, s.head_dim, s.sequence}},
           {qkv}, {qkv});
}

Op softmax_op(const StageBuilder& b, OpKind kind) {
  const KernelSizes k = kernel_sizes(b);
  return {.kind = kind,
          .causal = b.model.causal,
          .dropout = static_cast<float>(b.model.dropout),
          .cp_slot = k.cp_slot,
          .dims = {b.sizes.sequences, k.heads, k.queries, k.keys}};
}

void unfused_forward(StageBuilder& b, const Qkv& x, AttentionState& state) {
  const KernelSizes k = kernel_sizes(b);
  const std::int64_t rows = b.sizes.sequences * k.heads * k.queries;
  View scores = b.temporary("scores", rows, k.keys);
  b.kernel("attention_scores", attention_op(b, OpKind::AttentionScores), {x.q, x.k}, {scores});
  if (!b.kernels.fused_softmax) {
    const View masked = b.temporary("masked_scores", rows, k.keys);
    b.kernel("attention_mask", {.kind = OpKind::CastCopy, .dims = {scores.elements()}}, {scores},
             {masked});
    scores = masked;
  }
  state.probabilities = b.activation("probabilities", rows, k.keys);
  state.dropped = state.probabilities;
  std::vector<View> writes{state.probabilities};
  if (b.model.dropout > 0) {
    state.dropped = b.activation("dropped_probabilities", rows, k.keys);
    state.mask = b.activation("attention_dropout_mask", rows, k.keys, DType::U8);
    writes.push_back(state.dropped);
    writes.push_back(state.mask);
  }
  b.kernel("attention_softmax", softmax_op(b, OpKind::SoftmaxForward), {scores}, std::move(writes));
  b.kernel("attention_context", attention_op(b, OpKind::AttentionContext), {state.dropped, x.v},
           {state.kernel_context});
}

void unfused_backward(StageBuilder& b, const Qkv& x, const Qkv& dx, const View& dcontext,
                      const AttentionState& state) {
  const View& p = state.probabilities;
  const View dp = b.temporary("probabilities_grad", p.rows, p.cols);
  const View ds = b.temporary("scores_grad", p.rows, p.cols);
  b.kernel("attention_grad_probabilities", attention_op(b, OpKind::AttentionGradProbs),
           {dcontext, x.v}, {dp});
  b.kernel("attention_grad_value", attention_op(b, OpKind::AttentionGradValue),
           {state.dropped, dcontext}, {dx.v});
  std::vector<View> reads{p, dp};
  if (present(state.mask)) reads.push_back(state.mask);
  b.kernel("attention_softmax", softmax_op(b, OpKind::SoftmaxBackward), std::move(reads), {ds});
  b.kernel("attention_grad_query", attention_op(b, OpKind::AttentionGradQuery), {ds, x.k}, {dx.q});
  b.kernel("attention_grad_key", attention_op(b, OpKind::AttentionGradKey), {ds, x.q}, {dx.k});
}

}  // namespace

View attention_forward(StageBuilder& b, const View& x, AttentionState& state) {
  const Sizes& s = b.sizes;
  state.qkv = b.activation("qkv", s.tokens, s.qkv_width);
  const View bias = b.has(Role::QkvBias) ? b.weight(Role::QkvBias).value : View{};
  column_parallel_forward(b, kQkvLayer, x, bias, state.qkv, state.to_qkv);
  rope(b, state.qkv, false);
  const Qkv parts = kernel_inputs(b, state);
  state.kernel_context = kernel_context(b);
  if (is_flash(b.job.attention)) {
    const KernelSizes k = kernel_sizes(b);
    state.log_sum_exp =
        b.activation("log_sum_exp", s.sequences * k.heads * k.queries, 1, DType::F32);
    const Op flash = attention_op(b, OpKind::FlashForward);
    if (is_ring(b)) {
      ring_forward(b, flash, state);
    } else {
      b.kernel("flash_attention", flash, {parts.q, parts.k, parts.v},
               {state.kernel_context, state.log_sum_exp});
    }
  } else {
    unfused_forward(b, parts, state);
  }
  exchange_context(b, state);
  return row_parallel_forward(b, kProjLayer, state.context, state.to_proj);
}

View attention_backward(StageBuilder& b, const View& dy, const AttentionState& state,
                        bool to_input) {
  const Sizes& s = b.sizes;
  const View dcontext =
      kernel_context_grad(b, row_parallel_backward(b, kProjLayer, dy, state.to_proj));
  const View dqkv = b.temporary("qkv_grad", s.tokens, s.qkv_width);
  const Qkv parts = kernel_inputs_again(b, state);
  const KernelGrads grads = kernel_grads(b, dqkv);
  if (is_ring(b)) {
    ring_backward(b, attention_op(b, OpKind::FlashBackward), dcontext, state, dqkv);
  } else if (is_flash(b.job.attention)) {
    b.kernel("flash_attention", attention_op(b, OpKind::FlashBackward),
             {parts.q, parts.k, parts.v, state.kernel_context, state.log_sum_exp, dcontext},
             {grads.to.q, grads.to.k, grads.to.v});
  } else {
    unfused_backward(b, parts, grads.to, dcontext, state);
  }
  exchange_grads(b, grads, dqkv);
  rope(b, dqkv, true);
  return column_parallel_backward(b, kQkvLayer, dqkv, state.to_qkv, to_input);
}

}  // namespace gputwin
