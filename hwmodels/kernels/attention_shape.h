// Fused attention kernels of serving and training libraries, as the tables of benchmarks ask for
// them.
//
//   C   FLOPs of all tiles of up to 128 x 128 that mask and window leave, 2 (d + dv) for each
//       element (5/2 of it backward), or of the longest row of tiles on one SM if that is more
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
