#include "sim/app/networks/network_builder.h"

#include "sim/core/check.h"

namespace gputwin {
namespace {

std::int64_t windows(std::int64_t size, std::int64_t window, std::int64_t stride,
                     std::int64_t pad) {
  return (size + 2 * pad - window) / stride + 1;
}

Extent after(const Extent& in, const LayerWindow& w, std::int64_t channels) {
  return {channels, windows(in.height, w.height, w.stride_height, w.pad_height),
          windows(in.width, w.width, w.stride_width, w.pad_width)};
}

LayerWindow square(std::int64_t size, std::int64_t stride, std::int64_t pad) {
  return {.height = size,
          .width = size,
          .stride_height = stride,
          .stride_width = stride,
          .pad_height = pad,
          .pad_width = pad};
}

}  // namespace

NetworkBuilder::NetworkBuilder(std::string name, Extent input, bool tokens) {
  graph_.name = std::move(name);
  graph_.input = input;
  graph_.tokens = tokens;
}

void NetworkBuilder::unit(const std::string& name) {
  unit_name_ = name;
  in_unit_ = 0;
  ++unit_;
}

const Extent& NetworkBuilder::extent(LayerRef layer) const {
  return layer == kSamples ? graph_.input : graph_.layers[static_cast<std::size_t>(layer)].output;
}

LayerRef NetworkBuilder::push(const char* what, LayerKind kind, std::vector<LayerRef> from,
                              Extent output, GraphLayer layer) {
  GPUTWIN_CHECK(unit_ >= 0, "layers belong to a unit");
  layer.name = unit_name_ + "." + what + std::to_string(in_unit_++);
  layer.kind = kind;
  layer.output = output;
  layer.unit = unit_;
  if (from != std::vector<LayerRef>{kSamples}) layer.inputs = std::move(from);
  graph_.layers.push_back(std::move(layer));
  return static_cast<LayerRef>(graph_.layers.size()) - 1;
}

LayerRef NetworkBuilder::convolution(LayerRef from, std::int64_t channels,
                                     const LayerWindow& window, bool bias) {
  GraphLayer layer;
  layer.window = window;
  layer.bias = bias;
  return push("conv", LayerKind::Convolution, {from}, after(extent(from), window, channels), layer);
}

LayerRef NetworkBuilder::convolution(LayerRef from, std::int64_t channels, std::int64_t size,
                                     std::int64_t stride, std::int64_t pad, bool bias) {
  return convolution(from, channels, square(size, stride, pad), bias);
}

LayerRef NetworkBuilder::batch_norm(LayerRef from) {
  return push("bn", LayerKind::BatchNorm, {from}, extent(from));
}
LayerRef NetworkBuilder::layer_norm(LayerRef from) {
  return push("ln", LayerKind::LayerNorm, {from}, extent(from));
}
LayerRef NetworkBuilder::relu(LayerRef from) {
  return push("relu", LayerKind::Relu, {from}, extent(from));
}
LayerRef NetworkBuilder::gelu(LayerRef from) {
  return push("gelu", LayerKind::Gelu, {from}, extent(from));
}

LayerRef NetworkBuilder::conv_norm(LayerRef from, std::int64_t channels, const LayerWindow& window,
                                   bool activate) {
  const LayerRef norm = batch_norm(convolution(from, channels, window));
  return activate ? relu(norm) : norm;
}

LayerRef NetworkBuilder::max_pool(LayerRef from, std::int64_t size, std::int64_t stride,
                                  std::int64_t pad) {
  GraphLayer layer;
  layer.window = square(size, stride, pad);
  const Extent& in = extent(from);
  return push("max_pool", LayerKind::MaxPool, {from}, after(in, layer.window, in.channels), layer);
}

LayerRef NetworkBuilder::average_pool(LayerRef from, std::int64_t size, std::int64_t stride,
                                      std::int64_t pad) {
  GraphLayer layer;
  layer.window = square(size, stride, pad);
  const Extent& in = extent(from);
  return push("avg_pool", LayerKind::AveragePool, {from}, after(in, layer.window, in.channels),
              layer);
}

LayerRef NetworkBuilder::pool_all(LayerRef from) {
  return push("avg_pool", LayerKind::AveragePool, {from}, {extent(from).channels, 1, 1});
}

LayerRef NetworkBuilder::gather(LayerRef from, std::int64_t positions) {
  return push("gather", LayerKind::AveragePool, {from}, {extent(from).channels, positions, 1});
}

LayerRef NetworkBuilder::upsample(LayerRef from, std::int64_t factor) {
  const Extent& in = extent(from);
  return push("upsample", LayerKind::Upsample, {from},
              {in.channels, in.height * factor, in.width * factor});
}

LayerRef NetworkBuilder::add(LayerRef a, LayerRef b) {
  return push("add", LayerKind::Add, {a, b}, extent(a));
}

LayerRef NetworkBuilder::concat(const std::vector<LayerRef>& from) {
  Extent out = extent(from.front());
  out.channels = 0;
  for (const LayerRef f : from) out.channels += extent(f).channels;
  return push("concat", LayerKind::Concat, from, out);
}

LayerRef NetworkBuilder::dropout(LayerRef from, double probability) {
  if (probability <= 0) return from;
  GraphLayer layer;
  layer.dropout = probability;
  return push("dropout", LayerKind::Dropout, {from}, extent(from), layer);
}

LayerRef NetworkBuilder::dense(LayerRef from, std::int64_t width) {
  GraphLayer layer;
  layer.bias = true;
  return push("fc", LayerKind::Linear, {from}, {width, 1, 1}, layer);
}

LayerRef NetworkBuilder::linear(LayerRef from, std::int64_t width, bool bias) {
  GraphLayer layer;
  layer.bias = bias;
  Extent out = extent(from);
  out.channels = width;
  return push("linear", LayerKind::Linear, {from}, out, layer);
}

LayerRef NetworkBuilder::recurrent(LayerRef from, std::int64_t width, std::int64_t gates) {
  GraphLayer layer;
  layer.gates = gates;
  Extent out = extent(from);
  out.channels = width;
  return push("lstm", LayerKind::Recurrent, {from}, out, layer);
}

LayerRef NetworkBuilder::embedding(LayerRef from, std::int64_t vocab, std::int64_t width) {
  GraphLayer layer;
  layer.vocab = vocab;
  return push("embedding", LayerKind::Embedding, {from}, {width, extent(from).height, 1}, layer);
}

LayerRef NetworkBuilder::attention(LayerRef qkv, std::int64_t heads, bool causal, double dropout) {
  GraphLayer layer;
  layer.heads = heads;
  layer.causal = causal;
  layer.dropout = dropout;
  Extent out = extent(qkv);
  out.channels /= 3;
  return push("attention", LayerKind::Attention, {qkv}, out, layer);
}

LayerRef NetworkBuilder::loss(LayerRef from) {
  return push("loss", LayerKind::Loss, {from}, extent(from));
}

LayerGraph NetworkBuilder::take() { return std::move(graph_); }

}  // namespace gputwin
