// The pass of a large model over its prompts when it serves, on the GPUs of one node (vLLM).
//
//   C   FLOPs of the linear layers and of causal attention over tp GPUs, 16 bits
//   M   weights read once, and two all-reduces a layer over the link
//   t0  four times a layer (attention, feed-forward, an all-reduce behind each): the host
//       launches their kernels one by one
#pragma once

#include <cstdint>
#include <string_view>

#include "hwmodels/device.h"
#include "hwmodels/kernels/library.h"

namespace gputwin {

struct PromptPassShape {
  std::int64_t layers = 0;  // 0: the model is not known
  std::int64_t hidden = 1, kv_width = 1, feed_forward = 1, vocabulary = 1;
  bool gated = false;  // three matrices in the feed-forward layer instead of two
  std::int32_t tensor_parallel = 1;
  std::int64_t batch = 1, prompt = 1;  // requests, tokens of each
};

/// Sizes of a published model by the word of tables ("llama2-70b"); layers 0 if unknown.
PromptPassShape served_model(std::string_view name);

KernelEstimate estimate(const Device& device, const PromptPassShape& shape);
/// A device without constants for it gives a cost with time 0.
Cost prompt_pass_cost(const Device& device, const PromptPassShape& shape);

}  // namespace gputwin
