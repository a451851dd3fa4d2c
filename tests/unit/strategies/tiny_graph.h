// Layer graphs of a few numbers, and jobs for them.
#pragma once

#include <string>
#include <vector>

#include "sim/core/cluster.h"
#include "sim/core/job.h"
#include "sim/core/layout.h"
#include "sim/core/workload.h"

namespace gputwin {

inline GraphLayer layer(LayerKind kind, std::vector<std::int32_t> inputs, Extent output,
                        std::int32_t unit) {
  GraphLayer l;
  l.name = "l" + std::to_string(unit) + "_" + std::to_string(static_cast<int>(kind)) + "_" +
           std::to_string(inputs.empty() ? 0 : inputs[0] + 1);
  l.kind = kind;
  l.inputs = std::move(inputs);
  l.output = output;
  l.unit = unit;
  return l;
}

inline GraphLayer convolution(std::vector<std::int32_t> inputs, Extent output, LayerWindow window,
                              std::int32_t unit) {
  GraphLayer l = layer(LayerKind::Convolution, std::move(inputs), output, unit);
  l.window = window;
  l.bias = true;
  return l;
}

// Images of 2 x 4 x 4: convolutions, an activation in place, a residual sum, tensors side by side,
// and a skip from the first unit to the fourth, so that cuts are crossed by two tensors.
inline LayerGraph tiny_cnn() {
  const LayerWindow three{.height = 3, .width = 3, .pad_height = 1, .pad_width = 1};
  const LayerWindow halving{
      .height = 3, .width = 1, .stride_height = 2, .stride_width = 2, .pad_height = 1};
  const Extent full{4, 4, 4}, half{2, 2, 2};
  LayerGraph g;
  g.name = "tiny";
  g.input = {2, 4, 4};
  g.layers.push_back(convolution({}, full, three, 0));       // 0
  g.layers.push_back(layer(LayerKind::Relu, {0}, full, 0));  // 1
  GraphLayer grouped = convolution({1}, full, three, 1);
  grouped.window.groups = 2;
  g.layers.push_back(grouped);                                         // 2
  g.layers.push_back(layer(LayerKind::Add, {2, 1}, full, 1));          // 3
  g.layers.push_back(convolution({3}, half, halving, 2));              // 4
  g.layers.push_back(layer(LayerKind::Relu, {4}, half, 2));            // 5
  g.layers.push_back(convolution({1}, half, halving, 3));              // 6
  g.layers.push_back(layer(LayerKind::Concat, {5, 6}, {4, 2, 2}, 3));  // 7
  GraphLayer dense = layer(LayerKind::Linear, {7}, {5, 1, 1}, 3);
  dense.bias = true;
  g.layers.push_back(dense);                                      // 8
  g.layers.push_back(layer(LayerKind::Loss, {8}, {5, 1, 1}, 3));  // 9
  return g;
}

inline Cluster gpus(std::int32_t count) {
  Cluster c;
  c.groups.push_back({.type = {.device = "any", .gpus = count}, .count = 1});
  return c;
}

inline Job job_of(std::int64_t batch) {
  Job job;
  job.sequence = 3;
  job.global_batch = batch;
  job.precision = {.compute = DType::F32, .params = DType::F32, .grads = DType::F32};
  job.optimizer = Optimizer::Sgd;
  job.attention = AttentionKernel::Unfused;
  return job;
}

inline Layout alone(std::int64_t micro_batch) {
  Layout l;
  l.schedule = Schedule::None;
  l.micro_batch = micro_batch;
  return l;
}

}  // namespace gputwin
