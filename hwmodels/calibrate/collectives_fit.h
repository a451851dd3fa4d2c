// Fits the pieces of one collective's curve (hwmodels/collectives/curves.h) to measured times.
//
// Where a curve is cut, how many pieces it has (four at most) and the size `half` of each are
// searched exhaustively by dynamic programming; start, ramp and 1 / bus of a piece come from least
// absolute relative errors (reweighted least squares, none negative). A cut has to pay: it must
// lower the mean error by `cut_cost`. Deterministic, one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gputwin {

struct CurveSample {
  double bytes = 0;      // larger of input and output of one rank
  double bus_bytes = 0;  // W, see curves.h
  double time_us = 0;
};

struct FittedPiece {
  double from = 0, upto = 0;  // smallest and largest size it was fitted to, bytes
  double start_us = 0, ramp_us = 0, half_bytes = 0, us_per_byte = 0;  // us per byte of W
};

struct CurveFit {
  std::vector<FittedPiece> pieces;
  double error_in = 0;       // mean |prediction / measured - 1|, all rows
  double error_out = 0;      // the same with every fifth of the sizes kept out in turn
  double low = 1, high = 1;  // 10th and 90th percentile of measured / predicted, kept out
};

/// Rows of one size give transfer alone (16 MiB and more) or start-up alone. Throws InputError for
/// no rows and times that are not positive.
CurveFit fit_curve(std::span<const CurveSample> samples, double cut_cost = 0.006);

/// Time in us that the pieces give; between two pieces interpolated on logarithms.
double curve_time_us(std::span<const FittedPiece> pieces, double bytes, double bus_bytes);

}  // namespace gputwin
