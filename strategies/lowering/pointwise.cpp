// Norms, and the bias, dropout and residual additions between the parts of a layer.
#include "strategies/lowering/quantize.h"

namespace gputwin {

View norm_forward(StageBuilder& b, const std::string& name, Role gain, Role bias, const View& x,
                  NormState& state, DType out) {
  const View y = linear_input(b, name, x.rows, x.cols, out);
  state = {x, b.activation(name + "_stats", x.rows, 2, DType::F32)};
  std::vector<View> reads{x, b.weight(gain).value};
  if (b.has(bias)) reads.push_back(b.weight(bias).value);
  b.kernel(name, {.kind = OpKind::NormForward, .norm = b.model.norm, .dims = {x.rows, x.cols}},
           std::move(reads), {y, state.stats});
  return y;
}

View norm_backward(StageBuilder& b, const std::string& name, Role gain, Role bias, const View& dy,
                   const NormState& state, const View& residual) {
  const View& x = state.x;
  const View dx = b.temporary(name + "_grad", x.rows, x.cols);
  std::vector<View> reads{dy, x, b.weight(gain).value, state.stats};
  std::vector<View> writes{dx};
  if (b.trains(gain)) writes.push_back(b.weight(gain).gradient);
  if (b.trains(bias)) writes.push_back(b.weight(bias).gradient);
  const bool fused = present(residual) && b.kernels.fused_residual_grad;
  if (fused) reads.push_back(residual);
  b.kernel(name,
           {.kind = OpKind::NormBackward,
            .accumulate = true,
            .norm = b.model.norm,
            .dims = {x.rows, x.cols}},
           std::move(reads), std::move(writes));
  if (fused || !present(residual)) return dx;
  const View sum = b.temporary(name + "_residual_grad", x.rows, x.cols);
  b.kernel(name + "_residual_add", {.kind = OpKind::Add, .dims = {x.elements()}}, {dx, residual},
           {sum});
  return sum;
}

View bias_dropout_add(StageBuilder& b, const std::string& name, Role bias, const View& x,
                      const View& residual, DropoutState& state) {
  const bool dropout = b.model.dropout > 0;
  const View y = b.activation(name, x.rows, x.cols);
  if (dropout) state.mask = b.activation(name + "_mask", x.rows, x.cols, DType::U8);
  const auto probability = static_cast<float>(b.model.dropout);
  std::vector<View> masked;
  if (dropout) masked.push_back(state.mask);
  if (b.kernels.fused_bias_dropout_add) {
    std::vector<View> reads{x};
    if (b.has(bias)) reads.push_back(b.weight(bias).value);
    reads.push_back(residual);
    masked.insert(masked.begin(), y);
    b.kernel(name,
             {.kind = OpKind::BiasDropoutAdd, .dropout = probability, .dims = {x.rows, x.cols}},
             std::move(reads), std::move(masked));
    return y;
  }
  View sum = x;
  if (b.has(bias)) {
    // A table of one row is added to every token: a plain bias add.
    View row = flat(b.weight(bias).value);
    sum = b.temporary(name + "_biased", x.rows, x.cols);
    b.kernel(name + "_bias", {.kind = OpKind::PositionAdd, .dims = {x.rows, x.cols}}, {x, row},
             {sum});
  }
  if (dropout) {
    const View dropped = b.temporary(name + "_dropped", x.rows, x.cols);
    masked.insert(masked.begin(), dropped);
    b.kernel(name + "_dropout",
             {.kind = OpKind::CastCopy, .dropout = probability, .dims = {x.elements()}}, {sum},
             std::move(masked));
    sum = dropped;
  }
  b.kernel(name, {.kind = OpKind::Add, .dims = {x.elements()}}, {sum, residual}, {y});
  return y;
}

View dropout_backward(StageBuilder& b, const std::string& name, const View& dy, const View& mask) {
  if (!present(mask)) return dy;
  const View dx = b.temporary(name + "_dropout_grad", dy.rows, dy.cols);
  b.kernel(name + "_dropout",
           {.kind = OpKind::DropoutBackward,
            .dropout = static_cast<float>(b.model.dropout),
            .dims = {dy.rows, dy.cols}},
           {dy, mask}, {dx});
  return dx;
}

View bias_dropout_backward(StageBuilder& b, const std::string& name, Role bias, const View& dy,
                           const DropoutState& state) {
  const View dx = dropout_backward(b, name, dy, state.mask);
  if (b.trains(bias)) {
    b.kernel_in(Phase::WeightGrad, name + "_bias",
                {.kind = OpKind::BiasGrad, .accumulate = true, .dims = {dx.rows, dx.cols}}, {dx},
                {b.weight(bias).gradient});
  }
  return dx;
}

}  // namespace gputwin
