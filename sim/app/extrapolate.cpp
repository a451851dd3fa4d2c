#include "sim/app/extrapolate.h"

#include <cmath>

namespace gputwin {
namespace {

Scenario with_micro_batches(const Scenario& scenario, std::int64_t count) {
  Scenario changed = scenario;
  changed.job.global_batch = count * scenario.layout.micro_batch * scenario.layout.dp;
  return changed;
}

// Value at `count` micro-batches of the line through `few` at n and `more` at 1.5 n.
class Line {
 public:
  Line(std::int64_t n, std::int64_t count)
      : steps_(static_cast<double>(count - n) / (static_cast<double>(n) / 2)) {}
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

}  // namespace

RunOutcome run_extrapolated(const Scenario& scenario, const RunRequest& request) {
  const Layout& l = scenario.layout;
  const std::int64_t step = l.micro_batch * l.dp;
  const std::int64_t count = step > 0 ? scenario.job.global_batch / step : 0;
  const std::int64_t few = 2 * std::int64_t{l.pp}, more = 3 * std::int64_t{l.pp};
  const bool whole = step > 0 && scenario.job.global_batch % step == 0;
  if (!whole || count <= 4 * std::int64_t{l.pp} || scenario.what_if.jitter) {
    return run(scenario, request);
  }
  RunOutcome first = run(with_micro_batches(scenario, few), request);
  if (!std::holds_alternative<RunResult>(first)) return first;
  RunOutcome second = run(with_micro_batches(scenario, more), request);
  if (!std::holds_alternative<RunResult>(second)) return second;
  RunResult& result = std::get<RunResult>(first);
  RunResult& other = std::get<RunResult>(second);
  const Line line(few, count);
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
