// Self-attention: fused q, k, v projection, scores and softmax apart or a flash kernel, output
// projection.
#include "strategies/lowering/stage_builder.h"

namespace gputwin {
namespace {

struct Qkv {
  View q, k, v;
};

// Column ranges of the fused tensor [tokens, q | k | v].
Qkv split(const Sizes& s, const View& qkv) {
  return {columns(qkv, 0, s.query_width), columns(qkv, s.query_width, s.kv_width),
          columns(qkv, s.query_width + s.kv_width, s.kv_width)};
}

Op attention_op(const StageBuilder& b, OpKind kind) {
  const Sizes& s = b.sizes;
  const bool scores = kind == OpKind::AttentionScores || kind == OpKind::FlashForward ||
                      kind == OpKind::FlashBackward;
  const bool alibi = scores && b.model.positions == Positions::Alibi;
  return {.kind = kind,
          .dtype = s.activation,
          .causal = true,
          .alibi = alibi,
          .attention = b.job.attention,
          .slot = alibi ? b.wiring.tp : SlotId{},
          .dims = {s.sequences, s.heads, s.kv_heads, s.sequence, s.sequence, s.head_dim}};
}

void rope(StageBuilder& b, const View& qkv, bool inverse) {
  if (b.model.positions != Positions::Rope) return;
  const Sizes& s = b.sizes;
  b.kernel("rope",
           {.kind = OpKind::Rope,
            .inverse = inverse,
            .dims = {s.tokens, s.heads, s.kv_heads, s.head_dim, s.sequence}},
           {qkv}, {qkv});
}

void unfused_forward(StageBuilder& b, const Qkv& x, AttentionState& state) {
  const Sizes& s = b.sizes;
  const std::int64_t rows = s.sequences * s.heads * s.sequence;
  const Op softmax{.kind = OpKind::SoftmaxForward,
                   .causal = true,
                   .dropout = static_cast<float>(b.model.dropout),
                   .dims = {s.sequences, s.heads, s.sequence, s.sequence}};
  View scores = b.temporary("scores", rows, s.sequence);
  b.kernel("attention_scores", attention_op(b, OpKind::AttentionScores), {x.q, x.k}, {scores});
  if (!b.kernels.fused_softmax) {
    const View masked = b.temporary("masked_scores", rows, s.sequence);
    b.kernel("attention_mask", {.kind = OpKind::CastCopy, .dims = {scores.elements()}}, {scores},
             {masked});
    scores = masked;
  }
  state.probabilities = b.activation("probabilities", rows, s.sequence);
  state.dropped = state.probabilities;
  std::vector<View> writes{state.probabilities};
  if (b.model.dropout > 0) {
    state.dropped = b.activation("dropped_probabilities", rows, s.sequence);
    state.mask = b.activation("attention_dropout_mask", rows, s.sequence, DType::U8);
    writes.push_back(state.dropped);
    writes.push_back(state.mask);
  }
  b.kernel("attention_softmax", softmax, {scores}, std::move(writes));
  b.kernel("attention_context", attention_op(b, OpKind::AttentionContext), {state.dropped, x.v},
           {state.context});
}

void unfused_backward(StageBuilder& b, const Qkv& x, const Qkv& dx, const View& dcontext,
                      const AttentionState& state) {
  const Sizes& s = b.sizes;
  const View& p = state.probabilities;
  const View dp = b.temporary("probabilities_grad", p.rows, p.cols);
  const View ds = b.temporary("scores_grad", p.rows, p.cols);
  b.kernel("attention_grad_probabilities", attention_op(b, OpKind::AttentionGradProbs),
           {dcontext, x.v}, {dp});
  b.kernel("attention_grad_value", attention_op(b, OpKind::AttentionGradValue),
           {state.dropped, dcontext}, {dx.v});
  std::vector<View> reads{p, dp};
  if (present(state.mask)) reads.push_back(state.mask);
  b.kernel("attention_softmax",
           {.kind = OpKind::SoftmaxBackward,
            .causal = true,
            .dropout = static_cast<float>(b.model.dropout),
            .dims = {s.sequences, s.heads, s.sequence, s.sequence}},
           std::move(reads), {ds});
  b.kernel("attention_grad_query", attention_op(b, OpKind::AttentionGradQuery), {ds, x.k}, {dx.q});
  b.kernel("attention_grad_key", attention_op(b, OpKind::AttentionGradKey), {ds, x.q}, {dx.k});
}

}  // namespace

View attention_forward(StageBuilder& b, const View& x, AttentionState& state) {
  const Sizes& s = b.sizes;
  state.input = x;
  state.qkv = b.activation("qkv", s.tokens, s.qkv_width);
  const View bias = b.has(Role::QkvBias) ? b.weight(Role::QkvBias).value : View{};
  b.linear("qkv", b.gathered("qkv", x), b.weight(Role::Qkv).value, bias, state.qkv);
  rope(b, state.qkv, false);
  const Qkv parts = split(s, state.qkv);
  state.context = b.activation("context", s.tokens, s.query_width);
  if (is_flash(b.job.attention)) {
    state.log_sum_exp =
        b.activation("log_sum_exp", s.sequences * s.heads * s.sequence, 1, DType::F32);
    b.kernel("flash_attention", attention_op(b, OpKind::FlashForward), {parts.q, parts.k, parts.v},
             {state.context, state.log_sum_exp});
  } else {
    unfused_forward(b, parts, state);
  }
  const View partial = b.temporary("proj", s.tokens, s.hidden);
  b.linear("proj", state.context, b.weight(Role::Proj).value, {}, partial);
  return b.reduced("proj", partial);
}

View attention_backward(StageBuilder& b, const View& dy, const AttentionState& state) {
  const Sizes& s = b.sizes;
  const View dcontext = row_parallel_backward(b, "proj", Role::Proj, dy, state.context);
  const View dqkv = b.temporary("qkv_grad", s.tokens, s.qkv_width);
  const Qkv parts = split(s, state.qkv), grads = split(s, dqkv);
  if (is_flash(b.job.attention)) {
    b.kernel("flash_attention", attention_op(b, OpKind::FlashBackward),
             {parts.q, parts.k, parts.v, state.context, state.log_sum_exp, dcontext},
             {grads.q, grads.k, grads.v});
  } else {
    unfused_backward(b, parts, grads, dcontext, state);
  }
  rope(b, dqkv, true);
  return column_parallel_backward(b, {"qkv", Role::Qkv, Role::QkvBias}, dqkv, state.input);
}

}  // namespace gputwin
