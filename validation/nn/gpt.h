// A small GPT as one rank of a tensor-parallel group holds it (Shoeybi et al. 2019, section 3):
// columns of qkv and fc1, rows of proj and fc2; embeddings, norms and head on every rank.
#pragma once

#include <functional>

#include "validation/nn/layers.h"

namespace gputwin::nn {

struct GptShape {
  std::int64_t vocabulary = 64, hidden = 160, layers = 4, heads = 4, length = 64;
};

/// Parameters of the whole model, however many ranks hold it.
std::int64_t parameter_count(const GptShape& shape);

enum class Phase : std::uint8_t { Forward, Backward };

/// Sums x [rows, width] over the ranks, in place, with the same result on each. `place` counts the
/// sums of one phase of one step from 0.
using Exchange = std::function<void(Phase phase, std::int64_t place, std::int64_t rows,
                                    std::int64_t width, float* x)>;

/// One rank's part. Ranks of the same seed hold parts of the same whole, whatever their number.
class Gpt {
 public:
  /// Fails  GPUTWIN_CHECK, unless ranks divides heads and heads divides hidden.
  Gpt(const GptShape& shape, std::int32_t rank, std::int32_t ranks, std::uint64_t seed);

  /// Mean loss over [sequences, length] tokens; adds to the gradients if `train`.
  double step(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
              const Exchange& sum, bool train);

  void adam(double rate, std::int64_t step);
  std::vector<Parameter*> parameters();

 private:
  struct Layer {
    Parameter gain1, shift1, qkv, proj, gain2, shift2, fc1, fc2;
    Normalised norm1, norm2;
    Floats normed1, normed2, qkv_out, weights, mixed, fc1_out, active;
  };

  void fill(std::uint64_t seed, std::int32_t rank);
  void forward_layer(std::size_t l, std::int64_t rows, const Exchange& sum);
  void backward_layer(std::size_t l, std::int64_t rows, const Exchange& sum, Floats& dx);
  void embed_backward(const std::vector<std::int32_t>& tokens, const Floats& dx);
  AttentionShape attention_shape(std::int64_t rows) const;

  GptShape shape_;
  std::int32_t ranks_;
  Parameter tokens_, positions_, gain_, shift_, head_;
  std::vector<Layer> layers_;
  Floats x_;  // the residual stream of the step in hand
};

}  // namespace gputwin::nn
