// Multi-head latent attention (DeepSeek-V2, section 2.1) as training runs it: latent vectors are
// expanded to the queries, keys and values of every head, which a flash kernel then takes.
//
//   q  = up_q norm(down_q x)                         heads x [nope | rope]
//   ckv, kr = down_kv x;  kv = up_kv norm(ckv)       heads x [nope | value];  kr one for all heads
//
// The down projections are whole on every tensor-parallel rank and see its own token shard with
// sequence parallelism; the up projections are cut by heads. Source  Megatron Core,
// core/transformer/multi_latent_attention.py.
#include "strategies/lowering/linear.h"
#include "strategies/lowering/quantize.h"

namespace gputwin {
namespace {

constexpr LinearLayer kQUpLayer{"q_up", Role::QUp, Role::QkvBias, Role::QkvAdapterIn,
                                Role::QkvAdapterOut};
constexpr LinearLayer kKvUpLayer{"kv_up", Role::KvUp, Role::QkvBias, Role::QkvAdapterIn,
                                 Role::QkvAdapterOut};

// y = x w^T with the whole w, of the rank's own tokens.
View whole_linear(StageBuilder& b, const std::string& name, Role role, const View& x,
                  LinearState& state) {
  const View y = b.activation(name, x.rows, b.weight(role).value.rows);
  state.input = x;
  if (!is_narrow(b)) {
    b.linear(name, x, b.weight(role).value, {}, y);
    return y;
  }
  const bool train = b.trains(role);
  const NarrowCopies copies = quantize(b, name + "_input", x, {.cols = train, .keep = train});
  state.copy = copies.cols;
  b.linear(name, copies.rows, forward_weight(b, role), {}, y);
  return y;
}

// Adds the gradient of x to `dx`, or writes it.
void whole_backward(StageBuilder& b, const std::string& name, Role role, const View& dy,
                    const LinearState& state, const View& dx, bool adds) {
  const bool train = b.trains(role);
  if (!is_narrow(b)) {
    b.linear_input_grad(name, dy, b.weight(role).value, dx, false, adds);
    if (train) b.linear_weight_grad(name, dy, state.input, b.weight(role).gradient);
    return;
  }
  const bool flips = transposes_copies(b);
  const NarrowCopies copies = quantize(b, name + "_grad", dy, {.cols = train});
  b.linear_input_grad(name, copies.rows, backward_weight(b, role), dx, flips, adds);
  if (train) {
    b.linear_weight_grad(name, copies.cols, state.copy, b.weight(role).gradient, flips);
  }
}

Op mla_op(const StageBuilder& b, OpKind kind) {
  const Mla& a = b.model.mla;
  const Sizes& s = b.sizes;
  return {.kind = kind, .dims = {s.tokens, s.heads, a.nope, a.rope, a.value, s.sequence}};
}

void rotate_queries(StageBuilder& b, const View& q, bool inverse) {
  const Mla& a = b.model.mla;
  const Sizes& s = b.sizes;
  b.kernel("mla_rope",
           {.kind = OpKind::MlaRope,
            .inverse = inverse,
            .dims = {s.tokens, s.heads, a.nope, a.rope, s.sequence}},
           {q}, {q});
}

Op flash_op(const StageBuilder& b, OpKind kind) {
  const Sizes& s = b.sizes;
  return {.kind = kind,
          .dtype = s.activation,
          .causal = true,
          .attention = b.job.attention,
          .value_size = static_cast<std::int32_t>(b.model.mla.value),
          .dims = {s.sequences, s.heads, s.heads, s.sequence, s.sequence, s.head_dim}};
}

}  // namespace

View mla_forward(StageBuilder& b, const View& x, MlaState& state) {
  const Mla& a = b.model.mla;
  const Sizes& s = b.sizes;
  View latent_q = x;
  if (a.q_rank > 0) {
    const View down = whole_linear(b, "q_down", Role::QDown, x, state.to_q_down);
    latent_q = norm_forward(b, "q_norm", Role::QNormGain, Role::QNormBias, down, state.q_norm,
                            norm_output(b));
  }
  state.q = b.activation("query", s.tokens, s.query_width);
  column_parallel_forward(b, kQUpLayer, latent_q, {}, state.q, state.to_q_up);
  rotate_queries(b, state.q, false);
  const View kv_down = whole_linear(b, "kv_down", Role::KvDown, x, state.to_kv_down);
  const View latent = norm_forward(b, "kv_norm", Role::KvNormGain, Role::KvNormBias,
                                   columns(kv_down, 0, a.kv_rank), state.kv_norm, norm_output(b));
  const View kv = b.temporary("key_value", s.tokens, s.heads * (a.nope + a.value));
  column_parallel_forward(b, kKvUpLayer, latent, {}, kv, state.to_kv_up);
  const View shared_key = b.gathered("shared_key", columns(kv_down, a.kv_rank, a.rope));
  state.k = b.activation("key", s.tokens, s.query_width);
  state.v = b.activation("value", s.tokens, s.context_width);
  b.kernel("mla_key_value", mla_op(b, OpKind::MlaKeyValue), {kv, shared_key}, {state.k, state.v});
  state.context = b.activation("context", s.tokens, s.context_width);
  state.log_sum_exp =
      b.activation("log_sum_exp", s.sequences * s.heads * s.sequence, 1, DType::F32);
  b.kernel("flash_attention", flash_op(b, OpKind::FlashForward), {state.q, state.k, state.v},
           {state.context, state.log_sum_exp});
  return row_parallel_forward(b, kProjLayer, state.context, state.to_proj);
}

View mla_backward(StageBuilder& b, const View& dy, const MlaState& state, bool to_input) {
  const Mla& a = b.model.mla;
  const Sizes& s = b.sizes;
  const View dcontext = row_parallel_backward(b, kProjLayer, dy, state.to_proj);
  const View dq = b.temporary("query_grad", s.tokens, s.query_width);
  const View dk = b.temporary("key_grad", s.tokens, s.query_width);
  const View dv = b.temporary("value_grad", s.tokens, s.context_width);
  b.kernel("flash_attention", flash_op(b, OpKind::FlashBackward),
           {state.q, state.k, state.v, state.context, state.log_sum_exp, dcontext}, {dq, dk, dv});
  const View dkv = b.temporary("key_value_grad", s.tokens, s.heads * (a.nope + a.value));
  const View dshared = b.temporary("shared_key_grad", s.tokens, a.rope);
  b.kernel("mla_key_value", mla_op(b, OpKind::MlaKeyValueGrad), {dk, dv}, {dkv, dshared});
  const View dlatent = column_parallel_backward(b, kKvUpLayer, dkv, state.to_kv_up);
  const View dkv_normed =
      norm_backward(b, "kv_norm", Role::KvNormGain, Role::KvNormBias, dlatent, state.kv_norm, {});
  // Every tensor-parallel rank has the part of its heads.
  const View dkey = b.reduced("shared_key_grad", dshared);
  const View dkv_down = b.temporary("kv_down_grad", dkey.rows, a.kv_rank + a.rope);
  b.kernel("kv_down_grad_join", {.kind = OpKind::CastCopy, .dims = {dkv_down.elements()}},
           {dkv_normed, dkey},
           {columns(dkv_down, 0, a.kv_rank), columns(dkv_down, a.kv_rank, a.rope)});
  rotate_queries(b, dq, true);
  View dx = column_parallel_backward(b, kQUpLayer, dq, state.to_q_up, a.q_rank > 0 || to_input);
  if (a.q_rank > 0) {
    const View dq_down =
        norm_backward(b, "q_norm", Role::QNormGain, Role::QNormBias, dx, state.q_norm, {});
    dx = b.temporary("attention_input_grad", dq_down.rows, s.hidden);
    whole_backward(b, "q_down", Role::QDown, dq_down, state.to_q_down, dx, false);
  }
  whole_backward(b, "kv_down", Role::KvDown, dkv_down, state.to_kv_down, dx, true);
  return dx;
}

}  // namespace gputwin
