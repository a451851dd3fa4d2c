// Runs a plan for real on the GPUs of this machine. The header needs no CUDA; a build without it
// has no_cuda.cpp, which refuses.
#pragma once

#include "sim/core/executor.h"
#include "validation/executors/cuda/cuda_options.h"

namespace gputwin::executors {

/// Throws InputError where this build has no CUDA or this machine no GPU.
void need_cuda();

/// Why the GPUs of this machine cannot run `plan`, if so: kernels or formats without one here, or
/// too little memory. Throws InputError for more ranks than GPUs.
std::optional<Infeasible> cuda_obstacle(const Plan& plan);

/// Every rank is a thread that issues to a GPU of its own. Times are those of CUDA's events; a
/// collective or message counts from the arrival of its rank. Costs, topology, jitter and the
/// slowdown of ranks are not used.
///
/// Errors  InputError where ranks share a GPU or a call of CUDA, cuBLASLt or NCCL fails, with its
///         name and the task; Fault where work of the host's processor refuses its operands. When
///         nothing has ended for the time-out, communicators are aborted and a Deadlock names who
///         waits; what does not end for another time-out keeps its thread and the run's memory.
class CudaExecutor final : public Executor {
 public:
  explicit CudaExecutor(CudaOptions options) : options_(std::move(options)) {}
  ExecutionOutcome run(const Plan& plan, const CostModel& costs, const Topology& topology,
                       const RunOptions& options, EventSink* sink) override;
  /// As above; a real run needs nothing but the plan.
  ExecutionOutcome run(const Plan& plan, EventSink* sink);
  const CudaValues& values() const { return values_; }

 private:
  CudaOptions options_;
  CudaValues values_;
};

}  // namespace gputwin::executors
