#include "hwmodels/calibrate/collectives_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "sim/core/error.h"

namespace gputwin {
namespace {

constexpr int kMaxPieces = 4;
constexpr std::size_t kMaxBins = 40;
constexpr int kReweightings = 8;
constexpr double kSmallestResidual = 0.004;  // relative; keeps the weights finite
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFolds = 5;

using Samples = std::vector<CurveSample>;
using Vector3 = std::array<double, 3>;

double relative_error(const FittedPiece& p, const CurveSample& s) {
  const double ramp = p.half_bytes > 0 ? p.ramp_us * s.bytes / (s.bytes + p.half_bytes) : 0.0;
  return (p.start_us + ramp + p.us_per_byte * s.bus_bytes) / s.time_us - 1.0;
}

// Solves the normal equations over the columns in `mask`; false if they are singular.
bool solve(const std::array<Vector3, 3>& a, const Vector3& b, int mask, Vector3& x) {
  std::array<int, 3> columns{};
  int n = 0;
  for (int c = 0; c < 3; ++c) {
    if ((mask >> c) & 1) columns[static_cast<std::size_t>(n++)] = c;
  }
  std::array<std::array<double, 4>, 3> m{};
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) m[i][j] = a[columns[i]][columns[j]];
    m[i][3] = b[columns[i]];
  }
  for (int i = 0; i < n; ++i) {
    if (!(m[i][i] > 1e-12)) return false;
    for (int r = 0; r < n; ++r) {
      if (r == i) continue;
      const double f = m[r][i] / m[i][i];
      for (int c = i; c < 4; ++c) m[r][c] -= f * m[i][c];
    }
  }
  x = {};
  for (int i = 0; i < n; ++i) x[columns[i]] = m[i][3] / m[i][i];
  return true;
}

// Least absolute relative error of start, ramp and us per byte for a given half size.
FittedPiece fit_linear(std::span<const CurveSample> rows, double half, double& error) {
  FittedPiece piece;
  piece.half_bytes = half;
  std::vector<double> weight(rows.size(), 1.0);
  const double unit = rows.back().bus_bytes > 0 ? rows.back().bus_bytes : 1.0;
  for (int round = 0; round < kReweightings; ++round) {
    std::array<Vector3, 3> a{};
    Vector3 b{};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const CurveSample& s = rows[i];
      const double t = s.time_us;
      const Vector3 x{1.0 / t, half > 0 ? s.bytes / (s.bytes + half) / t : 0.0,
                      s.bus_bytes / unit / t};
      for (int r = 0; r < 3; ++r) {
        for (int c = 0; c < 3; ++c) a[r][c] += weight[i] * x[r] * x[c];
        b[r] += weight[i] * x[r];
      }
    }
    Vector3 best{};
    double least = kInfinity;
    for (int mask = 1; mask < 8; ++mask) {
      Vector3 x{};
      if ((half <= 0 && (mask & 2)) || !solve(a, b, mask, x)) continue;
      if (x[0] < 0 || x[1] < 0 || x[2] < 0) continue;
      double value = 0;
      for (int r = 0; r < 3; ++r) {
        for (int c = 0; c < 3; ++c) value += x[r] * a[r][c] * x[c];
        value -= 2 * x[r] * b[r];
      }
      if (value < least - 1e-15) least = value, best = x;
    }
    piece.start_us = best[0], piece.ramp_us = best[1], piece.us_per_byte = best[2] / unit;
    error = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const double e = std::abs(relative_error(piece, rows[i]));
      error += e;
      weight[i] = 1.0 / std::max(e, kSmallestResidual);
    }
  }
  return piece;
}

FittedPiece fit_piece(std::span<const CurveSample> rows, std::size_t sizes, double& error) {
  FittedPiece best = fit_linear(rows, 0.0, error);
  if (sizes >= 4) {
    const double first = rows.front().bytes, last = rows.back().bytes;
    for (double half = 1024; half < 1e9; half *= 4) {
      if (half < first || half > last) continue;
      double e = 0;
      const FittedPiece piece = fit_linear(rows, half, e);
      if (e < error * 0.98) error = e, best = piece;
    }
  }
  best.from = rows.front().bytes;
  best.upto = rows.back().bytes;
  return best;
}

// First row of each bin of sizes, and one past the end.
std::vector<std::size_t> bins_of(const Samples& rows) {
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i].bytes > rows[i - 1].bytes) starts.push_back(i);
  }
  if (starts.size() > kMaxBins) {
    const double step = std::log(rows.back().bytes / rows.front().bytes) / kMaxBins;
    std::vector<std::size_t> coarse;
    double next = -1;
    for (std::size_t start : starts) {
      const double at = std::log(rows[start].bytes / rows.front().bytes);
      if (at < next) continue;
      coarse.push_back(start);
      next = at + step;
    }
    starts = coarse;
  }
  starts.push_back(rows.size());
  return starts;
}

