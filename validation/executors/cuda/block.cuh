// Sums and maxima over a block of threads, and launching with a check.
#pragma once

#include "validation/executors/cuda/check.h"

namespace gputwin::cuda {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

/// Both give the result to all threads of a block of kThreads, in a fixed order.
template <class Join>
__device__ float over_block(float value, float neutral, Join join) {
  __shared__ float parts[kThreads / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = join(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  __syncthreads();  // the last use of `parts` is over
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
  __syncthreads();
  float all = neutral;
  for (int k = 0; k < kThreads / kWarp; ++k) all = join(all, parts[k]);
  return all;
}

__device__ inline float block_sum(float value) {
  return over_block(value, 0.0f, [](float a, float b) { return a + b; });
}

__device__ inline float block_max(float value) {
  return over_block(value, -INFINITY, [](float a, float b) { return fmaxf(a, b); });
}

inline unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

/// A launch reports its errors apart from the call.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

}  // namespace gputwin::cuda
