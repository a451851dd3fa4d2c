#include "strategies/lowering/graph_weights.h"

namespace gputwin {
namespace {

BufferId lasting(PlanBuilder& builder, const std::string& name, std::int64_t elements, DType dtype,
                 MemoryClass memory) {
  return builder.buffer({.name = name,
                         .bytes = Bytes(stored_bytes(dtype, elements)),
                         .memory = memory,
                         .dtype = dtype,
                         .persistent = true});
}

View shaped(BufferId buffer, std::int64_t offset, std::int64_t rows, std::int64_t cols,
            DType dtype) {
  return {
      .buffer = buffer, .offset = offset, .rows = rows, .cols = cols, .ld = cols, .dtype = dtype};
}

}  // namespace

DType graph_activation(const Job& job) {
  const DType compute = job.precision.compute;
  if (bits(compute) < 16) return DType::Bf16;
  return compute == DType::Tf32 ? DType::F32 : compute;
}

View flat_view(BufferId buffer, std::int64_t offset, std::int64_t elements, DType dtype) {
  return shaped(buffer, offset, 1, elements, dtype);
}

std::vector<GraphWeights::Part> GraphWeights::parts_of(const LayerGraph& graph,
                                                       const GraphLayer& layer) {
  const std::int64_t out = layer.output.channels, all = parameters_of(graph, layer);
  if (all == 0) return {};
  const bool norm = layer.kind == LayerKind::BatchNorm || layer.kind == LayerKind::LayerNorm;
  if (norm) {
    return {{layer.name + ".weight", out, 1, true, false},
            {layer.name + ".bias", out, 1, false, true}};
  }
  if (layer.kind == LayerKind::Embedding) return {{layer.name + ".weight", layer.vocab, out}};
  if (layer.kind == LayerKind::Stated) return {{layer.name + ".weight", all, 1}};
  const std::int64_t bias = layer.bias ? out : 0;
  const std::int64_t rows = layer.kind == LayerKind::Recurrent ? layer.gates * out : out;
  std::vector<Part> parts{{layer.name + ".weight", rows, (all - bias) / rows}};
  if (bias > 0) parts.push_back({layer.name + ".bias", out, 1, false, true});
  return parts;
}

GraphWeights::GraphWeights(PlanBuilder& builder, const LayerGraph& graph, const Job& job,
                           std::int64_t bucket_elements, std::int64_t padded, std::int32_t first,
                           std::int32_t last, const std::string& prefix)
    : first_(first), padded_(padded), weights_(static_cast<std::size_t>(last - first)) {
  std::vector<std::int32_t> open;
  std::int64_t elements = 0;
  for (std::int32_t l = last; l-- > first;) {
    const std::int64_t count = parameters_of(graph, graph.layers[static_cast<std::size_t>(l)]);
    if (count == 0) continue;
    open.push_back(l);
    elements += count;
    if (elements < bucket_elements) continue;
    close(builder, graph, job, open, prefix);
    elements = 0;
  }
  if (!open.empty()) close(builder, graph, job, open, prefix);
}

void GraphWeights::close(PlanBuilder& builder, const LayerGraph& graph, const Job& job,
                         std::vector<std::int32_t>& open, const std::string& prefix) {
  const Precision& p = job.precision;
  const DType activation = graph_activation(job);
  GraphBucket bucket;
  for (const std::int32_t l : open) {
    bucket.elements += parameters_of(graph, graph.layers[static_cast<std::size_t>(l)]);
  }
  bucket.elements = (bucket.elements + padded_ - 1) / padded_ * padded_;
  bucket.layer = open.back();
  const std::string name = prefix + "bucket" + std::to_string(buckets_.size()) + ".";
  const auto add = [&](const char* what, DType dtype, MemoryClass memory) {
    return lasting(builder, name + what, bucket.elements, dtype, memory);
  };
  bucket.weight = add("weight", p.params, MemoryClass::Weights);
  bucket.gradient = add("gradient", p.grads, MemoryClass::Gradients);
  if (p.params != activation) bucket.computed = add("computed", activation, MemoryClass::Weights);
  const bool master = p.master && bits(p.params) < 32;
  const DType state = master || p.master ? DType::F32 : p.params;
  if (master) bucket.master = add("master", DType::F32, MemoryClass::Optimizer);
  bucket.m = add("m", state, MemoryClass::Optimizer);
  if (job.optimizer != Optimizer::Sgd) bucket.v = add("v", state, MemoryClass::Optimizer);
  const BufferId used = bucket.computed.valid() ? bucket.computed : bucket.weight;
  const DType used_dtype = bucket.computed.valid() ? activation : p.params;
  std::int64_t offset = 0;
  for (const std::int32_t l : open) {
    GraphWeight& weight = weights_[static_cast<std::size_t>(l - first_)];
    bool is_first = true;
    for (const Part& part : parts_of(graph, graph.layers[static_cast<std::size_t>(l)])) {
      const View value = shaped(used, offset, part.rows, part.cols, used_dtype);
      const View gradient = shaped(bucket.gradient, offset, part.rows, part.cols, p.grads);
      (is_first ? weight.value : weight.second) = value;
      (is_first ? weight.gradient : weight.second_gradient) = gradient;
      parameters_.push_back(
          {.name = part.name,
           .rows = part.rows,
           .cols = part.cols,
           .weight = shaped(bucket.weight, offset, part.rows, part.cols, p.params),
           .gradient = gradient,
           .ones = part.ones,
           .zeros = part.zeros});
      offset += part.rows * part.cols;
      is_first = false;
    }
  }
  buckets_.push_back(bucket);
  open.clear();
}

}  // namespace gputwin
