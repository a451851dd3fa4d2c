#include "hwmodels/kernels/gemm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace gputwin {

namespace {

struct Tile {
  unsigned rows, cols;  // powers of two
  unsigned size;        // sqrt(rows cols) / 64 is one of kSizes
};

// Halves and powers of the root of 2, so that all efficiencies come from two exponentials.
constexpr std::array<Tile, 9> kTiles{{{256, 128, 0},
                                      {128, 256, 0},
                                      {128, 128, 1},
                                      {128, 64, 2},
                                      {64, 128, 2},
                                      {64, 64, 3},
                                      {64, 32, 4},
                                      {32, 64, 4},
                                      {16, 64, 5}}};
constexpr std::size_t kSizes = 6;
constexpr std::int64_t kMostSplits = 16;
constexpr std::int64_t kLeastSplitDepth = 64;  // a slice of k below this is never worth a split
constexpr std::int64_t kFittedExtent = 65536;

// Without a residual 80 % of the shapes lie within these factors.
constexpr double kLow = 0.88, kHigh = 1.14;
// A device of an architecture whose residual was grown on others: errors are 1.4 times as large.
constexpr double kTransferredWidth = 1.4;

constexpr std::array<const char*, kGemmFeatures> kFeatures{
    "m",          "n",        "k",         "batch",       "operand_bits", "block_scales",
    "wave_fill",  "waves",    "intensity", "tile_rows",   "tile_cols",    "split",
    "weights_L2", "fill_big", "fill_wide", "fill_square", "fill_small",   "time_us"};

std::int64_t tiles_along(std::int64_t extent, unsigned tile) {
  return (extent + tile - 1) >> std::countr_zero(tile);
}

struct Choice {
  double time = 0.0;  // without start-up and residual
  double compute = 0.0, wave = 0.0, split_cost = 0.0, memory = 0.0;
  double ctas = 0.0, waves = 0.0;
  std::int64_t split = 1;
  std::size_t tile = 0;
  std::array<std::int64_t, kTiles.size()> tiles{};  // of every tile size, in the whole product
};

/// Waves of the tiles of one product on one device, at the rate of a short benchmark.
class Planner {
 public:
  Planner(const GemmParameters& g, const Device& device, const GemmShape& shape, double flops)
      : g_(g), shape_(shape), sms_(device.sms), inverse_sms_(1.0 / device.sms) {
    const double half = std::exp(-0.5 * g.tile_saturation);
    const double root = std::exp(-std::sqrt(0.5) * g.tile_saturation);
    const double one = half * half, root2 = root * root;
    // 1 - exp(-c x) for x = sqrt(8), 2, sqrt(2), 1, sqrt(1/2), 1/2.
    const std::array<double, kSizes> left{root2 * root2, one * one, root2, one, root, half};
    const double scale = 2.0 * device.sms / (flops * g.tile_efficiency);
    for (std::size_t i = 0; i < kSizes; ++i) seconds_[i] = scale / (1.0 - left[i]);
    bytes_time_ = static_cast<double>(shape.traffic.value) /
                  (g.memory_efficiency * device.memory_bandwidth.value);
    overlap_ = std::exp2(1.0 / g.norm_exponent) - 1.0;
  }

  Choice best() const {
    Choice best;
    best.time = -1.0;
    for (std::size_t i = 0; i < kTiles.size(); ++i) {
      const std::int64_t tiles = shape_.batch * tiles_along(shape_.m, kTiles[i].rows) *
                                 tiles_along(shape_.n, kTiles[i].cols);
      best.tiles[i] = tiles;
      for (std::int64_t split = 1; split <= kMostSplits; split *= 2) {
        if (split > 1 && (shape_.batch > 1 || shape_.k < split * kLeastSplitDepth)) break;
        consider(i, tiles * split, split, best);
        if (tiles * split >= sms_) break;  // no SM is left for more slices
      }
    }
    return best;
  }

  /// Compute and memory of one wave plan, combined.
  double combined(double work, double memory) const {
    return std::max(work, memory) + overlap_ * std::min(work, memory);
  }

 private:
  void consider(std::size_t tile, std::int64_t ctas, std::int64_t split, Choice& best) const {
    const double area = kTiles[tile].rows * kTiles[tile].cols;
    const double depth = static_cast<double>(shape_.k) / static_cast<double>(split) + g_.k_overhead;
    const double one_wave = area * depth * seconds_[kTiles[tile].size];
    const double full = static_cast<double>(ctas) * inverse_sms_;
    const auto waves = static_cast<double>((ctas + sms_ - 1) / sms_);
    const double split_cost = split > 1 ? g_.split_cost.value : 0.0;
    const double memory = full < 1.0 ? bytes_time_ / std::sqrt(full) : bytes_time_;
    const double time = combined(one_wave * waves + split_cost, memory);
    if (best.time >= 0.0 && time >= best.time) return;
    best.time = time;
    best.compute = one_wave * full;
    best.wave = one_wave * (waves - full);
    best.split_cost = split_cost;
    best.memory = memory;
    best.ctas = static_cast<double>(ctas);
    best.waves = waves;
    best.split = split;
    best.tile = tile;
  }

