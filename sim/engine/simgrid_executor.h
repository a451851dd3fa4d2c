// The simulator: the stream core driven by SimGrid, whose Engine::run() is the only loop and whose
// clock is the only clock.
#pragma once

#include "sim/core/executor.h"

namespace gputwin {

/// Runs plans on SimGrid. SimGrid allows one engine per process, so all executors of a process
/// share it and run one after the other, never from two threads; its clock goes on from run to run.
class SimgridExecutor final : public Executor {
 public:
  ExecutionOutcome run(const Plan& plan, const CostModel& costs, const Topology& topology,
                       const RunOptions& options, EventSink* sink) override;
};

}  // namespace gputwin
