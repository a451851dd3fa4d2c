// In place of the GPU's side where a build has no CUDA.
#include "validation/executors/cuda/cuda_executor.h"

namespace gputwin::executors {

void need_cuda() {
  throw InputError("--executor", "", "cuda",
                   "is not in this build: nvcc, cuBLASLt or NCCL was not found, or left out",
                   "configure with -DGPUTWIN_CUDA=ON and CUDA_HOME set, or use host, simgrid or "
                   "reference");
}

std::optional<Infeasible> cuda_obstacle(const Plan&) {
  need_cuda();
  return std::nullopt;
}

ExecutionOutcome CudaExecutor::run(const Plan& plan, const CostModel&, const Topology&,
                                   const RunOptions&, EventSink* sink) {
  return run(plan, sink);
}

ExecutionOutcome CudaExecutor::run(const Plan&, EventSink*) {
  need_cuda();
  return Cancelled{};
}

}  // namespace gputwin::executors
