#include "sim/app/extrapolate.h"

#include <cmath>

namespace gputwin {
namespace {

Scenario with_micro_batches(const Scenario& scenario, std::int64_t count) {
  Scenario changed = scenario;
  changed.job.global_batch = count * scenario.layout.micro_batch * scenario.layout.dp;
  return changed;
}

// Value at `count` micro-batches of the line through `few` at n and `more` at n + step.
class Line {
 public:
  Line(std::int64_t n, std::int64_t step, std::int64_t count)
      : steps_(static_cast<double>(count - n) / static_cast<double>(step)) {}
  Ps time(Ps few, Ps more) const {
    return few + std::llround(steps_ * static_cast<double>(more - few));
  }
  Seconds seconds(Seconds few, Seconds more) const { return few + (more - few) * steps_; }

 private:
  double steps_;
};

void extend(Execution& few, const Execution& more, const Line& line) {
  few.iteration = line.time(few.iteration, more.iteration);
  few.makespan = line.time(few.makespan, more.makespan);
  for (std::size_t r = 0; r < few.rank_end.size(); ++r) {
    few.rank_end[r] = line.time(few.rank_end[r], more.rank_end[r]);
  }
  for (std::size_t r = 0; r < few.breakdown.size(); ++r) {
    for (std::size_t p = 0; p < kParts; ++p) {
      few.breakdown[r][p] = line.time(few.breakdown[r][p], more.breakdown[r][p]);
    }
  }
  few.engine.tasks += more.engine.tasks;
  few.engine.instructions += more.engine.instructions;
  few.engine.flows += more.engine.flows;
  few.engine.simgrid_flows += more.engine.simgrid_flows;
}

// Rates are per time: those of `few` hold for its own batch and time.
void rescale(RunResult& result, double batch, double time) {
  for (double* rate : {&result.tokens_per_s, &result.samples_per_s, &result.model_tflops_per_gpu,
                       &result.hardware_tflops_per_gpu, &result.mfu, &result.hfu}) {
    *rate *= batch / time;
  }
}

// A stage with more to compute between the two than the time between them has put some off: weight
// gradients that zero-bubble schedules leave for later, by rules that follow no line.
bool puts_work_off(const Execution& few, const Execution& more) {
  constexpr auto kCompute = static_cast<std::size_t>(Part::Compute);
  constexpr double kRounding = 1e-4;
  const auto apart = static_cast<double>(more.iteration - few.iteration);
  for (std::size_t r = 0; r < few.breakdown.size(); ++r) {
    const Ps work = more.breakdown[r][kCompute] - few.breakdown[r][kCompute];
    if (static_cast<double>(work) > apart * (1.0 + kRounding)) return true;
  }
  return false;
}

}  // namespace

RunOutcome run_extrapolated(const Scenario& scenario, const RunRequest& request) {
  const Layout& l = scenario.layout;
  const std::int64_t step = l.micro_batch * l.dp;
  const std::int64_t count = step > 0 ? scenario.job.global_batch / step : 0;
  const std::int64_t stages = l.pp;
  const bool whole = step > 0 && scenario.job.global_batch % step == 0;
  // Which slots are taken anew settles after some micro-batches; a strategy that chooses what
  // leaves may choose otherwise for more of them.
  const bool swaps = l.offload.enabled;
  const bool varies = scenario.what_if.jitter || (swaps && l.offload.optimizer_share < 0);
  const std::int64_t few = (swaps ? 4 : 2) * stages, further = (swaps ? 4 : 1) * stages;
  if (!whole || count <= 2 * few || varies) return run(scenario, request);
  RunOutcome first = run(with_micro_batches(scenario, few), request);
  if (!std::holds_alternative<RunResult>(first)) return first;
  RunOutcome second = run(with_micro_batches(scenario, few + further), request);
  if (!std::holds_alternative<RunResult>(second)) return second;
  RunResult& result = std::get<RunResult>(first);
  RunResult& other = std::get<RunResult>(second);
  if (puts_work_off(result.execution, other.execution)) return run(scenario, request);
  const Line line(few, further, count);
  const double before = to_seconds(result.execution.iteration).value;
  extend(result.execution, other.execution, line);
  result.low = line.seconds(result.low, other.low);
  result.high = line.seconds(result.high, other.high);
  result.memory = std::move(other.memory);
  rescale(result, static_cast<double>(count) / static_cast<double>(few),
          to_seconds(result.execution.iteration).value / before);
  return first;
}

}  // namespace gputwin
