// Iteration times from the logs of training programs.
#pragma once

#include <string>
#include <vector>

namespace gputwin {

/// What one iteration works through: logs that tell rates need it.
struct IterationSize {
  double samples = 0;         // of the whole job
  double tokens_per_gpu = 0;  // of the whole job over all of its GPUs
};

/// Seconds of the iterations that a log tells, in order. Lines that tell none are passed over, and
/// so is a last line that is cut off. Colours of a terminal are ignored. Of a log that tells the
/// same iterations in several ways the first of these counts:
///
///   Megatron-LM          elapsed time per iteration (ms): 1453.2 |
///   DeepSpeed, pipeline  steps: 10 loss: 4.1200 iter time (s): 1.453 samples/sec: 176.2
///   torchtitan           step: 10  loss: 4.1200 …  tps: 7,912  …     tokens per second and GPU
///   DeepSpeed            …, CurrSamplesPerSec=176.2, …               samples per second
///
/// Source: Megatron-LM training.py, DeepSpeed pipe/engine.py and utils/timer.py, torchtitan
/// components/metrics.py. A line stands for the mean since the line before where the program prints
/// every n-th iteration.
std::vector<double> iterations_of_log(const std::string& text, const IterationSize& size);

}  // namespace gputwin
