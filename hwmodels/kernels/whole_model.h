// A transformer's forward or training pass on one device, kernel by kernel, as an eager framework
// runs it: the sum of its matrix products, attention products and element-wise kernels.
//
// Layers as in Hugging Face's models in fp32: unfused attention (scores, scale, mask, softmax,
// context, merge of heads), GELU by its tanh formula in eight kernels (GPT) or one (BERT), ReLU
// (OPT). The backward pass runs two products for each one, and each element-wise kernel again with
// one more array. Launches are hidden behind kernels of this size; optimizer steps are not counted.
#pragma once

#include <cstdint>
#include <string_view>

#include "hwmodels/device.h"
#include "sim/core/cost.h"

namespace gputwin {

struct WholeModelShape {
  std::int64_t layers = 1, hidden = 1, heads = 1, feed_forward = 1;
  std::int64_t vocabulary = 0;  // of the output layer; 0: none
  int activation_kernels = 1;   // element-wise kernels of one activation
  bool causal = true;           // a mask is laid over the scores
  std::int64_t batch = 1, sequence = 1;
  bool training = false;
  bool fused = false;  // element-wise kernels that follow each other are one
};

/// Architecture of a published model by the word of tables ("gpt2_large"); layers 0 if unknown.
WholeModelShape whole_model(std::string_view name);

/// fp32, without TF32. A device without constants for element-wise kernels gives time 0.
Cost whole_model_cost(const Device& device, const WholeModelShape& shape);

}  // namespace gputwin
