// Low-rank adapters of frozen linear layers (Hu et al. 2022, LoRA): y += scale B (A x), with A [r,
// k] and B [n, r] trained and everything else frozen.
//
// Around a column-parallel layer A is whole and B cut by rows; around a row-parallel one A is cut
// by columns and B whole. Sums over tp join those of the layer itself, so adapters add no
// collectives to the passes; the gradients of whole matrices are parts, summed over tp with the
// buckets. Targets are those of NeMo (linear_qkv, linear_proj, linear_fc1, linear_fc2); its own
// adapters cut both matrices and exchange the thin [t, r] instead. They multiply in 16 bits.
#pragma once

#include "strategies/lowering/linear.h"

namespace gputwin {

bool has_adapter(const StageBuilder& b, const LinearLayer& layer);

/// y += scale x A^T B^T; x [t, k] of all tokens.
void adapter_forward(StageBuilder& b, const LinearLayer& layer, const View& x, const View& y,
                     LinearState& state);

struct AdapterGrads {
  View dy, hidden;  // scaled gradient of y, and that of x A^T
};
/// Gradients of what lies between the adapter's matrices; none without an adapter.
AdapterGrads adapter_input_grads(StageBuilder& b, const LinearLayer& layer, const View& dy);
/// dx += the adapter's part.
void add_adapter_input_grad(StageBuilder& b, const LinearLayer& layer, const AdapterGrads& grads,
                            const View& dx);
/// Accumulates the gradients of A and B; x [t, k] of all tokens.
void adapter_weight_grads(StageBuilder& b, const LinearLayer& layer, const AdapterGrads& grads,
                          const View& x, const LinearState& state);

}  // namespace gputwin