std::vector<FittedPiece> fit_pieces(const Samples& rows, double cut_cost) {
  const std::vector<std::size_t> at = bins_of(rows);
  const std::size_t bins = at.size() - 1;
  const std::size_t least = bins >= 6 ? 3 : 2;  // sizes in a piece
  const double penalty = cut_cost * static_cast<double>(rows.size());
  struct Best {
    double cost = kInfinity;
    std::size_t from = 0;
    FittedPiece piece;
  };
  std::vector<std::vector<Best>> best(kMaxPieces + 1, std::vector<Best>(bins + 1));
  best[0][0].cost = 0;
  for (std::size_t i = 0; i < bins; ++i) {
    for (std::size_t j = i + 1; j <= bins; ++j) {
      if (j - i < least && !(i == 0 && j == bins)) continue;
      double error = 0;
      const FittedPiece piece =
          fit_piece(std::span(rows).subspan(at[i], at[j] - at[i]), j - i, error);
      for (int k = 1; k <= kMaxPieces; ++k) {
        const double cost = best[k - 1][i].cost + error + (k > 1 ? penalty : 0.0);
        if (cost < best[k][j].cost) best[k][j] = {cost, i, piece};
      }
    }
  }
  int pieces = 1;
  for (int k = 2; k <= kMaxPieces; ++k) {
    if (best[k][bins].cost < best[pieces][bins].cost) pieces = k;
  }
  std::vector<FittedPiece> out(static_cast<std::size_t>(pieces));
  for (std::size_t j = bins; pieces > 0; --pieces) {
    out[static_cast<std::size_t>(pieces - 1)] = best[pieces][j].piece;
    const std::size_t i = best[pieces][j].from;
    j = i;
  }
  return out;
}

// One size says little: large messages are all transfer, small ones all start-up.
FittedPiece single_size(const Samples& rows) {
  constexpr double kLarge = 16 << 20;
  std::vector<double> times;
  for (const CurveSample& s : rows) times.push_back(s.time_us);
  std::sort(times.begin(), times.end());
  const double time = times[times.size() / 2];
  FittedPiece piece;
  piece.from = piece.upto = rows.front().bytes;
  if (rows.front().bytes >= kLarge && rows.front().bus_bytes > 0) {
    piece.us_per_byte = time / rows.front().bus_bytes;
  } else {
    piece.start_us = time;
  }
  return piece;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto i = static_cast<std::size_t>(at);
  const std::size_t next = std::min(i + 1, values.size() - 1);
  return values[i] + (at - static_cast<double>(i)) * (values[next] - values[i]);
}

}  // namespace

double curve_time_us(std::span<const FittedPiece> pieces, double bytes, double bus_bytes) {
  const auto at = [&](const FittedPiece& p, double size) {
    const double ramp = p.half_bytes > 0 ? p.ramp_us * size / (size + p.half_bytes) : 0.0;
    return p.start_us + ramp + p.us_per_byte * bus_bytes * (size / bytes);
  };
  std::size_t i = 0;
  while (i + 1 < pieces.size() && bytes > pieces[i].upto) ++i;
  if (i == 0 || bytes >= pieces[i].from) return at(pieces[i], bytes);
  const double a = pieces[i - 1].upto, b = pieces[i].from;
  const double share = std::log(bytes / a) / std::log(b / a);
  return std::exp((1 - share) * std::log(at(pieces[i - 1], a)) +
                  share * std::log(at(pieces[i], b)));
}

CurveFit fit_curve(std::span<const CurveSample> samples, double cut_cost) {
  Samples rows(samples.begin(), samples.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const CurveSample& a, const CurveSample& b) { return a.bytes < b.bytes; });
  if (rows.empty()) throw InputError("", "", "", "no rows", "measure at one size or more");
  for (const CurveSample& s : rows) {
    if (!(s.time_us > 0)) {
      throw InputError("", "", std::to_string(s.time_us), "is no time", "give microseconds > 0");
    }
  }
  CurveFit fit;
  fit.pieces = fit_pieces(rows, cut_cost);
  if (rows.front().bytes == rows.back().bytes) fit.pieces = {single_size(rows)};
  for (const CurveSample& s : rows) {
    fit.error_in += std::abs(curve_time_us(fit.pieces, s.bytes, s.bus_bytes) / s.time_us - 1);
  }
  fit.error_in /= static_cast<double>(rows.size());
  // Every fifth distinct size is kept out in turn.
  std::vector<double> ratios;
  for (int fold = 0; fold < kFolds; ++fold) {
    Samples kept, out;
    std::size_t size = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      size += i > 0 && rows[i].bytes > rows[i - 1].bytes;
      (static_cast<int>(size % static_cast<std::size_t>(kFolds)) == fold ? out : kept)
          .push_back(rows[i]);
    }
    if (kept.empty() || out.empty() || kept.front().bytes == kept.back().bytes) continue;
    const std::vector<FittedPiece> pieces = fit_pieces(kept, cut_cost);
    for (const CurveSample& s : out) {
      const double time = curve_time_us(pieces, s.bytes, s.bus_bytes);
      fit.error_out += std::abs(time / s.time_us - 1);
      ratios.push_back(s.time_us / time);
    }
  }
  if (!ratios.empty()) {
    fit.error_out /= static_cast<double>(ratios.size());
    // Few rows: their outer tenth is not seen, so the ends move outward.
    const double tail = std::max(0.0, 0.1 - 0.8 / static_cast<double>(ratios.size()));
    fit.low = std::min(1.0, quantile(ratios, tail));
    fit.high = std::max(1.0, quantile(ratios, 1 - tail));
  }
  return fit;
}

}  // namespace gputwin
