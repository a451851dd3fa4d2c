// NarrowCopies of matrices in the 8- and 4-bit formats of the layers' matrix multiplies, as
// Transformer Engine makes them (and torchao for the recipes rowwise and tensorwise).
//
// Every operand of a GEMM is copied along both of its directions: forward multiplies along the
// features, the weight gradient along the tokens. FP8 and NVFP4 GEMMs read both operands along the
// reduction dimension, so the second copy is transposed; MX GEMMs take either order, but the scales
// of the second copy run along tokens.
//
//  recipe             kernels of an activation or a gradient [t, h]
//  delayed            one: both copies, and the bias gradient; a norm writes its own copy (the
//                     stack's table), which is then transposed
//  current,           the largest magnitude, over tp where token shards are gathered; one: both
//  tensorwise         copies
//  blockwise          one: both copies
//  mx                 one: both copies, and the bias gradient
//  nvfp4              the largest magnitude; one copy each: the second after a Hadamard transform
//  rowwise            one copy each, with their scales
//
// Weights: the same, without reductions and Hadamard transforms, once per iteration. Both copies
// stay; with zero 3 the one that a pass needs is made of what it gathers. With 8-bit parameters the
// weight itself is the first copy and only the second is made. Source  Transformer Engine 2.x:
// pytorch/module/{linear,layernorm_linear}.py, pytorch/csrc/
//         extensions/{cast,normalization}.cpp, common/normalization/rmsnorm/rmsnorm_api.cpp
//         (transpose after the norm), pytorch/tensor/*_tensor.py (all-gathers);
//         torchao/float8/float8_linear.py.
#pragma once

#include "strategies/lowering/stage_builder.h"

namespace gputwin {

/// True if the current layer's GEMMs read copies of 8 or 4 bits.
bool is_narrow(const StageBuilder& b);
/// True if token shards are gathered as they are and every rank copies all tokens for itself. So
/// torchao's rowwise recipe does (torchtitan, infra/parallelize.py: 8-bit gathers are for
/// tensorwise scales alone); others gather copies.
bool gathers_wide(const StageBuilder& b);
/// True if the second copy is transposed: [h, t].
bool transposes_copies(const StageBuilder& b);

struct Wanted {
  bool rows = true, cols = true;
  bool shard = false;   // of the tokens: copies are gathered over tp before they are multiplied
  bool keep = false;    // the copy for the weight gradient lives until backward
  bool blocks = false;  // rows are blocks, one per expert: no copy is transposed as a whole
  View bias_grad{};     // the sums over tokens are added here
};
/// NarrowCopies of x [t, h]. A shard has no second copy where that is transposed: it is made of the
/// gathered first one. What is in the format already is its own first copy.
NarrowCopies quantize(StageBuilder& b, const std::string& name, const View& x,
                      const Wanted& wanted);

/// [h, t] of a copy [t, h].
View transposed_copy(StageBuilder& b, const std::string& name, const View& rows);

/// The copy of a weight of the current layer for the forward product, and that for the input
/// gradient. Where weights are gathered for every pass (zero 3), so is their copy made.
View forward_weight(StageBuilder& b, Role role);
View backward_weight(StageBuilder& b, Role role);
/// Makes the lasting copies of all weights of the current layer anew.
void quantize_weights(StageBuilder& b);

/// A tensor that only a linear layer of this layer reads, in this format: an activation if it is
/// itself what is kept for the weight gradient.
View linear_input(StageBuilder& b, const std::string& name, std::int64_t rows, std::int64_t cols,
                  DType dtype);
/// Format in which a norm, or an activation function, writes what only a linear layer reads.
DType norm_output(const StageBuilder& b);
DType activation_output(const StageBuilder& b);

}  // namespace gputwin
