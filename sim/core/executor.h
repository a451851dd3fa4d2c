// Door 2 of 3: who runs a plan. Simulators (SimGrid, reference) and real machines alike.
#pragma once

#include <variant>

#include "sim/core/cost_model.h"
#include "sim/core/error.h"
#include "sim/core/event_sink.h"
#include "sim/core/run_result.h"
#include "sim/core/topology.h"

namespace gputwin {

enum class Fold : std::uint8_t { Auto, Off };
enum class Advance : std::uint8_t { RunAhead, Calendar };  // must agree; Calendar is the simple one
enum class Transfers : std::uint8_t { SharedOnly, AllSimGrid };  // which flows become SimGrid Comms

struct RunOptions {
  Fold fold = Fold::Auto;
  Advance advance = Advance::RunAhead;
  Transfers transfers = Transfers::SharedOnly;
  double time_limit_s = 0;  // wall clock; 0: none
};

struct Cancelled {};

using ExecutionOutcome = std::variant<Execution, Deadlock, Cancelled>;

class Executor {
 public:
  virtual ~Executor() = default;
  /// Runs `plan` on `topology` with the durations of `costs`. `sink` may be null.
  virtual ExecutionOutcome run(const Plan& plan, const CostModel& costs, const Topology& topology,
                               const RunOptions& options, EventSink* sink) = 0;
};

}  // namespace gputwin
