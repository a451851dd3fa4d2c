// Published curves of throughput over model size: points whose batch the source may not print.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "validation/runs/predict.h"

namespace gputwin {

/// Throughput counts 2 FLOPs per parameter and token forward, 4 backward and 2 recomputed: 8
/// x parameters x tokens / time with full recomputation, else 6 x.
double curve_tflops(const nlohmann::ordered_json& config, double time_s, std::int64_t micro_batch);

/// What a curve says of one model size, and what is predicted for it.
struct CurvePoint {
  const PublishedRun* run = nullptr;
  double parameters = 0;
  std::optional<double> published;  // TFLOP/s per GPU; none: the source says that it does not train
  std::optional<double> predicted;  // of the micro-batch that is fastest; none: nothing fits
  std::int64_t micro_batch = 0;
  std::string reason;  // why there is no prediction

  double error() const { return *predicted / *published - 1; }
};

/// Points of one system on one kind of GPU and one count of them, by model size.
struct Curve {
  std::string system, device;
  std::int64_t devices = 0;
  std::vector<CurvePoint> points;

  /// Largest model, in parameters; 0: none.
  double largest_published() const;
  double largest_predicted() const;
};

/// How often two systems stand in the same order as published, over points of equal model, device
/// and count; and how often one system's two sizes do.
struct OrderCount {
  std::int32_t pairs = 0, right = 0;
  std::vector<std::string> wrong;  // "a over b": published ratio, predicted ratio
};

struct CurveScores {
  std::vector<Curve> curves;
  OrderCount systems;
};

/// Micro-batches that are tried where a source prints none: what the sweeps of PatrickStar's
/// scripts range over (examples/benchmark, 4 to 32), with one step to either side.
std::vector<std::int64_t> tried_micro_batches();

/// Predicts every run whose throughput or time is known, memory enforced. Where the batch is not
/// known, one step of one micro-batch each of `tried_micro_batches`, and the fastest counts.
CurveScores score_curves(const std::vector<PublishedRun>& runs, WorkerPool& pool,
                         const PredictOptions& options);

std::string curves_report(const CurveScores& scores, bool list);
std::string curves_json(const CurveScores& scores);

}  // namespace gputwin
