#include "strategies/lowering/adapters.h"

namespace gputwin {
namespace {

constexpr double kAlpha = 32.0;  // NeMo's default; the scale is alpha / r

void scaled(StageBuilder& b, const std::string& name, const View& from, const View& to) {
  b.kernel(name,
           {.kind = OpKind::CastCopy,
            .scale = static_cast<float>(kAlpha / b.job.lora_rank),
            .dims = {from.elements()}},
           {from}, {to});
}

}  // namespace

bool has_adapter(const StageBuilder& b, const LinearLayer& layer) {
  return b.has(layer.adapter_in);
}

void adapter_forward(StageBuilder& b, const LinearLayer& layer, const View& x, const View& y,
                     LinearState& state) {
  if (!has_adapter(b, layer)) return;
  const std::string name = std::string(layer.name) + "_adapter";
  state.hidden = b.activation(name + "_hidden", x.rows, b.job.lora_rank);
  const View z = b.temporary(name + "_out", y.rows, y.cols);
  b.linear(name + "_in", x, b.weight(layer.adapter_in).value, {}, state.hidden);
  b.linear(name + "_out", state.hidden, b.weight(layer.adapter_out).value, {}, z);
  scaled(b, name + "_scale", z, z);
  b.kernel(name + "_add", {.kind = OpKind::Add, .dims = {y.elements()}}, {y, z}, {y});
}

AdapterGrads adapter_input_grads(StageBuilder& b, const LinearLayer& layer, const View& dy) {
  if (!has_adapter(b, layer)) return {};
  const std::string name = std::string(layer.name) + "_adapter";
  const AdapterGrads grads{.dy = b.temporary(name + "_grad", dy.rows, dy.cols),
                           .hidden = b.temporary(name + "_hidden_grad", dy.rows, b.job.lora_rank)};
  scaled(b, name + "_scale", dy, grads.dy);
  b.linear_input_grad(name + "_out", grads.dy, b.weight(layer.adapter_out).value, grads.hidden);
  return grads;
}

void add_adapter_input_grad(StageBuilder& b, const LinearLayer& layer, const AdapterGrads& grads,
                            const View& dx) {
  if (!has_adapter(b, layer)) return;
  const std::string name = std::string(layer.name) + "_adapter";
  const View part = b.temporary(name + "_input_grad", dx.rows, dx.cols);
  b.linear_input_grad(name + "_in", grads.hidden, b.weight(layer.adapter_in).value, part);
  b.kernel(name + "_add", {.kind = OpKind::Add, .dims = {dx.elements()}}, {dx, part}, {dx});
}

void adapter_weight_grads(StageBuilder& b, const LinearLayer& layer, const AdapterGrads& grads,
                          const View& x, const LinearState& state) {
  if (!has_adapter(b, layer)) return;
  const std::string name = std::string(layer.name) + "_adapter";
  b.linear_weight_grad(name + "_out", grads.dy, state.hidden, b.weight(layer.adapter_out).gradient);
  b.linear_weight_grad(name + "_in", grads.hidden, x, b.weight(layer.adapter_in).gradient);
}

}  // namespace gputwin
