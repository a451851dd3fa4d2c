// A second oracle, for tiny plans: every task is an Exec or Comm of SimGrid, every host thread and
// every stream an actor. It shares no code with the stream core, and links are shared by SimGrid's
// own solver.
#pragma once

#include "sim/core/executor.h"

namespace gputwin::test {

/// Runs plans of at most 16 ranks, one after the other, on the one SimGrid engine of this process;
/// times are relative to the start of each run. Fills iteration, makespan, rank_end and last_rank
/// of the Execution. A deadlock is reported by the number of blocked ranks alone, and no further
/// plan may be run after one.
class WholeSimgridExecutor final : public Executor {
 public:
  ExecutionOutcome run(const Plan& plan, const CostModel& costs, const Topology& topology,
                       const RunOptions& options, EventSink* sink) override;
};

}  // namespace gputwin::test
