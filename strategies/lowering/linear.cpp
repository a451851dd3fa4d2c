// Backward passes of tensor-parallel linear layers (Megatron-LM, Shoeybi et al. 2019, section 3).
#include "strategies/lowering/stage_builder.h"

namespace gputwin {

View column_parallel_backward(StageBuilder& b, const ColumnGrad& layer, const View& dy,
                              const View& input) {
  const std::string name = layer.name;
  const Weight& w = b.weight(layer.weight);
  if (b.has(layer.bias)) {
    b.kernel_in(Phase::WeightGrad, name + "_bias",
                {.kind = OpKind::BiasGrad, .accumulate = true, .dims = {dy.rows, dy.cols}}, {dy},
                {b.weight(layer.bias).gradient});
  }
  // The gathered input was not kept: sequence parallelism gathers it again for the weight gradient.
  const View full = b.gathered(name + "_input", input);
  const View partial = b.temporary(name + "_input_grad", dy.rows, w.value.cols);
  if (b.kernels.async_tensor_parallel) {
    b.linear_input_grad(name, dy, w.value, partial);
    const View dx = b.reduced(name, partial);
    b.linear_weight_grad(name, dy, full, w.gradient);
    return dx;
  }
  // The weight gradient first: the collective then has nothing to hide under, as in these stacks.
  b.linear_weight_grad(name, dy, full, w.gradient);
  b.linear_input_grad(name, dy, w.value, partial);
  return b.reduced(name, partial);
}

View row_parallel_backward(StageBuilder& b, const std::string& name, Role weight, const View& dy,
                           const View& input) {
  const Weight& w = b.weight(weight);
  const View full = b.gathered(name, dy);
  const View dx = b.temporary(name + "_input_grad", full.rows, w.value.cols);
  b.linear_input_grad(name, full, w.value, dx);
  b.linear_weight_grad(name, full, input, w.gradient);
  return dx;
}

}  // namespace gputwin
