// The codecs by token on a GPU: the same payloads, byte for byte, as on the processor.
#pragma once

#include <stdexcept>

#include "sim/core/codec.h"
#include "validation/codecs/cpu_codec.h"

struct CUstream_st;

namespace gputwin::codecs {

/// A call of the CUDA runtime that failed, with its name and CUDA's words.
struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// GPUs that can be used; 0 where there is no driver.
int cuda_devices();

/// Bytes on the current GPU.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t size);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  void* data() const { return data_; }
  void from_host(const void* source);
  void to_host(void* target) const;

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// As encode, decode and accumulate of cpu_codec.h, with pointers to memory of the GPU, in the
/// order of `stream`. One block per token: radix select of the k-th magnitude, ordered compaction,
/// break, codes, bits. The token's values stand in shared memory. Fails   CudaError; GPUTWIN_CHECK
/// if the codec is unfit.
void cuda_encode(const Codec& codec, const TensorView& x, std::uint8_t* payload,
                 CUstream_st* stream = nullptr);
void cuda_decode(const Codec& codec, const std::uint8_t* payload, Element element,
                 std::int64_t tokens, std::int64_t width, float* out,
                 CUstream_st* stream = nullptr);
void cuda_accumulate(const Codec& codec, const std::uint8_t* payload, Element element,
                     std::int64_t tokens, std::int64_t width, float* out,
                     CUstream_st* stream = nullptr);

}  // namespace gputwin::codecs
