// The fused mixture-of-experts layer of one rank: gate, up and down products of its experts.
//
//   rows of the rank    tokens x top_k / expert_parallel
//   active experts      E (1 - (1 - 1/E)^rows), E = experts / expert_parallel
//   C   2 FLOPs x rows, each expert's padded to blocks, x hidden x intermediate x products
//   M   weights of the active experts, inputs, outputs and the rows between the products
#pragma once

#include <cstdint>
#include <string_view>

#include "hwmodels/device.h"
#include "hwmodels/kernels/library.h"

namespace gputwin {

struct MoeShape {
  std::int64_t tokens = 1, hidden = 1, intermediate = 1;
  std::int64_t top_k = 1, experts = 1;
  std::int64_t tensor_parallel = 1, expert_parallel = 1;
  double skew = 0;    // exponent of the power law of the experts' popularity; 0: balanced
  bool gated = true;  // three products an expert, else two
  DType dtype = DType::Bf16;
  int library = 0;  // moe_library of its name
};

/// The number of a kernel family; 0: not known.
int moe_library(std::string_view kernel, std::string_view dtype);

KernelEstimate estimate(const Device& device, const MoeShape& shape);
/// A device without constants for it gives a cost with time 0.
Cost moe_cost(const Device& device, const MoeShape& shape);

}  // namespace gputwin
