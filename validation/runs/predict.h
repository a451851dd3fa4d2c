// Predictions of published runs.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/app/worker_pool.h"
#include "validation/runs/published_run.h"

namespace gputwin {

enum class RowStatus : std::uint8_t { Ok, Unsupported, Infeasible, Error };
std::string_view to_string(RowStatus status);

struct Prediction {
  RowStatus status = RowStatus::Error;
  std::string reason;  // why there is no figure, else empty
  double time_s = 0, low_s = 0, high_s = 0;
  /// Of the fullest device, in the words of RunTarget::memory_kind.
  std::optional<double> memory_bytes;
};

struct PredictOptions {
  nlohmann::ordered_json what_if = nlohmann::ordered_json::object();  // merged into each scenario's
  bool exact = false;                                                 // simulate every micro-batch
  double time_limit_s = 60;                                           // of one run
  std::function<bool(double)> progress;                               // share done; false cancels
};

/// Hands one report of progress to several passes, one after another. `weights`: what all passes
/// together weigh.
class PassProgress {
 public:
  PassProgress(std::function<bool(double)> tell, double weights)
      : tell_(std::move(tell)), weights_(weights) {}
  /// The progress of the next pass, which weighs `weight`; the one before is taken as done.
  std::function<bool(double)> next(double weight);

 private:
  std::function<bool(double)> tell_;
  double weights_ = 1, done_ = 0, weight_ = 0;
};

/// A run and the what_if of its own, merged over that of the options.
struct PredictionRequest {
  const PublishedRun* run = nullptr;
  nlohmann::ordered_json what_if = nlohmann::ordered_json::object();
};

/// One prediction per request, in their order; as below.
std::vector<Prediction> predict(const std::vector<PredictionRequest>& requests, WorkerPool& pool,
                                const PredictOptions& options);

/// One prediction per run, in their order. Reads `config` and `target.memory_kind` (which figure to
/// report, not its value).
std::vector<Prediction> predict(const std::vector<PublishedRun>& runs, WorkerPool& pool,
                                const PredictOptions& options);

}  // namespace gputwin
