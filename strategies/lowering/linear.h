// Column- and row-parallel linear layers (Megatron-LM, Shoeybi et al. 2019, section 3), in the
// formats, with the adapters and with the overlap that the job and the layout ask for.
//
// Userbuffers (layout.tp_overlap, sequence parallelism only): the gather before a column-parallel
// product and before the input gradient of a row-parallel one, and the scatter after a row-parallel
// product, are cut into tp chunks that alternate with chunks of the product. Transformer Engine
// cuts along tokens and passes chunks around a ring; here gathers are cut along features and
// scatters along outputs, which moves and multiplies the same and keeps every view a rectangle.
// AsyncTp (torch) cuts the scatter after the input gradient of a column-parallel product as well,
// and all of them by samples where the micro-batch has several (StageBuilder::token_pieces).
// Ring exchange: shards and sums travel between neighbours in steps (ring.h).
// Columns: the all-reduces after row-parallel products and input gradients, in two halves.
#pragma once

#include <string>

#include "strategies/lowering/stage_builder.h"

namespace gputwin {

struct LinearLayer {
  const char* name;
  Role weight, bias, adapter_in, adapter_out;
};
inline constexpr LinearLayer kQkvLayer{"qkv", Role::Qkv, Role::QkvBias, Role::QkvAdapterIn,
                                       Role::QkvAdapterOut};
inline constexpr LinearLayer kProjLayer{"proj", Role::Proj, Role::ProjBias, Role::ProjAdapterIn,
                                        Role::ProjAdapterOut};
inline constexpr LinearLayer kFc1Layer{"fc1", Role::Fc1, Role::Fc1Bias, Role::Fc1AdapterIn,
                                       Role::Fc1AdapterOut};
inline constexpr LinearLayer kFc2Layer{"fc2", Role::Fc2, Role::Fc2Bias, Role::Fc2AdapterIn,
                                       Role::Fc2AdapterOut};

/// y = x w^T (+ bias). `x` is the token shard with sequence parallelism: it is gathered.
void column_parallel_forward(StageBuilder& b, const LinearLayer& layer, const View& x,
                             const View& bias, const View& y, LinearState& state);
/// The sum over tp of x w^T; a token shard with sequence parallelism.
View row_parallel_forward(StageBuilder& b, const LinearLayer& layer, const View& x,
                          LinearState& state);

/// Gradient of x, none unless `to_input`; accumulates the gradients of weight, bias and adapters
/// that are trained.
View column_parallel_backward(StageBuilder& b, const LinearLayer& layer, const View& dy,
                              const LinearState& state, bool to_input = true);
/// Gradient of x; accumulates the weight's and the adapters' gradients.
View row_parallel_backward(StageBuilder& b, const LinearLayer& layer, const View& dy,
                           const LinearState& state);

}  // namespace gputwin
