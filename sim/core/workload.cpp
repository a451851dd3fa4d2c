#include "sim/core/workload.h"

namespace gputwin {

std::int64_t Transformer::attention_weights() const {
  if (!has_mla()) return hidden * qkv_width() + query_width() * hidden;
  const std::int64_t queries =
      mla.q_rank > 0 ? (hidden + query_width()) * mla.q_rank : hidden * query_width();
  const std::int64_t keys =
      hidden * (mla.kv_rank + mla.rope) + mla.kv_rank * heads * (mla.nope + mla.value);
  return queries + keys + context_width() * hidden;
}

std::int64_t Transformer::expert_parameters() const {
  return hidden * moe.ffn * (is_gated(activation) ? 3 : 2);
}

std::int64_t Transformer::expert_biases() const {
  return moe.bias ? moe.ffn * (is_gated(activation) ? 2 : 1) + hidden : 0;
}

std::int64_t Transformer::parameters_of_layer(std::int64_t layer) const {
  const std::int64_t norm_size = norm == Norm::LayerNorm ? 2 : 1;
  const std::int64_t norms = (2 * hidden + (has_mla() ? mla.q_rank + mla.kv_rank : 0)) * norm_size;
  const std::int64_t width = ffn_of(layer), gates = is_gated(activation) ? 2 : 1;
  const std::int64_t mlp = hidden * width * (gates + 1);
  const std::int64_t experts =
      has_experts(layer) ? moe.experts * (hidden + expert_parameters() + expert_biases()) : 0;
  std::int64_t biases = 0;
  if (bias && !has_mla()) biases += qkv_width();
  if (bias) biases += hidden + (width > 0 ? gates * width + hidden : 0);
  return norms + attention_weights() + mlp + experts + biases;
}

std::int64_t Transformer::parameters() const {
  const std::int64_t tables = vocab * hidden * (tied_embeddings ? 1 : 2) +
                              (positions == Positions::Learned ? max_positions * hidden : 0);
  const std::int64_t final_norm = hidden * (norm == Norm::LayerNorm ? 2 : 1);
  std::int64_t sum = tables + final_norm;
  for (std::int64_t l = 0; l < layers; ++l) sum += parameters_of_layer(l);
  return sum;
}

std::int64_t Transformer::active_parameters() const {
  std::int64_t idle = 0;
  for (std::int64_t l = 0; l < layers; ++l) {
    if (!has_experts(l)) continue;
    idle += (moe.experts - moe.top_k) * (expert_parameters() + expert_biases());
  }
  return parameters() - idle;
}

const Extent& input_of(const LayerGraph& graph, const GraphLayer& layer) {
  if (layer.inputs.empty()) return graph.input;
  return graph.layers[static_cast<std::size_t>(layer.inputs.front())].output;
}

std::int64_t linear_width(const LayerGraph& graph, const GraphLayer& layer) {
  const Extent& in = input_of(graph, layer);
  return layer.output.positions() == 1 ? in.elements() : in.channels;
}

std::int64_t parameters_of(const LayerGraph& graph, const GraphLayer& layer) {
  const std::int64_t out = layer.output.channels;
  switch (layer.kind) {
    case LayerKind::Convolution: {
      const std::int64_t in = input_of(graph, layer).channels / layer.window.groups;
      return out * in * layer.window.height * layer.window.width + (layer.bias ? out : 0);
    }
    case LayerKind::Linear: return out * linear_width(graph, layer) + (layer.bias ? out : 0);
    case LayerKind::BatchNorm:
    case LayerKind::LayerNorm: return 2 * out;
    case LayerKind::Recurrent:
      // Input and hidden products, and the two biases cuDNN keeps.
      return layer.gates * out * (input_of(graph, layer).channels + out + 2);
    case LayerKind::Embedding: return layer.vocab * out;
    case LayerKind::Stated: return layer.stated_weights;
    case LayerKind::Relu:
    case LayerKind::Gelu:
    case LayerKind::MaxPool:
    case LayerKind::AveragePool:
    case LayerKind::Add:
    case LayerKind::Concat:
    case LayerKind::Upsample:
    case LayerKind::Dropout:
    case LayerKind::Attention:
    case LayerKind::Loss: return 0;
  }
  return 0;
}

Flops forward_flops_of(const LayerGraph& graph, const GraphLayer& layer) {
  const auto real = [](std::int64_t v) { return static_cast<double>(v); };
  const Extent& in = input_of(graph, layer);
  const Extent& out = layer.output;
  switch (layer.kind) {
    case LayerKind::Convolution:
      return Flops(2.0 * real(out.elements()) * real(in.channels / layer.window.groups) *
                   real(layer.window.height * layer.window.width));
    case LayerKind::Linear:
      return Flops(2.0 * real(out.elements()) * real(linear_width(graph, layer)));
    case LayerKind::Recurrent:
      return Flops(2.0 * real(out.elements()) * real(layer.gates) *
                   real(in.channels + out.channels));
    case LayerKind::Attention:
      return Flops(4.0 * real(out.positions()) * real(out.positions()) * real(out.channels));
    case LayerKind::BatchNorm:
    case LayerKind::LayerNorm:
    case LayerKind::Relu:
    case LayerKind::Gelu:
    case LayerKind::MaxPool:
    case LayerKind::AveragePool:
    case LayerKind::Add:
    case LayerKind::Concat:
    case LayerKind::Upsample:
    case LayerKind::Dropout:
    case LayerKind::Embedding:
    case LayerKind::Loss:
    case LayerKind::Stated: return Flops(0);
  }
  return Flops(0);
}

std::int64_t LayerGraph::parameters() const {
  std::int64_t sum = 0;
  for (const GraphLayer& layer : layers) sum += parameters_of(*this, layer);
  return sum;
}

Flops LayerGraph::forward_flops() const {
  Flops sum{};
  for (const GraphLayer& layer : layers) sum = sum + forward_flops_of(*this, layer);
  return sum;
}

}  // namespace gputwin
