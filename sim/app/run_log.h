// How long iterations took, from the lines that training programs print.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gputwin {

/// One line: the mean of the iterations since the line before.
struct LoggedIterations {
  std::int64_t iterations = 1;
  double seconds = 0;  // of one
  bool operator==(const LoggedIterations&) const = default;
};

/// Lines of three programs are known, others are passed over:
///
///   Megatron-LM   iteration 100/ 500000 | … elapsed time per iteration (ms): 1453.2 | …
///                 (training_log in megatron/training/training.py)
///   torchtitan    step: 10  loss: 7.1  … tps: 6,652  tflops: 385.1  mfu: 38.94%
///                 (MetricsProcessor.log in torchtitan/components/metrics.py): tokens per second
///                 and device, rounded; an iteration takes `tokens_of_rank` over them. Those of
///                 validation ("validate step:") are no iterations.
///   DeepSpeed     steps: 10 loss: 5.5508 iter time (s): 0.936 samples/sec: 136.706
///                 (train_batch in deepspeed/runtime/pipe/engine.py)
///
/// Colours are ignored, and so is a line that is cut off and one that tells the same step as the
/// last: several ranks may write it. `tokens_of_rank`: tokens of an iteration over the job's ranks;
/// 0: unknown, torchtitan's lines are then passed over.
std::vector<LoggedIterations> iterations_of_log(std::string_view text, double tokens_of_rank);

}  // namespace gputwin
