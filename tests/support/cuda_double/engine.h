// The streams of the double and how they move. For the files of the double and nobody else.
#pragma once

#include <functional>
#include <mutex>
#include <string>

#include "tests/support/cuda_double/cuda_double.h"
#include "validation/executors/cuda/check.h"

namespace gputwin::cuda_double {

/// Everything of the double happens under it.
std::recursive_mutex& mutex();
const Script& script();
/// Notes a call. True if the script lets it fail; else `created` objects are alive more.
bool fails(const char* name, int created = 0);
void wrong(const std::string& what);

/// Puts work into a stream's queue; `step` is tried until it gives true. False: the stream is not
/// of the calling thread's GPU.
bool enqueue(cudaStream_t stream, const std::string& what, std::function<bool()> step);
/// Work that is done in one step.
template <class F>
bool enqueue_now(cudaStream_t stream, const std::string& what, F work) {
  return enqueue(stream, what, [work] {
    work();
    return true;
  });
}
/// Tries the head of each stream, or not, by chance.
void advance();
int current_device();

/// BF16 and F32 by cudaDataType and ncclDataType alike.
float element(const void* data, std::int64_t index, bool bf16);
void set_element(void* data, std::int64_t index, bool bf16, float value);

}  // namespace gputwin::cuda_double
