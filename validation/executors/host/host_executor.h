// Runs a plan for real on this computer. Times are those of the wall clock.
#pragma once

#include "sim/core/executor.h"
#include "validation/executors/host/host_machine.h"

namespace gputwin::executors {

/// Bytes that a run of `plan` needs here: the peaks of all ranks and arenas, and while initial
/// values are made as doubles, what those take.
Bytes host_bytes(const Plan& plan);

/// Why this computer cannot run `plan`, if so: kernels or formats without a definition here, or
/// more than `limit` bytes.
std::optional<Infeasible> host_obstacle(const Plan& plan, Bytes limit);

/// Half of this computer's memory.
Bytes host_memory_limit();

/// What a real run yields besides times.
struct HostValues {
  double loss = 0.0;           // of the last body, over the global batch
  Results results;             // with HostOptions::read_values
  std::vector<Ps> iterations;  // of bodies after the first
  Bytes peak{};                // of all ranks
  bool hung = false;           // a task never ended; its thread lives until the process ends
};

/// Every rank is a thread that issues, every stream a thread that works. Costs, topology, jitter
/// and the slowdown of ranks are not used: the computer decides. Throws Fault where a kernel
/// refuses its operands; a rank that waits for too long ends the run with a Deadlock that names who
/// waits. A task that does not end within another time-out keeps its thread and the memory of the
/// run, and the Deadlock names it.
class HostExecutor final : public Executor {
 public:
  explicit HostExecutor(HostOptions options) : options_(std::move(options)) {}
  ExecutionOutcome run(const Plan& plan, const CostModel& costs, const Topology& topology,
                       const RunOptions& options, EventSink* sink) override;
  /// As above; a real run needs nothing but the plan.
  ExecutionOutcome run(const Plan& plan, EventSink* sink);
  const HostValues& values() const { return values_; }

 private:
  HostOptions options_;
  HostValues values_;
};

}  // namespace gputwin::executors
