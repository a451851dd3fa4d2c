// One GPU as a plan's walker needs it: streams, events, memory, copies, waiting with a limit.
// Errors throw DeviceError. Objects give back what they hold when they go out of scope.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "validation/executors/cuda/check.h"

namespace gputwin::cuda {

/// GPUs of this machine; 0 where there is no driver.
int device_count();

/// Makes `device` the calling thread's; refuses one that is not there.
void use_device(int device);

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(Stream&& other) noexcept : stream_(other.stream_) { other.stream_ = nullptr; }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  bool idle() const;

 private:
  cudaStream_t stream_ = nullptr;
};

/// Record and Wait of a plan, and the two ends of a timed instruction.
class Event {
 public:
  Event();
  ~Event();
  Event(Event&& other) noexcept : event_(other.event_) { other.event_ = nullptr; }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(const Stream& stream);
  void wait_on(const Stream& stream) const;  // `stream` goes on after the latest record
  bool done() const;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Device time between two records that are done.
double seconds_between(const Event& start, const Event& end);

/// Blocks the host until `event` is done. After `limit_s` throws DeviceError "`what` did not end
/// within … s"; the stream is left as it is, for nothing can stop a kernel that hangs.
void wait(const Event& event, double limit_s, const std::string& what);

/// All of a rank's device memory, taken once; parts are handed out by offset, aligned to 256 bytes.
class Arena {
 public:
  explicit Arena(std::size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  /// The next `bytes`; DeviceError says by how much the arena is too small.
  void* take(std::size_t bytes);
  void* data() const { return memory_; }
  std::size_t used() const { return used_; }
  std::size_t capacity() const { return bytes_; }
  void reset() { used_ = 0; }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0, used_ = 0;
};

/// Host memory for copies, page-locked unless `pinned` is false.
class HostBuffer {
 public:
  HostBuffer(std::size_t bytes, bool pinned);
  ~HostBuffer();
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  void* data() { return pinned_ ? memory_ : pageable_.data(); }
  float* floats() { return static_cast<float*>(data()); }

 private:
  bool pinned_;
  void* memory_ = nullptr;
  std::vector<std::byte> pageable_;
};

void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, const Stream& stream);

}  // namespace gputwin::cuda
