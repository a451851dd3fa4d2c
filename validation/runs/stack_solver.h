// Least squares for the factors of one software stack, and their cross-fitted predictions.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "hwmodels/stack.h"

namespace gputwin {

/// Natural logarithms of StackFactors; 0 leaves a model as it is.
using LogFactors = std::array<double, kFactors>;

/// A run whose time is known and how its predicted time answers to factors near `at`. All but
/// CollectiveStart scale a share of the time; that one, from a few microseconds to many, adds.
struct LinearRun {
  std::string id, group;
  double measured_s = 0;
  double predicted_s = 0;  // with the factors `at`
  LogFactors at{};
  LogFactors share{};  // d log(predicted) / d log(factor): the part of the time a factor scales
  double start_s = 0;  // d predicted / d factor of CollectiveStart, whose share is 0

  /// (predicted_s + start_s (e^x[start] - e^at[start])) exp(sum over k of share[k] (x[k] - at[k])):
  /// right to first order.
  double predicted(const LogFactors& x) const;
  /// The first part of it: the time with CollectiveStart at e^`start`.
  double starting_at(double start) const;
};

/// Fewer runs give no factors.
inline constexpr std::size_t kLeastRuns = 8;

/// The factors x that minimise sum rho(log(predicted(x) / measured)) + |w x|^2 over `runs`.
///
/// rho   SoftLOne with scale 0.05: squares up to errors of about 5 %, linear beyond, so that single
///       odd runs pull little
/// w     0.05 / 0.3: factors are 1 to within 0.3 (in log) unless runs with errors of 0.05 say
///       otherwise; what has no share of the times stays 1
/// A factor on the host's launches is fitted only where its share is 2 % in the mean;
/// CollectiveStart only where it brings the mean cross-fitted error down by a twentieth, or where
/// the runs were taken around one, with w 0.05 / 2, by Brent's method between 1 and 100. Solved
/// with Ceres (dense QR, one thread); the order of `runs` does not change more than the last
/// digits.
LogFactors fit_factors(std::span<const LinearRun> runs);
/// The same with CollectiveStart left at 1.
LogFactors fit_without_start(std::span<const LinearRun> runs);

/// A fold for each run, so that cross-fitted factors of a run come from the runs of other folds:
/// its group, if there are several and each leaves at least kLeastRuns others; else alternating in
/// order of ids, which halves the runs.
std::vector<std::size_t> folds(std::span<const LinearRun> runs);

/// For each run its time with factors fitted on the runs of other folds.
std::vector<double> cross_fitted(std::span<const LinearRun> runs);

}  // namespace gputwin
