#include "validation/executors/cuda/device.h"

#include <chrono>
#include <thread>

namespace gputwin::cuda {

int device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) return 0;
  check(status, "cudaGetDeviceCount");
  return count;
}

void use_device(int device) {
  const int count = device_count();
  if (device < 0 || device >= count) {
    throw DeviceError("there is no GPU " + std::to_string(device) + ": this machine has " +
                      std::to_string(count));
  }
  GPUTWIN_CUDA(cudaSetDevice(device));
}

Stream::Stream() { GPUTWIN_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }

// Destructors must not throw: a failure here follows one that has been reported.
Stream::~Stream() {
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
}

bool Stream::idle() const {
  const cudaError_t status = cudaStreamQuery(stream_);
  if (status == cudaErrorNotReady) return false;
  check(status, "cudaStreamQuery");
  return true;
}

Event::Event() { GPUTWIN_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDefault)); }

Event::~Event() {
  if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
}

void Event::record(const Stream& stream) { GPUTWIN_CUDA(cudaEventRecord(event_, stream.get())); }

void Event::wait_on(const Stream& stream) const {
  GPUTWIN_CUDA(cudaStreamWaitEvent(stream.get(), event_, 0));
}

bool Event::done() const {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) return false;
  check(status, "cudaEventQuery");
  return true;
}

double seconds_between(const Event& start, const Event& end) {
  float milliseconds = 0;
  GPUTWIN_CUDA(cudaEventElapsedTime(&milliseconds, start.get(), end.get()));
  return static_cast<double>(milliseconds) * 1e-3;
}

void wait(const Event& event, double limit_s, const std::string& what) {
  const auto start = std::chrono::steady_clock::now();
  while (!event.done()) {
    const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - start;
    if (gone.count() > limit_s) {
      throw DeviceError(what + " did not end within " + std::to_string(limit_s) + " s");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

Arena::Arena(std::size_t bytes) : bytes_(bytes) { GPUTWIN_CUDA(cudaMalloc(&memory_, bytes)); }

Arena::~Arena() { static_cast<void>(cudaFree(memory_)); }

void* Arena::take(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;  // what cudaMalloc gives, and cuBLASLt is fastest with
  const std::size_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (padded > bytes_ - used_) {
    throw DeviceError("the arena of " + std::to_string(bytes_) + " bytes is " +
                      std::to_string(padded - (bytes_ - used_)) + " bytes too small");
  }
  void* const place = static_cast<std::byte*>(memory_) + used_;
  used_ += padded;
  return place;
}

HostBuffer::HostBuffer(std::size_t bytes, bool pinned) : pinned_(pinned) {
  if (pinned_) {
    GPUTWIN_CUDA(cudaMallocHost(&memory_, bytes));
  } else {
    pageable_.resize(bytes);
  }
}

HostBuffer::~HostBuffer() {
  if (memory_ != nullptr) static_cast<void>(cudaFreeHost(memory_));
}

void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
          const Stream& stream) {
  GPUTWIN_CUDA(cudaMemcpyAsync(to, from, bytes, kind, stream.get()));
}

}  // namespace gputwin::cuda
