// Attention: the batched GEMMs of the unfused form and the fused (flash) kernels.
//
// Unfused. Every product is a GEMM over batch b a of matrices of s, u and d (kernels/gemm.h); S and
// P go through memory. Head sizes that are no multiple of 8 lose the tensor cores: time x
// misaligned_head_time.
// ALiBi on unfused scores: torch's baddbmm first copies the broadcast biases to all b a s u scores
// (a kernel of its own: memory-bound t0 + bytes / (elementwise BW)), and the GEMM then reads them
// (beta = 1). Source: Megatron-DeepSpeed's ParallelAttention (baddbmm of alibi, Q, K^T) and ATen's
// baddbmm. Fused kernels compute the bias: no traffic.
//
// Fused.  t = t0 + max( W / R + W_longest SMs / R, bytes / (eff BW) )
//         + is the root of the sum of squares forward, the larger one backward
//   W          FLOPs of all 128 x 128 tiles touched: 4 (forward) or 10 (backward) x 128 x 128 x d
//              each; the causal mask skips tiles above the diagonal, so about half of s u / 128^2
//              remain; the two chunks of a context-parallel rank see the same number on all ranks
//   R          sustained rate of (kernel, device, phase), from devices/*.json
//   W_longest  work of the longest row of tiles (Blackwell, forward: two), which one SM must do
//              alone: binds when heads are few
//   Error      SimuMax training tables of B200 and A100 PCIe, 4 to 128 heads: 8, 4 % mean
// Source  rates: operator tables (cuDNN front end's training benchmark, AIConfigurator's prefill
//         table) and the FlashAttention-2 paper; the tile form is their model b. Backward does 2.5
//         x the forward FLOPs (five products, one of them recomputed).
// Range   d = 64 .. 128, s >= 512; outside it the cost is marked as extrapolated.
#pragma once

#include "hwmodels/device.h"
#include "sim/core/cost.h"
#include "sim/core/op.h"

namespace gputwin {

/// `op` is one of the attention GEMM kinds; `traffic`: bytes of all its views.
Cost attention_gemm_cost(const Device& device, const Op& op, Bytes traffic);

/// `op` is FlashForward or FlashBackward. A kernel the device lacks is priced at its best fused
/// kernel's rate, or at a quarter of the dense peak if it has none, and marked as extrapolated.
Cost flash_cost(const Device& device, const Op& op, Bytes traffic);

}  // namespace gputwin
