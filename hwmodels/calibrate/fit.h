// Least squares on the logarithm of predicted over measured, and what a fit gives.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hwmodels/calibrate/sample.h"
#include "hwmodels/device.h"

namespace gputwin {

/// A constant that a fit may move.
struct FreeConstant {
  double start = 0, low = 0, high = 0;
};

/// residual[i] = log(predicted / measured) of row i under `values`, in the order of the parameters.
using LogErrors = std::function<void(std::span<const double> values, std::span<double> residual)>;

/// The values that minimise the sum of rho(residual), within their bounds, rounded to 6 digits.
///
/// rho is SoftLOne at `scale`: squares up to errors of that size, linear beyond, so that odd rows
/// pull little. Solved with Ceres (Levenberg-Marquardt, dense QR, numeric differences, one thread):
/// equal input gives equal output.
std::vector<double> least_squares(std::span<const FreeConstant> parameters, std::size_t rows,
                                  const LogErrors& errors, double scale = 0.1,
                                  int iterations = 100);

/// `value` to 6 significant digits, as constants are stored.
double rounded(double value);

/// Absolute errors of predicted / measured - 1 over some rows.
struct FitErrors {
  std::size_t rows = 0;
  double mean = 0, p90 = 0;
};

FitErrors fit_errors(std::span<const double> log_errors);

/// What a fit found for one group of constants of a device.
struct FamilyFit {
  struct Number {
    std::string pointer;         // in the device file: "/gemm/start_up_us"
    std::vector<double> values;  // one: a plain constant; several: a list
    bool list = false;
  };
  std::string family;  // "gemm"
  std::vector<Number> numbers;
  std::vector<std::pair<std::string, std::string>> texts;  // pointer and word
  FitErrors inside, outside;  // rows of the fit, and rows kept out of it
  std::string range;          // of the shapes it rests on, in words
  std::string tables;         // names of the formats its rows come from
  bool measured = false;      // its numbers are medians of measured values, not fitted ones
};

/// Fits one group of constants of `start` (the device as it is) to those of `samples` that are its
/// own kind and measured on it; test samples are used for `outside` alone. None: too few rows.
using Fitter =
    std::function<std::optional<FamilyFit>(std::span<const Sample> samples, const Device& start)>;

struct Family {
  const char* name;
  Fitter fit;
};

/// All groups, in the order they are fitted.
const std::vector<Family>& families();

}  // namespace gputwin
