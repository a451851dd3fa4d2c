// Matrix multiplication with tile and wave quantisation.
//
//   t       = t0 + min over tiles (a, b) and split-K s of ( Tc^p + Tm^p )^(1/p)
//   Tc      = waves 2 a b (k/s + k0) / (eff(a b) P / SMs) + [s > 1] t_split
//   waves   = ceil(ctas / SMs)
//   ctas    = batch ceil(m/a) ceil(n/b) s,   eff(a b) = e0 (1 - exp(-c sqrt(a b) / 64))
//   Tm      = bytes / (em BW sqrt(occ)),      occ = min(1, ctas / SMs)
//
// P is the dense peak of the dtype times the device's sustained factor, BW the HBM bandwidth. The
// seven constants t0, e0, c, k0, em, p, t_split are per device (devices/*.json), with a second set
// for fp32 without matrix units where there is a table for it.
// Source  model b of the operator tables, fitted on 13 k bf16 shapes of A100, H100 and GB200:
//         median error 7-8 %, mean 9-11 % on shapes kept out; m >= 512: median 6-9 %.
// Range   2-byte and 1-byte inputs, m, n, k up to 32,768; beyond it, and with batches of matrices,
//         the cost is marked as extrapolated (batches: from the plain shapes, by counting the tiles
//         of all matrices).
#pragma once

#include <cstdint>

#include "hwmodels/device.h"
#include "sim/core/cost.h"

namespace gputwin {

/// One multiplication or `batch` equal ones: C (m x n) = op(A) (m x k) op(B) (k x n).
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  DType dtype = DType::Bf16;  // of A and B
  bool trans_a = false, trans_b = false;
  Bytes traffic{};  // A, B and C once, C twice if accumulated into
};

/// Cost of `shape` on `device`. Terms: StartUp t0, Compute (without waves rounded up), Wave (what
/// rounding up adds), SplitK, Memory.
Cost gemm_cost(const Device& device, const GemmShape& shape);

}  // namespace gputwin
