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

std::int64_t Transformer::parameters_of_layer(std::int64_t layer) const {
  const std::int64_t norm_size = norm == Norm::LayerNorm ? 2 : 1;
  const std::int64_t norms = (2 * hidden + (has_mla() ? mla.q_rank + mla.kv_rank : 0)) * norm_size;
  const std::int64_t width = ffn_of(layer), gates = is_gated(activation) ? 2 : 1;
  const std::int64_t mlp = hidden * width * (gates + 1);
  const std::int64_t experts =
      has_experts(layer) ? moe.experts * (hidden + expert_parameters()) : 0;
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
    if (has_experts(l)) idle += (moe.experts - moe.top_k) * expert_parameters();
  }
  return parameters() - idle;
}

}  // namespace gputwin
