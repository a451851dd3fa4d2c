// The CUDA runtime of the double: devices, memory, streams, events.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>

#include "tests/support/cuda_double/engine.h"
#include "validation/codecs/element.h"

namespace gputwin::cuda_double {

namespace {

struct Work {
  std::string what;
  std::function<bool()> step;
};
struct FakeStream {
  int number = 0, device = 0;
  std::deque<Work> queue;
  bool hangs = false;
};
struct Event {
  std::uint64_t recorded = 0, done = 0;
  std::uint64_t at = 0;  // when the last record was reached
};
/// What a handle points to: queued work keeps the event itself.
struct FakeEvent {
  int device = 0;
  std::shared_ptr<Event> event = std::make_shared<Event>();
};

struct World {
  Script script;
  std::vector<std::string> made, wrongs;
  std::map<std::string, int> times;  // by call
  std::vector<Issued> issued;
  std::vector<FakeStream*> streams;
  int objects = 0, streams_made = 0;
  std::uint64_t clock = 0;
  std::mt19937_64 chance;
};

World& world() {
  static World the;
  return the;
}

thread_local int device_of_thread = 0;

FakeStream& of(cudaStream_t stream) { return *reinterpret_cast<FakeStream*>(stream); }
FakeEvent& of(cudaEvent_t event) { return *reinterpret_cast<FakeEvent*>(event); }

cudaError_t cuda(const char* name, int created = 0) {
  return fails(name, created) ? cudaErrorUnknown : cudaSuccess;
}

}  // namespace

std::recursive_mutex& mutex() {
  static std::recursive_mutex the;
  return the;
}

void start(const Script& next) {
  const std::lock_guard guard(mutex());
  world() = World{};
  world().script = next;
  world().chance.seed(next.seed);
}
std::vector<std::string> calls() {
  const std::lock_guard guard(mutex());
  return world().made;
}
int alive() {
  const std::lock_guard guard(mutex());
  return world().objects;
}
std::vector<Issued> issued() {
  const std::lock_guard guard(mutex());
  return world().issued;
}
std::vector<std::string> wrongs() {
  const std::lock_guard guard(mutex());
  return world().wrongs;
}

const Script& script() { return world().script; }
int current_device() { return device_of_thread; }
void wrong(const std::string& what) { world().wrongs.push_back(what); }

bool fails(const char* name, int created) {
  World& w = world();
  w.made.emplace_back(name);
  const int time = ++w.times[name];
  const bool failed = w.script.failing == name && time >= w.script.failing_at;
  if (!failed || created < 0) w.objects += created;  // what ends a life ends it all the same
  return failed;
}

bool enqueue(cudaStream_t stream, const std::string& what, std::function<bool()> step) {
  FakeStream& s = of(stream);
  world().issued.push_back({s.number, what});
  if (s.device != device_of_thread) {
    wrong(what + " for a stream of GPU " + std::to_string(s.device) + " from a thread at GPU " +
          std::to_string(device_of_thread));
    return false;
  }
  s.queue.push_back({what, std::move(step)});
  return true;
}

void advance() {
  World& w = world();
  if (w.script.hung) return;
  std::vector<FakeStream*> order = w.streams;
  std::shuffle(order.begin(), order.end(), w.chance);
  for (FakeStream* s : order) {
    const bool rests = (w.chance() & 1u) != 0;
    if (rests || s->queue.empty()) continue;
    s->hangs |= s->number == w.script.hung_stream && s->queue.front().what == w.script.hung_at;
    if (s->hangs) continue;
    ++w.clock;
    if (s->queue.front().step()) s->queue.pop_front();
  }
}

float element(const void* data, std::int64_t index, bool bf16) {
  if (!bf16) return static_cast<const float*>(data)[index];
  return codecs::from_bf16(static_cast<const std::uint16_t*>(data)[index]);
}
void set_element(void* data, std::int64_t index, bool bf16, float value) {
  if (bf16) {
    static_cast<std::uint16_t*>(data)[index] = codecs::to_bf16(value);
  } else {
    static_cast<float*>(data)[index] = value;
  }
}

}  // namespace gputwin::cuda_double

using namespace gputwin::cuda_double;
using Guard = std::lock_guard<std::recursive_mutex>;

