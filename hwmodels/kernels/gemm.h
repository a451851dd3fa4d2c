// Matrix multiplication with tile and wave quantisation, and a learned correction.
//
//   t       = (t0 + Tc + Tm - (1 - g) min(Tc, Tm)) r        over the best tile (a, b) and split-K s
//   Tc      = waves 2 a b (k/s + k0) / (eff(a b) P / SMs) + [s > 1] t_split
//   waves   = ceil(ctas / SMs)
//   ctas    = batch ceil(m/a) ceil(n/b) s,   eff(a b) = e0 (1 - exp(-c sqrt(a b) / 64))
//   Tm      = bytes / (em BW sqrt(occ)),      occ = min(1, ctas / SMs)
//   g       = 2^(1/p) - 1: where Tc = Tm the sum is their p-norm
//
// P is the dense peak of the dtype times the device's sustained factor, BW the HBM bandwidth. The
// seven constants t0, e0, c, k0, em, p, t_split are per device (devices/*.json), with a second set
// for fp32 without matrix units where there is a table for it. Tile and split are those that would
// be best at the clocks of a short benchmark: libraries do not know power limits.
//
// r, between exp(-bound) and exp(bound), is the residual of an architecture (residuals/gemm-*.json,
// kernels/residual.h): which tile the library took, L2, alignment. It sees the features below and
// multiplies every term. Batches have one only on the fp32 path, where batches were measured.
// Source  operator tables; errors on shapes and devices kept out of the fit: hwmodels/README.md.
// Range   m, n, k up to 65,536; beyond it, for batches without a residual and for devices whose
//         constants were carried over, the cost is marked as extrapolated or the interval wider.
#pragma once

#include <cstdint>
#include <span>

#include "hwmodels/device.h"
#include "sim/core/cost.h"

namespace gputwin {

/// One multiplication or `batch` equal ones: C (m x n) = op(A) (m x k) op(B) (k x n).
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  DType dtype = DType::Bf16;  // of A and B
  bool trans_a = false, trans_b = false;
  bool block_scales = false;  // 8 bits with a scale for each 128 values, as DeepSeek's
  Bytes traffic{};            // A, B and C once, C twice if accumulated into
};

/// Cost of `shape` on `device`. Terms: StartUp t0, Compute (without waves rounded up), Wave (what
/// rounding up adds), SplitK, Memory.
Cost gemm_cost(const Device& device, const GemmShape& shape);

/// Names of what the residual sees, in the order of gemm_feature_values.
std::span<const char* const> gemm_features();
inline constexpr std::size_t kGemmFeatures = 18;

/// The features of `shape`, and its physical time in seconds (no residual) in `physical_s`.
std::array<float, kGemmFeatures> gemm_feature_values(const Device& device, const GemmShape& shape,
                                                     double& physical_s);

}  // namespace gputwin
