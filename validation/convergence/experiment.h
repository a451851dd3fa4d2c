// What compressing the tensor-parallel exchanges does to training: a small GPT trained for real.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/core/codec.h"
#include "validation/nn/gpt.h"

namespace gputwin::convergence {

struct NamedCodec {
  std::string name;
  Codec codec;
};

/// Uncompressed first, then every kind that codecs have.
std::vector<NamedCodec> compared_codecs();

struct Experiment {
  nn::GptShape shape;
  std::int32_t ranks = 2;  // tensor-parallel; a thread each
  std::int64_t steps = 400;
  std::int64_t plain_steps = 40;  // at first, not compressed
  std::int64_t sequences = 8;     // of shape.length characters, per step
  std::int64_t held_out = 16;     // batches of text never trained on
  double rate = 2e-3;             // Adam's, after 20 steps, falling as a cosine to a tenth
  std::size_t text_bytes = 1 << 20;
  std::int32_t seeds = 3;
  std::vector<NamedCodec> codecs = compared_codecs();
};

/// The experiment in about a minute: a narrower model, fewer steps, one seed.
Experiment short_experiment();

/// One training run.
struct Curve {
  std::string codec;
  std::int32_t seed = 0;
  std::vector<double> losses;  // of each step's batch, nats per character
  double held_out = 0;         // mean loss on text never seen, exchanges coded as in training
  double share = 0;            // payload bytes / bytes in 16 bits, after the plain steps
  double error = 0;            // mean |code - x|^2 / |x|^2 of the exchanges
};

/// Runs every codec with every seed. Model, text and batches of a seed are the same for all codecs.
/// Seeds outermost. `go_on` sees the curves that are complete before each run and after the last;
/// once it says no, they are all there is.
std::vector<Curve> run_experiment(const Experiment& e,
                                  const std::function<bool(const std::vector<Curve>&)>& go_on);

/// Mean over the last tenth of the steps; the figure that is compared at equal steps.
double final_loss(const Curve& curve);

}  // namespace gputwin::convergence
