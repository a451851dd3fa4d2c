// Grows the learned correction of a physical model (hwmodels/kernels/residual.h).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "hwmodels/kernels/residual.h"

namespace gputwin {

/// Rows to learn from: features, and log(measured / physical).
struct ResidualRows {
  std::vector<std::string> names;     // of the features
  std::vector<std::vector<float>> x;  // one vector a row
  std::vector<double> log_ratio;
  std::vector<double> physical_s;    // to place rows in bands of predicted time
  std::vector<std::uint64_t> shape;  // rows of one shape stay in one fold

  void add(std::vector<float> features, double measured_s, double physical, std::uint64_t key);
};

struct BoostOptions {
  std::size_t trees = 64;
  double rate = 0.25;  // share of a leaf's mean that is taken
  double scale = 0.1;  // SoftLOne: errors beyond count linearly
  double prior = 10;   // rows with correction 0 added to each leaf
  double bound = 1.5;  // of the logarithm of the whole correction
};

/// The correction grown on all rows; its intervals are quantiles of errors on folds of shapes that
/// were kept out of it in turn (5 folds), by bands of predicted time. Equal rows in equal order
/// give equal bytes.
Residual grow_residual(const ResidualRows& rows, const BoostOptions& options = {});

}  // namespace gputwin