  const GemmParameters& g_;
  const GemmShape& shape_;
  std::int64_t sms_;
  double inverse_sms_;
  std::array<double, kSizes> seconds_{};  // of one multiply-add of a tile, by its size
  double bytes_time_ = 0.0, overlap_ = 0.0;
};

/// How full the waves are with one tile size.
float fill(const GemmShape& shape, std::int64_t sms, const Choice& c, std::size_t tile) {
  const std::int64_t waves = (c.tiles[tile] + sms - 1) / sms;
  const std::int64_t places = waves * sms * kTiles[tile].rows * kTiles[tile].cols;
  return static_cast<float>(shape.batch * shape.m * shape.n) / static_cast<float>(places);
}

std::array<float, kGemmFeatures> features(const Device& device, const GemmShape& shape,
                                          const Choice& c, double time) {
  const auto f = [](auto value) { return static_cast<float>(value); };
  const double weights = static_cast<double>(shape.n * shape.k) * bits(shape.dtype) / 8;
  const std::int64_t sms = device.sms;
  return {f(shape.m),
          f(shape.n),
          f(shape.k),
          f(shape.batch),
          f(bits(shape.dtype)),
          f(shape.block_scales),
          f(c.ctas / (c.waves * static_cast<double>(sms))),
          f(c.ctas / static_cast<double>(sms)),
          f((c.compute + c.wave) / std::max(c.memory, 1e-12)),
          f(kTiles[c.tile].rows),
          f(kTiles[c.tile].cols),
          f(c.split),
          f(weights / static_cast<double>(std::max<std::int64_t>(device.l2.value, 1))),
          fill(shape, sms, c, 0),
          fill(shape, sms, c, 1),
          fill(shape, sms, c, 2),
          fill(shape, sms, c, 5),
          f(time * 1e6)};
}

struct Path {
  const GemmParameters& parameters;
  double benchmark_rate;  // FLOP/s of a short benchmark
  bool simt;
};

Path path_of(const Device& device, DType dtype) {
  const DType format = device.compute_format(dtype);
  const auto at = static_cast<std::size_t>(format);
  const bool simt = format == DType::F32;
  return {simt && device.gemm_fp32 ? *device.gemm_fp32 : device.gemm,
          device.peak[at].value * device.format_rate[at], simt};
}

double layout_time(const GemmParameters& g, const GemmShape& shape) {
  // As lowered: forward C = A B^T, data gradient C = A B, weight gradient C = A^T B.
  if (shape.trans_a) return g.nt_time;
  return shape.trans_b ? 1.0 : g.nn_time;
}

}  // namespace

std::span<const char* const> gemm_features() { return kFeatures; }

std::array<float, kGemmFeatures> gemm_feature_values(const Device& device, const GemmShape& shape,
                                                     double& physical_s) {
  const Path path = path_of(device, shape.dtype);
  const Choice c = Planner(path.parameters, device, shape, path.benchmark_rate).best();
  physical_s = c.time + path.parameters.start_up.value;
  return features(device, shape, c, physical_s);
}

Cost gemm_cost(const Device& device, const GemmShape& shape) {
  const Path path = path_of(device, shape.dtype);
  const GemmParameters& g = path.parameters;
  const Planner planner(g, device, shape, path.benchmark_rate);
  const Choice best = planner.best();
  double factor = 1.0;
  Cost cost;
  cost.low = kLow;
  cost.high = kHigh;
  const Residual* residual = (bits(shape.dtype) < 16 ? g.narrow_residual : g.residual).get();
  const bool corrected = residual != nullptr && (shape.batch == 1 || path.simt);
  if (corrected) {
    const double bench = best.time + g.start_up.value;
    factor = residual->factor(features(device, shape, best, bench));
    const IntervalBand& band = residual->band(bench * factor);
    cost.low = g.transferred ? std::pow(band.low, kTransferredWidth) : band.low;
    cost.high = g.transferred ? std::pow(band.high, kTransferredWidth) : band.high;
  }
  // The plan stays; under a power limit its arithmetic takes longer.
  const double slower = path.benchmark_rate / device.sustained_rate(shape.dtype).value;
  const double work = (best.compute + best.wave) * slower + best.split_cost;
  const Seconds start_up = g.start_up * factor;
  factor *= layout_time(g, shape);
  cost.time = start_up + Seconds(planner.combined(work, best.memory) * factor);
  cost.terms[static_cast<std::size_t>(Term::StartUp)] = start_up;
  cost.terms[static_cast<std::size_t>(Term::Compute)] = Seconds(best.compute * slower * factor);
  cost.terms[static_cast<std::size_t>(Term::Wave)] = Seconds(best.wave * slower * factor);
  cost.terms[static_cast<std::size_t>(Term::SplitK)] = Seconds(best.split_cost * factor);
  cost.terms[static_cast<std::size_t>(Term::Memory)] = Seconds(best.memory * factor);
  cost.extrapolated = (shape.batch > 1 && !corrected) ||
                      std::max({shape.m, shape.n, shape.k}) > kFittedExtent ||
                      (!corrected && bits(shape.dtype) > 16);
  cost.model = "gemm: (t0 + waves of tiles and bytes, overlapped) x residual of the architecture";
  cost.op_class = "gemm";
  return cost;
}

}  // namespace gputwin
