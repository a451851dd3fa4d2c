// Elements by format, sums and maxima over a block of threads, and launching with a check.
#pragma once

#include "validation/executors/cuda/check.h"
#include "validation/executors/cuda/kernels.h"

// Tests without a GPU define both, compile the kernels for the processor, and take fewer threads.
#ifndef GPUTWIN_LAUNCH
#define GPUTWIN_LAUNCH(name, kernel, blocks, threads, stream, ...) \
  kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(__VA_ARGS__)
#define GPUTWIN_THREADS 256
#endif

namespace gputwin::cuda {

constexpr int kThreads = GPUTWIN_THREADS;
constexpr int kWarp = 32;

/// Element k from the start, as F32. The format is the same for all threads of a launch.
__device__ inline float at(const Matrix& m, std::int64_t k) {
  if (m.format == Element::Fp32) return static_cast<const float*>(m.data)[k];
  return codecs::from_bf16(static_cast<const std::uint16_t*>(m.data)[k]);
}
__device__ inline float at(const Matrix& m, std::int64_t row, std::int64_t col) {
  return at(m, row * m.ld + col);
}
/// Rounded to nearest.
__device__ inline void put(const Matrix& m, std::int64_t k, float value) {
  if (m.format == Element::Fp32) {
    static_cast<float*>(m.data)[k] = value;
  } else {
    static_cast<std::uint16_t*>(m.data)[k] = codecs::to_bf16(value);
  }
}
__device__ inline void put(const Matrix& m, std::int64_t row, std::int64_t col, float value) {
  put(m, row * m.ld + col, value);
}

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

/// This thread's element where every thread has one.
__device__ inline std::int64_t this_index() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

inline std::int64_t blocks_for(std::int64_t count) { return (count + kThreads - 1) / kThreads; }

/// Enqueues `blocks` blocks of kThreads; none: nothing. Errors name the kernel.
template <class... Formal, class... Actual>
void launch(const char* name, void (*kernel)(Formal...), std::int64_t blocks, cudaStream_t stream,
            const Actual&... arguments) {
  if (blocks == 0) return;
  GPUTWIN_LAUNCH(name, kernel, blocks, kThreads, stream, arguments...);
  check(cudaGetLastError(), name);  // a launch reports its errors apart from the call
}

}  // namespace gputwin::cuda
