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

}  // namespace gputwin
