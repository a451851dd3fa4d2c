// How wrong predictions of published runs are, by kind, group, device and memory figure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "validation/runs/predict.h"

namespace gputwin {

/// Errors are predicted / measured - 1.
struct ErrorSummary {
  std::int32_t n = 0;
  double mean = 0, median = 0, p95 = 0;  // of the absolute error
  double bias = 0;                       // median of the signed error
  std::optional<double> tau;             // Kendall's tau-b of predicted against measured, n >= 3
  double inside = 0;                     // share of measured values inside the 80 % interval
};

/// One line of a table: rows of `kind` that share a group and a device; "" stands for all.
struct ScoreLine {
  std::string kind, group, device;
  std::int32_t scorable = 0;   // scorable rows with a measured figure
  std::int32_t predicted = 0;  // of these, with a prediction
  ErrorSummary errors;
};

struct MemoryLine {
  std::string memory_kind, group;
  ErrorSummary errors;
};

struct Scores {
  std::vector<ScoreLine> kinds;    // by kind; the last line is all kinds together
  std::vector<ScoreLine> groups;   // by kind, group and device
  std::vector<MemoryLine> memory;  // by memory kind (group ""), and by memory kind and group
};

/// Scores the scorable rows. Rows of group vtrain-single are a kind of their own: their times are
/// composed, not measured.
Scores score(const std::vector<PublishedRun>& runs, const std::vector<Prediction>& predictions);

/// Kendall's tau-b; none for fewer than three pairs or where one side is constant. O(n^2).
std::optional<double> kendall_tau(const std::vector<std::pair<double, double>>& pairs);

/// Value at quantile q in [0, 1] of `values`, interpolated between neighbours.
double quantile(std::vector<double> values, double q);

/// Whether a row counts in tables of times: scorable, with the measured time of an iteration.
bool is_scored(const PublishedRun& run);

/// The kind a row is scored under.
std::string scored_kind(const PublishedRun& run);

}  // namespace gputwin
