// The oracle: a plan run as a longest path, as if every transfer had its links to itself.
//
// Written to be read, not to be fast: every instruction goes through one calendar of closures,
// every rank is simulated, nothing is shared between ranks. The stream core must agree with it
// wherever nothing contends.
#pragma once

#include "sim/core/executor.h"

namespace gputwin {

class ReferenceExecutor final : public Executor {
 public:
  /// Ignores `options.fold`, `advance` and `transfers`: they choose among ways to get these same
  /// figures.
  ExecutionOutcome run(const Plan& plan, const CostModel& costs, const Topology& topology,
                       const RunOptions& options, EventSink* sink) override;
};

/// Bytes of one side of a communication or copy: the larger of what it reads and what it writes, as
/// said by its views; by its op's element count where it has none.
Bytes transfer_bytes(const Call& call);

}  // namespace gputwin
