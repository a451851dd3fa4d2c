// Exchanges that serving stacks run with kernels of their own instead of NCCL's: all-reduce inside
// a node, and the way of tokens to their experts and back (DeepEP).
//
//   all-reduce   M   2 (n-1)/n S over the link, as each GPU reduces its part and gathers the others
//                C   S read and written in memory
//   experts      M   copies of tokens that leave the GPU, over the link inside the node and over
//                    the adapter beyond it
//                C   the same bytes through the SMs the kernel was given
//
// Where a GPU has no NVLink the link is PCIe gen 4.
#pragma once

#include <cstdint>
#include <string_view>

#include "hwmodels/device.h"
#include "hwmodels/kernels/library.h"

namespace gputwin {

struct AllReduceShape {
  std::int32_t ranks = 2;  // in one node
  double bytes = 0;        // of the tensor
  bool eager = false;      // launched by the host for each call; else replayed from a CUDA graph
  int framework = 0;       // exchange_framework of its name
  double version = 0;      // version_number of its version
};

struct ExpertExchangeShape {
  std::int64_t tokens = 1;  // of one rank
  std::int64_t hidden = 1, top_k = 1, experts = 1;
  std::int32_t nodes = 1;
  std::int32_t sms = 0;  // given to the kernel; low latency: none stated
  bool low_latency = false;
  bool combine = false;  // back from the experts, in 16 bits; else to them, in 8
  double version = 0;
};

/// Number of a serving stack as tables spell it; 0 if it is not known.
int exchange_framework(std::string_view name);

/// "0.5.10" as 0 05 10 00, "1.3.0rc20" as 1 03 00 20: larger is later within a stack.
double version_number(std::string_view version);

KernelEstimate estimate(const Device& device, const AllReduceShape& shape);
KernelEstimate estimate(const Device& device, const ExpertExchangeShape& shape);

LibraryKernel kernel_of(const AllReduceShape& shape);
LibraryKernel kernel_of(const ExpertExchangeShape& shape);

/// A device without constants for it gives a cost with time 0.
Cost all_reduce_cost(const Device& device, const AllReduceShape& shape);
Cost expert_exchange_cost(const Device& device, const ExpertExchangeShape& shape);

}  // namespace gputwin
