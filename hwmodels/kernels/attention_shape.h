// Fused attention kernels of serving and training libraries, as the tables of benchmarks ask for
// them.
//
//   C   time of all tiles of up to 128 x 128 that mask and window leave, or of the longest row of
//       tiles on one SM if that is more. An element of a tile takes 2 (d + dv) FLOPs (5/2 of it
//       backward) and one exponential, of which an SM does 16 a clock cycle (CUDA C++ Programming
//       Guide; Blackwell Ultra 32): where the matrix units are fast these take half of the time.
//       Kernels with
//       the matrix instructions of Ampere reach a part of the peak of Hopper and Blackwell
//   M   Q, O once, K and V once a sequence and key head (gradients too, backward); unfused: the
//       scores eight times
#pragma once

#include <cstdint>
#include <string_view>

#include "hwmodels/device.h"
#include "hwmodels/kernels/library.h"
#include "sim/core/job.h"

namespace gputwin {

struct AttentionShape {
  enum class Phase : std::uint8_t { Prefill, Decode, Forward, Backward };
  Phase phase = Phase::Forward;
  std::int64_t batch = 1, queries = 1, keys = 1;  // the queries are the last of the keys
  std::int64_t heads = 1, kv_heads = 1;
  std::int64_t head_size = 128, value_size = 128;
  std::int64_t window = 0;  // 0: none
  bool causal = true;
  DType dtype = DType::Bf16, kv_dtype = DType::Bf16;
  int library = 0;     // attention_library of its names
  double variant = 0;  // version of the library, or another number that tells its kernels apart
};

/// The library number of attention whose scores go through memory.
inline constexpr int kUnfusedAttention = 15;

/// The number of a library's kernel family; 0 for one that is not known, which is then taken as
/// the FlashAttention of its architecture.
int attention_library(std::string_view framework, std::string_view kernel);

/// The kind a shape belongs to: its phase, and the library that runs it.
LibraryKernel kernel_of(const AttentionShape& shape);

KernelEstimate estimate(const Device& device, const AttentionShape& shape);

/// Throws nothing; a device without constants for the phase gives a cost with time 0.
Cost attention_shape_cost(const Device& device, const AttentionShape& shape);

}  // namespace gputwin
