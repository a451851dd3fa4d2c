#include "hwmodels/kernels/whole_model.h"

#include <array>

#include "hwmodels/kernels/gemm.h"
#include "hwmodels/kernels/pointwise.h"

namespace gputwin {

namespace {

// Kernel errors are partly independent: a pass is better known than one kernel.
constexpr double kLow = 0.9, kHigh = 1.12;
constexpr int kGeluTanhKernels = 8;  // pow, mul, add, mul, tanh, add, mul, mul

// Adds up the kernels of a pass.
struct Pass {
  const Device& device;
  bool training;
  Cost sum{};

  void add(const Cost& cost, double times) {
    sum.time += cost.time * times;
    for (std::size_t t = 0; t < kTerms; ++t) sum.terms[t] += cost.terms[t] * times;
  }

  void product(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k) {
    const std::int64_t elements = batch * (m * k + k * n + m * n);
    GemmShape shape{.m = m, .n = n, .k = k, .batch = batch, .dtype = DType::F32, .trans_b = true};
    shape.traffic = Bytes(4 * elements);
    add(gemm_cost(device, shape), training ? 3 : 1);
  }

  void pointwise(std::string_view name, std::int64_t rows, std::int64_t columns, double arrays) {
    PointwiseShape shape{.rows = rows, .columns = columns, .bits = 32};
    shape.operation = pointwise_operation(name);
    shape.library = pointwise_library("torch-2.1");
    shape.bytes = arrays * 4 * static_cast<double>(rows) * static_cast<double>(columns);
    add(pointwise_cost(device, shape), 1);
    if (!training) return;
    shape.bytes *= (arrays + 1) / arrays;
    add(pointwise_cost(device, shape), 1);
  }
};

}  // namespace

WholeModelShape whole_model(std::string_view name) {
  struct Known {
    std::string_view name;
    std::int64_t layers, hidden, heads, vocabulary;
    int activation_kernels;
    bool causal;
  };
  // BERT: Devlin et al. 2019; GPT-2: Radford et al. 2019; GPT-3: Brown et al. 2020, Table 2.1;
  // OPT: Zhang et al. 2022, Table 1. Feed-forward layers are four times as wide.
  constexpr std::array kKnown{Known{"bert_large", 24, 1024, 16, 0, 1, false},
                              Known{"gpt2_large", 36, 1280, 20, 50257, kGeluTanhKernels, true},
                              Known{"gpt3_xl", 24, 2048, 24, 50257, kGeluTanhKernels, true},
                              Known{"gpt3_27", 32, 2560, 32, 50257, kGeluTanhKernels, true},
                              Known{"opt_13", 24, 2048, 32, 50272, 1, true}};
  for (const Known& k : kKnown) {
    if (k.name != name) continue;
    WholeModelShape shape;
    shape.layers = k.layers, shape.hidden = k.hidden, shape.heads = k.heads;
    shape.feed_forward = 4 * k.hidden;
    shape.vocabulary = k.vocabulary;
    shape.activation_kernels = k.activation_kernels;
    shape.causal = k.causal;
    return shape;
  }
  WholeModelShape unknown;
  unknown.layers = 0;
  return unknown;
}

Cost whole_model_cost(const Device& device, const WholeModelShape& s) {
  if (!device.library[static_cast<std::size_t>(LibraryKernel::Elementwise)].known()) return {};
  const std::int64_t tokens = s.batch * s.sequence, h = s.hidden;
  const std::int64_t head_batch = s.batch * s.heads, head = h / s.heads;
  Pass layer{device, s.training};
  layer.pointwise("ln", tokens, h, 2);
  layer.product(1, tokens, 3 * h, h);
  layer.product(head_batch, s.sequence, s.sequence, head);
  if (!s.fused) layer.pointwise("divu", head_batch * s.sequence, s.sequence, 2);
  layer.pointwise("add", head_batch * s.sequence, s.sequence, s.causal ? 3 : 2);
  layer.pointwise("softmax", head_batch * s.sequence, s.sequence, 2);
  layer.product(head_batch, s.sequence, head, s.sequence);
  layer.pointwise("addu", tokens, h, 2);
  layer.product(1, tokens, h, h);
  layer.pointwise("add", tokens, h, 3);
  layer.pointwise("ln", tokens, h, 2);
  layer.product(1, tokens, s.feed_forward, h);
  const int kernels = s.fused ? 1 : s.activation_kernels;
  for (int i = 0; i < kernels; ++i) {
    layer.pointwise(kernels == 1 ? "gelu" : "mulu", tokens, s.feed_forward, 2);
  }
  layer.product(1, tokens, h, s.feed_forward);
  layer.pointwise("add", tokens, h, 3);
  Pass whole{device, s.training};
  whole.add(layer.sum, static_cast<double>(s.layers));
  whole.pointwise("ln", tokens, h, 2);
  if (s.vocabulary > 0) whole.product(1, tokens, s.vocabulary, h);
  if (s.vocabulary > 0 && s.training) whole.pointwise("softmax", tokens, s.vocabulary, 2);
  Cost cost = whole.sum;
  cost.low = kLow, cost.high = kHigh;
  cost.model = "sum of the kernels of all layers";
  cost.op_class = "whole model";
  return cost;
}

}  // namespace gputwin
