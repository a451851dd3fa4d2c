// The two-layer perceptron, and a whole layer: norm, attention, add, norm, perceptron, add.
#include "strategies/lowering/linear.h"
#include "strategies/lowering/quantize.h"

namespace gputwin {

namespace {

// Of the MLP that all tokens go through: a dense layer's, or the shared experts'.
std::int64_t local_ffn(const StageBuilder& b) { return b.model.ffn_of(b.layer()) / b.layout.tp; }

}  // namespace

View mlp_forward(StageBuilder& b, const View& x, MlpState& state) {
  const Sizes& s = b.sizes;
  const std::int64_t ffn = local_ffn(b);
  state.fc1 = b.activation("fc1", s.tokens, is_gated(b.model.activation) ? 2 * ffn : ffn);
  const View bias = b.has(Role::Fc1Bias) ? b.weight(Role::Fc1Bias).value : View{};
  const bool late = b.kernels.fused_bias_activation && present(bias);
  column_parallel_forward(b, kFc1Layer, x, late ? View{} : bias, state.fc1, state.to_fc1);
  const View activated = linear_input(b, "activated", s.tokens, ffn, activation_output(b));
  std::vector<View> reads{state.fc1};
  if (late) reads.push_back(bias);
  b.kernel("activation",
           {.kind = OpKind::ActivationForward,
            .activation = b.model.activation,
            .dims = {s.tokens, ffn}},
           std::move(reads), {activated});
  return row_parallel_forward(b, kFc2Layer, activated, state.to_fc2);
}

View mlp_backward(StageBuilder& b, const View& dy, const MlpState& state) {
  const Sizes& s = b.sizes;
  const View dactivated = row_parallel_backward(b, kFc2Layer, dy, state.to_fc2);
  const View dfc1 = b.temporary("fc1_grad", s.tokens, state.fc1.cols);
  std::vector<View> reads{dactivated, state.fc1};
  if (b.kernels.fused_bias_activation && b.has(Role::Fc1Bias)) {
    reads.push_back(b.weight(Role::Fc1Bias).value);
  }
  b.kernel("activation",
           {.kind = OpKind::ActivationBackward,
            .activation = b.model.activation,
            .dims = {s.tokens, local_ffn(b)}},
           std::move(reads), {dfc1});
  return column_parallel_backward(b, kFc1Layer, dfc1, state.to_fc1);
}

View layer_forward(StageBuilder& b, const View& x, LayerState& state) {
  const View y1 =
      norm_forward(b, "norm1", Role::Norm1Gain, Role::Norm1Bias, x, state.norm1, norm_output(b));
  const View attention =
      b.model.has_mla() ? mla_forward(b, y1, state.mla) : attention_forward(b, y1, state.attention);
  const View x1 =
      bias_dropout_add(b, "proj_residual", Role::ProjBias, attention, x, state.dropout1);
  const bool experts = b.model.has_experts(b.layer());
  // Dispatch moves what the router saw, in 16 bits.
  const DType normed = experts ? b.sizes.activation : norm_output(b);
  const View y2 =
      norm_forward(b, "norm2", Role::Norm2Gain, Role::Norm2Bias, x1, state.norm2, normed);
  const View mlp = experts ? moe_forward(b, y2, state.moe) : mlp_forward(b, y2, state.mlp);
  return bias_dropout_add(b, "fc2_residual", Role::Fc2Bias, mlp, x1, state.dropout2);
}

View layer_backward(StageBuilder& b, const View& dy, const LayerState& state, bool to_input) {
  const View dmlp = bias_dropout_backward(b, "fc2", Role::Fc2Bias, dy, state.dropout2);
  const View dy2 = b.model.has_experts(b.layer()) ? moe_backward(b, dmlp, state.moe)
                                                  : mlp_backward(b, dmlp, state.mlp);
  const View dx1 =
      norm_backward(b, "norm2", Role::Norm2Gain, Role::Norm2Bias, dy2, state.norm2, dy);
  const View dattention = bias_dropout_backward(b, "proj", Role::ProjBias, dx1, state.dropout1);
  const View dy1 = b.model.has_mla() ? mla_backward(b, dattention, state.mla, to_input)
                                     : attention_backward(b, dattention, state.attention, to_input);
  if (!to_input) return {};
  return norm_backward(b, "norm1", Role::Norm1Gain, Role::Norm1Bias, dy1, state.norm1, dx1);
}

}  // namespace gputwin
