// What a run on GPUs is asked for and yields; without a header of CUDA.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "validation/executors/interpreter/interpreter.h"

namespace gputwin::executors {

struct CudaOptions {
  int bodies = 3;                          // the first warms up and is not counted
  double time_out_s = 60;                  // nothing has ended for so long: report who waits
  std::vector<int> gpus;                   // by rank; empty: rank r on GPU r
  std::function<bool(double)> progress{};  // part done; false cancels. Called by run()'s thread
  double time_limit_s = 0;                 // wall clock of all bodies; 0: none
  bool read_values = false;                // gradients and weights at the end, not the loss alone
  InterpretOptions values{};               // initial values and the optimizer's constants
};

/// Clock and power of a GPU while a run lasted, from NVML; no samples where there is no NVML.
struct GpuState {
  std::string name;
  int samples = 0;
  double least_MHz = 0, most_MHz = 0, mean_W = 0;  // of the SM clock; of the board
};

struct CudaValues {
  double loss = 0.0;           // of the last body, over the global batch
  Results results;             // with CudaOptions::read_values
  std::vector<Ps> iterations;  // of bodies after the first
  Bytes peak{};                // GPU memory of all ranks, taken before the run
  std::vector<GpuState> gpus;  // by rank
  bool hung = false;           // something on a GPU never ended; the run's memory stays
};

}  // namespace gputwin::executors
