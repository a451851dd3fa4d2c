#include "hwmodels/kernels/gemm.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace gputwin {

namespace {

struct Tile {
  std::int64_t rows, cols;
};

constexpr std::array<Tile, 14> kTiles{{{256, 128},
                                       {128, 256},
                                       {128, 128},
                                       {256, 64},
                                       {64, 256},
                                       {128, 64},
                                       {64, 128},
                                       {64, 64},
                                       {32, 128},
                                       {128, 32},
                                       {32, 64},
                                       {64, 32},
                                       {16, 64},
                                       {64, 16}}};
constexpr std::array<std::int64_t, 5> kSplits{1, 2, 4, 8, 16};
constexpr std::int64_t kLeastSplitDepth = 64;  // a slice of k below this is never worth a split
constexpr std::int64_t kFittedExtent = 32768;

// 80 % of the shapes kept out lie within these factors of the model (A100 and H100, m >= 512: 11 %
// and 15 %).
constexpr double kLow = 0.88, kHigh = 1.14;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Choice {
  double time = 0.0, compute = 0.0, wave = 0.0, split = 0.0, memory = 0.0;
};

struct Machine {
  double sms, flops_per_sm, bandwidth;
};

Choice evaluate(const GemmParameters& g, const Machine& machine, const GemmShape& shape, Tile tile,
                std::int64_t split) {
  const double area = static_cast<double>(tile.rows * tile.cols);
  const double ctas = static_cast<double>(shape.batch * ceil_div(shape.m, tile.rows) *
                                          ceil_div(shape.n, tile.cols) * split);
  const double efficiency =
      g.tile_efficiency * (1.0 - std::exp(-g.tile_saturation * std::sqrt(area) / 64.0));
  const double depth = static_cast<double>(shape.k) / static_cast<double>(split) + g.k_overhead;
  const double one_wave = 2.0 * area * depth / (efficiency * machine.flops_per_sm);
  const double waves = std::ceil(ctas / machine.sms);
  Choice c;
  c.compute = one_wave * ctas / machine.sms;
  c.wave = one_wave * waves - c.compute;
  c.split = split > 1 ? g.split_cost.value : 0.0;
  const double occupancy = std::min(1.0, ctas / machine.sms);
  c.memory = static_cast<double>(shape.traffic.value) /
             (g.memory_efficiency * machine.bandwidth * std::sqrt(occupancy));
  const double p = g.norm_exponent;
  const double work = c.compute + c.wave + c.split;
  // The p-norm, scaled by its larger part so that tiny times do not underflow.
  const double larger = std::max(work, c.memory), smaller = std::min(work, c.memory);
  c.time = larger > 0 ? larger * std::pow(1.0 + std::pow(smaller / larger, p), 1.0 / p) : 0.0;
  return c;
}

double layout_time(const GemmParameters& g, const GemmShape& shape) {
  // As lowered: forward C = A B^T, data gradient C = A B, weight gradient C = A^T B.
  if (shape.trans_a) return g.nt_time;
  return shape.trans_b ? 1.0 : g.nn_time;
}

}  // namespace

Cost gemm_cost(const Device& device, const GemmShape& shape) {
  const bool simt = device.compute_format(shape.dtype) == DType::F32;
  const GemmParameters& g = simt && device.gemm_fp32 ? *device.gemm_fp32 : device.gemm;
  const double peak = device.sustained_rate(shape.dtype).value;
  const Machine machine{static_cast<double>(device.sms), peak / device.sms,
                        device.memory_bandwidth.value};
  Choice best;
  bool first = true;
  for (const Tile tile : kTiles) {
    for (const std::int64_t split : kSplits) {
      if (split > 1 && (shape.batch > 1 || shape.k < split * kLeastSplitDepth)) break;
      const Choice choice = evaluate(g, machine, shape, tile, split);
      if (first || choice.time < best.time) best = choice;
      first = false;
    }
  }
  const double factor = layout_time(g, shape);
  Cost cost;
  cost.time = g.start_up + Seconds(best.time * factor);
  cost.terms[static_cast<std::size_t>(Term::StartUp)] = g.start_up;
  cost.terms[static_cast<std::size_t>(Term::Compute)] = Seconds(best.compute * factor);
  cost.terms[static_cast<std::size_t>(Term::Wave)] = Seconds(best.wave * factor);
  cost.terms[static_cast<std::size_t>(Term::SplitK)] = Seconds(best.split * factor);
  cost.terms[static_cast<std::size_t>(Term::Memory)] = Seconds(best.memory * factor);
  cost.low = kLow;
  cost.high = kHigh;
  cost.extrapolated = shape.batch > 1 || std::max({shape.m, shape.n, shape.k}) > kFittedExtent ||
                      bits(shape.dtype) > 16;
  cost.model = "gemm: t0 + min over tiles and split-K of pnorm(waves of tiles, bytes)";
  cost.op_class = "gemm";
  return cost;
}

}  // namespace gputwin
