#include "validation/executors/cuda/gpu_state.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>

#include "validation/executors/cuda/device.h"

namespace gputwin::executors {

/// The few functions of nvml.h that are used; the header is not part of every CUDA installation.
/// All give 0 where they succeed.
struct GpuWatch::Nvml {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  int (*init)() = symbol<int()>("nvmlInit_v2");
  int (*shutdown)() = symbol<int()>("nvmlShutdown");
  int (*by_bus)(const char*,
                void**) = symbol<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
  int (*clock)(void*, int,
               unsigned*) = symbol<int(void*, int, unsigned*)>("nvmlDeviceGetClockInfo");
  int (*power)(void*, unsigned*) = symbol<int(void*, unsigned*)>("nvmlDeviceGetPowerUsage");
  bool usable = false;

  Nvml() { usable = init && shutdown && by_bus && clock && power && init() == 0; }
  ~Nvml() {
    if (usable) shutdown();
    if (library != nullptr) dlclose(library);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  template <class Function>
  Function* symbol(const char* name) const {
    return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
  }
};

GpuWatch::GpuWatch(const std::vector<int>& gpus) : nvml_(std::make_unique<Nvml>()) {
  for (const int gpu : gpus) {
    std::array<char, 64> bus{};
    GPUTWIN_CUDA(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), gpu));
    void* handle = nullptr;
    const bool known = nvml_->usable && nvml_->by_bus(bus.data(), &handle) == 0;
    handles_.push_back(known ? handle : nullptr);
    states_.emplace_back().name = bus.data();
  }
}

GpuWatch::~GpuWatch() = default;

void GpuWatch::sample() {
  constexpr int kSmClock = 1;
  constexpr double kMilli = 1e-3;
  for (std::size_t g = 0; g < handles_.size(); ++g) {
    unsigned clock = 0, power = 0;
    if (handles_[g] == nullptr || nvml_->clock(handles_[g], kSmClock, &clock) != 0 ||
        nvml_->power(handles_[g], &power) != 0) {
      continue;
    }
    GpuState& state = states_[g];
    state.least_MHz = state.samples == 0 ? clock : std::min<double>(state.least_MHz, clock);
    state.most_MHz = std::max<double>(state.most_MHz, clock);
    state.mean_W += (power * kMilli - state.mean_W) / (state.samples + 1);
    ++state.samples;
  }
}

}  // namespace gputwin::executors
