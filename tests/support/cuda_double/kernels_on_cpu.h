// Included ahead of a .cu file that a C++ compiler reads: what nvcc gives a kernel, on the
// processor. A block's threads are fibers that take turns between its barriers; blocks follow each
// other. Races inside a block, warps that diverge at a barrier, and what a GPU rounds, are not
// seen.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <functional>
#include <string>
#include <type_traits>

// One block runs at a time: what its threads share is what the function's calls share.
#undef __shared__
#define __shared__ static

namespace gputwin::cuda_double {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
/// Puts a launch into a stream. Each thread of each block calls `body` once.
void launch(const char* name, std::int64_t blocks, int threads, cudaStream_t stream,
            std::function<void()> body);
/// Returns when all threads of the block are here.
void barrier();
float from_lane(float value, int lane_mask);

template <class... Formal, class... Actual>
void launch_kernel(const char* name, void (*kernel)(Formal...), std::int64_t blocks, int threads,
                   cudaStream_t stream, const Actual&... arguments) {
  launch(name, blocks, threads, stream, [=] { kernel(arguments...); });
}

}  // namespace gputwin::cuda_double

#define GPUTWIN_THREADS 64
#define GPUTWIN_LAUNCH ::gputwin::cuda_double::launch_kernel

inline gputwin::cuda_double::Index threadIdx, blockIdx, gridDim;  // of the fiber that runs

inline void __syncthreads() { gputwin::cuda_double::barrier(); }
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  return gputwin::cuda_double::from_lane(value, mask);
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float atomicAdd(float* place, float value) {
  const float before = *place;
  *place += value;
  return before;
}
