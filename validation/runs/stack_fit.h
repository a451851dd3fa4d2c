// Factors of software stacks fitted on published runs, and how wrong predictions are for runs that
// the factors were not fitted on.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hwmodels/stack.h"
#include "validation/runs/predict.h"
#include "validation/runs/stack_solver.h"

namespace gputwin {

/// Fitted factors of a family of stacks on one architecture, or on all.
struct FittedStack {
  std::string family;
  std::optional<Architecture> architecture;  // none: all
  std::vector<std::string> groups;           // of the runs, sorted
  std::int32_t runs = 0;
  StackFactors factors = kNoFactors;  // to three decimals
  // Mean absolute errors: without factors, with these, and cross-fitted.
  double error_without = 0, error_fitted = 0, error_cross_fitted = 0;
};

/// Predictions that are like those of runs nobody has seen; one per run, in their order.
struct UnseenPredictions {
  std::vector<Prediction> no_factors;    // no stack has factors
  std::vector<Prediction> cross_fitted;  // factors without the run's fold; none: as no_factors
  std::vector<Prediction> other_stack;   // factors of the nearest other family
};

struct StackFit {
  std::vector<FittedStack> stacks;  // by family; all architectures first
  UnseenPredictions unseen;
  /// Share of the time within which 80 % of runs are predicted with the factors of the nearest
  /// other family, each stack weighing the same; and what it rests on.
  double unknown_deviation = 0;
  std::int32_t deviation_runs = 0, deviation_stacks = 0;
};

/// What passes of fit_stacks weigh, in passes over all runs.
inline constexpr double kFitPasses = 26;

/// Fits the factors of every family of stacks (files of `hardware`/stacks) with at least kLeastRuns
/// measured iteration times, in two rounds: shares are taken without factors, then with those of
/// the first round, which leaves CollectiveStart at 1; with a start in a third round, around the
/// factors of the second. A family seen on several architectures gets factors of its own on each
/// that has kLeastRuns, and those of all its runs elsewhere.
///
/// `options.what_if` is not used. Deterministic. If `options.progress` returns false the result is
/// of no use.
StackFit fit_stacks(const std::vector<PublishedRun>& runs, const std::filesystem::path& hardware,
                    WorkerPool& pool, const PredictOptions& options, PassProgress& passes);

/// Writes the factors of `fit` into the stack files of `directory` (DIR/NAME.json) and the
/// deviation of unknown stacks into default.json, if it rests on at least five stacks. Every other
/// key stays; families that were not fitted stay as they are. Throws InputError for files that
/// cannot be read or written.
void write_stack_factors(const StackFit& fit, const std::filesystem::path& directory);

}  // namespace gputwin
