#include "sim/core/workload.h"

namespace gputwin {

std::int64_t Transformer::parameters_per_layer() const {
  const std::int64_t norms = 2 * hidden * (norm == Norm::LayerNorm ? 2 : 1);
  const std::int64_t weights =
      hidden * qkv_width() + query_width() * hidden + hidden * fc1_width() + ffn * hidden;
  const std::int64_t biases = bias ? qkv_width() + hidden + fc1_width() + hidden : 0;
  return norms + weights + biases;
}

std::int64_t Transformer::parameters() const {
  const std::int64_t tables = vocab * hidden * (tied_embeddings ? 1 : 2) +
                              (positions == Positions::Learned ? max_positions * hidden : 0);
  const std::int64_t final_norm = hidden * (norm == Norm::LayerNorm ? 2 : 1);
  return layers * parameters_per_layer() + tables + final_norm;
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