namespace {

cudaError_t record(cudaEvent_t event, cudaStream_t stream) {
  const auto kept = of(event).event;
  const std::uint64_t version = ++kept->recorded;
  if (of(event).device != of(stream).device) wrong("an event of another GPU is recorded");
  const bool taken = enqueue_now(stream, "record", [kept, version] {
    kept->done = std::max(kept->done, version);
    kept->at = world().clock;
  });
  return taken ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

/// Fresh memory holds NaN, whatever is read there before it is written; not so large workspaces.
cudaError_t taken(const char* name, void** place, std::size_t bytes) {
  if (fails(name, 1)) return cudaErrorMemoryAllocation;
  *place = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (bytes < (std::size_t{16} << 20)) std::memset(*place, 0xff, bytes);
  return cudaSuccess;
}

}  // namespace

extern "C" {

const char* cudaGetErrorName(cudaError_t) { return "cudaErrorUnknown"; }
const char* cudaGetErrorString(cudaError_t) { return "unknown error"; }

cudaError_t cudaGetDeviceCount(int* count) {
  const Guard guard(mutex());
  *count = script().devices;
  return script().devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) {
  const Guard guard(mutex());
  device_of_thread = device;
  return cuda("cudaSetDevice");
}
cudaError_t cudaDeviceGetPCIBusId(char* name, int size, int device) {
  const Guard guard(mutex());
  std::strncpy(name, ("0000:0" + std::to_string(device) + ":00.0").c_str(),
               static_cast<std::size_t>(size));
  return cuda("cudaDeviceGetPCIBusId");
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const Guard guard(mutex());
  *free = *total = static_cast<std::size_t>(script().free_bytes);
  return cuda("cudaMemGetInfo");
}
cudaError_t cudaGetLastError() {
  const Guard guard(mutex());
  return cuda("cudaGetLastError");
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Guard guard(mutex());
  const cudaError_t status = cuda("cudaStreamCreateWithFlags", 1);
  if (status != cudaSuccess) return status;
  auto* const made = new FakeStream{++world().streams_made, device_of_thread, {}};
  world().streams.push_back(made);
  *stream = reinterpret_cast<cudaStream_t>(made);
  return status;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Guard guard(mutex());
  if (!script().hung && !of(stream).queue.empty()) wrong("a stream is destroyed with work in it");
  std::erase(world().streams, &of(stream));
  delete &of(stream);
  return cuda("cudaStreamDestroy", -1);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Guard guard(mutex());
  constexpr int kRounds = 64;  // who asks for a stream waits for all of it
  for (int k = 0; k < kRounds && !of(stream).queue.empty(); ++k) advance();
  return of(stream).queue.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const Guard guard(mutex());
  const cudaError_t status = cuda("cudaEventCreateWithFlags", 1);
  if (status == cudaSuccess) {
    *event = reinterpret_cast<cudaEvent_t>(new FakeEvent{device_of_thread});
  }
  return status;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Guard guard(mutex());
  delete &of(event);
  return cuda("cudaEventDestroy", -1);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Guard guard(mutex());
  const cudaError_t status = cuda("cudaEventRecord");
  return status == cudaSuccess ? record(event, stream) : status;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Guard guard(mutex());
  const cudaError_t status = cuda("cudaStreamWaitEvent");
  if (status != cudaSuccess) return status;
  const auto kept = of(event).event;
  const bool taken =
      enqueue(stream, "wait", [kept, version = kept->recorded] { return kept->done >= version; });
  return taken ? cudaSuccess : cudaErrorInvalidResourceHandle;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Guard guard(mutex());
  if (world().script.failing == "cudaEventQuery" &&
      ++world().times["cudaEventQuery"] >= world().script.failing_at) {
    return cudaErrorUnknown;
  }
  const Event& e = *of(event).event;
  if (e.done < e.recorded) advance();
  return e.done < e.recorded ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const Guard guard(mutex());
  const auto ticks =
      static_cast<std::int64_t>(of(end).event->at) - static_cast<std::int64_t>(of(start).event->at);
  *milliseconds = static_cast<float>(ticks) * 1e-3f;
  return cuda("cudaEventElapsedTime");
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  const Guard guard(mutex());
  const cudaError_t status = cuda("cudaLaunchHostFunc");
  if (status != cudaSuccess) return status;
  enqueue_now(stream, "host", [=] { function(data); });
  return status;
}

cudaError_t cudaMalloc(void** place, std::size_t bytes) {
  const Guard guard(mutex());
  return taken("cudaMalloc", place, bytes);
}
cudaError_t cudaFree(void* place) {
  const Guard guard(mutex());
  std::free(place);
  return cuda("cudaFree", -1);
}
cudaError_t cudaMallocHost(void** place, std::size_t bytes) {
  const Guard guard(mutex());
  return taken("cudaMallocHost", place, bytes);
}
cudaError_t cudaFreeHost(void* place) {
  const Guard guard(mutex());
  std::free(place);
  return cuda("cudaFreeHost", -1);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Guard guard(mutex());
  const cudaError_t status = cuda("cudaMemcpyAsync");
  if (status != cudaSuccess) return status;
  // Pageable memory is read before the call returns.
  const auto* const first = static_cast<const std::byte*>(from);
  const auto staged = std::make_shared<std::vector<std::byte>>();
  if (kind == cudaMemcpyHostToDevice) staged->assign(first, first + bytes);
  enqueue_now(stream, "copy",
              [=] { std::memcpy(to, staged->empty() ? first : staged->data(), bytes); });
  return status;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t rows,
                              cudaMemcpyKind, cudaStream_t stream) {
  const Guard guard(mutex());
  const cudaError_t status = cuda("cudaMemcpy2DAsync");
  if (status != cudaSuccess) return status;
  enqueue_now(stream, "copy", [=] {
    for (std::size_t r = 0; r < rows; ++r) {
      std::memcpy(static_cast<char*>(to) + r * to_pitch,
                  static_cast<const char*>(from) + r * from_pitch, width);
    }
  });
  return status;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  const Guard guard(mutex());
  const cudaError_t status = cuda("cudaMemsetAsync");
  if (status != cudaSuccess) return status;
  enqueue_now(stream, "set", [=] { std::memset(to, value, bytes); });
  return status;
}
cudaError_t cudaMemset2DAsync(void* to, std::size_t pitch, int value, std::size_t width,
                              std::size_t rows, cudaStream_t stream) {
  const Guard guard(mutex());
  const cudaError_t status = cuda("cudaMemset2DAsync");
  if (status != cudaSuccess) return status;
  enqueue_now(stream, "set", [=] {
    for (std::size_t r = 0; r < rows; ++r) {
      std::memset(static_cast<char*>(to) + r * pitch, value, width);
    }
  });
  return status;
}

}  // extern "C"
