// Clock and power of a GPU, read while a run lasts. NVML comes with the driver: it is looked for
// when a run starts, and a run without it has no samples.
#pragma once

#include <memory>
#include <vector>

#include "validation/executors/cuda/cuda_options.h"

namespace gputwin::executors {

class GpuWatch {
 public:
  /// Of these GPUs, as CUDA counts them.
  explicit GpuWatch(const std::vector<int>& gpus);
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;
  void sample();
  const std::vector<GpuState>& states() const { return states_; }

 private:
  struct Nvml;
  std::unique_ptr<Nvml> nvml_;
  std::vector<void*> handles_;  // null: NVML does not know the GPU
  std::vector<GpuState> states_;
};

}  // namespace gputwin::executors
