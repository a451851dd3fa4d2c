#include "sim/app/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "hwmodels/flops.h"
#include "hwmodels/hardware_model.h"
#include "sim/app/data_directory.h"
#include "sim/app/describe.h"
#include "sim/app/fitting.h"
#include "sim/app/memory_figures.h"
#include "sim/app/offload_figures.h"
#include "sim/app/pass_comparison.h"
#include "sim/app/pass_figures.h"
#include "sim/app/power.h"
#include "sim/app/result_json.h"
#include "sim/app/uncertainty.h"
#include "sim/engine/reference_executor.h"
#include "sim/engine/simgrid_executor.h"
#include "sim/trace/atomic_file.h"
#include "sim/trace/gtr_file.h"
#include "sim/trace/perfetto_writer.h"
#include "sim/trace/run_trace.h"
#include "strategies/strategy.h"

namespace gputwin {
namespace {

/// Hands every event to two sinks: the trace and the caller's.
class BothSinks final : public EventSink {
 public:
  BothSinks(EventSink& first, EventSink* second) : first_(first), second_(second) {}
  void op(const OpEvent& e) override {
    first_.op(e);
    if (second_ != nullptr) second_->op(e);
  }
  void flow(RankId from, RankId to, Bytes bytes, const Route& route, Ps start, Ps end) override {
    first_.flow(from, to, bytes, route, start, end);
    if (second_ != nullptr) second_->flow(from, to, bytes, route, start, end);
  }
  bool progress(double fraction) override {
    first_failed_ = !first_.progress(fraction);
    const bool second = second_ == nullptr || second_->progress(fraction);
    return !first_failed_ && second;
  }
  bool first_failed() const { return first_failed_; }

 private:
  EventSink& first_;
  EventSink* second_;
  bool first_failed_ = false;
};

/// The timeline a run writes, in the format its name asks for; or nothing.
class TraceFile {
 public:
  TraceFile(const RunRequest& request, const Scenario& scenario, const Plan& plan,
            const Topology& topology, const HardwareModel& costs, std::vector<RankId> ranks)
      : path_(request.trace) {
    if (path_.empty()) return;
    PowerSource power = power_source(plan, topology, costs);
    if (path_.extension() == ".gtr") {
      AtomicFile probe(path_);  // a name that cannot be written is said before the run
      columns_ = std::make_unique<RunTrace>(plan, topology, std::move(ranks), std::move(power));
    } else {
      events_ = std::make_unique<PerfettoWriter>(
          path_, plan, topology, std::move(ranks),
          PerfettoOptions{.title = scenario.name, .power = std::move(power)});
    }
    EventSink& own = columns_ ? static_cast<EventSink&>(*columns_) : *events_;
    both_ = std::make_unique<BothSinks>(own, request.sink);
  }
  /// Where events go: to the trace and `other`, or to `other` alone.
  EventSink* sink(EventSink* other) { return both_ ? both_.get() : other; }
  bool failed() const { return both_ && both_->first_failed(); }
  /// Ends a trace that is written as the run goes.
  void close() {
    if (events_) events_->close();
  }
  void close(const Scenario& scenario, const RunResult& result) {
    if (!columns_) return;
    const std::string figures = result_json(result, describe(scenario).flops_convention);
    write_gtr(columns_->finish(scenario.name, scenario.resolved, figures), path_);
  }

 private:
  std::filesystem::path path_;
  std::unique_ptr<PerfettoWriter> events_;
  std::unique_ptr<RunTrace> columns_;
  std::unique_ptr<BothSinks> both_;
};

void apply_what_if(const WhatIf& what_if, Plan& plan) {
  for (const Straggler& s : what_if.stragglers) plan.ranks.at(s.rank.value).slowdown = s.slowdown;
  if (what_if.jitter) plan.jitter = *what_if.jitter;
}

/// Ranks worth drawing, at most `limit`: one of each program and those that differ by their speed,
/// or all.
std::vector<RankId> traced_ranks(const Plan& plan, std::size_t limit, bool all) {
  std::vector<RankId> ranks;
  std::vector<char> seen(plan.programs.size(), 0);
  for (std::uint32_t r = 0; r < plan.ranks.size() && ranks.size() < limit; ++r) {
    char& done = seen[plan.ranks[r].program.value];
    if (all || done == 0 || plan.ranks[r].slowdown != 1.0) ranks.emplace_back(r);
    done = 1;
  }
  return ranks;
}

void add_rates(const Scenario& scenario, const HardwareModel& costs, const Topology& topology,
               const Plan& plan, RunResult& result) {
  const double seconds = to_seconds(result.execution.iteration).value;
  const auto samples = static_cast<double>(scenario.job.global_batch);
  result.samples_per_s = samples / seconds;
  result.tokens_per_s = samples * static_cast<double>(scenario.job.sequence) / seconds;
  const auto* transformer = std::get_if<Transformer>(&scenario.workload);
  const auto gpus = static_cast<double>(plan.ranks.size());
  const IterationFlops flops =
      transformer != nullptr
          ? iteration_flops(*transformer, scenario.job, scenario.layout, FlopsConvention::Causal)
          : iteration_flops(std::get<LayerGraph>(scenario.workload), scenario.job, scenario.layout);
  double peak = 0;
  for (const Rank& rank : plan.ranks) {
    peak += costs.device(topology.device_kind(rank.gpu))
                .dense_peak(scenario.job.precision.compute)
                .value;
  }
  result.model_tflops_per_gpu = flops.model.value / seconds / gpus / 1e12;
  result.hardware_tflops_per_gpu = flops.hardware.value / seconds / gpus / 1e12;
  result.mfu = flops.model.value / seconds / peak;
  result.hfu = flops.hardware.value / seconds / peak;
}

void add_warnings(const HardwareModel& costs, RunResult& result) {
  const std::vector<std::string>& notes = costs.notes();
  result.warnings.insert(result.warnings.end(), notes.begin(), notes.end());
  for (const RoleMemory& role : result.memory) {
    const double used =
        static_cast<double>(role.figures.device.value) / static_cast<double>(role.capacity.value);
    if (role.capacity.value > 0 && used > 0.95) {
      result.warnings.push_back(
          fmt::format("{} fills {:.0f} % of GPU memory: a fragmented allocator or a longer "
                      "sample may not fit",
                      role.role, used * 100.0));
    }
  }
  if (result.mfu > 1) {
    result.warnings.push_back(
        "MFU is above 100 %: convolutions count as direct products, while Winograd's kernels for "
        "3 x 3 filters multiply less");
  }
  if (!result.execution.period_converged) {
    result.warnings.push_back(
        "the period still changed after eight iterations; iteration_time_s is the last one");
  }
}

std::unique_ptr<Executor> executor_of(ExecutorKind kind) {
  switch (kind) {
    case ExecutorKind::Simgrid: return std::make_unique<SimgridExecutor>();
    case ExecutorKind::Reference: break;
  }
  return std::make_unique<ReferenceExecutor>();
}

}  // namespace

Outcome<PreparedRun> prepare(const Scenario& scenario, const HardwareModel& costs,
                             const Topology& topology) {
  Outcome<Plan> outcome = plan_of(scenario, scenario.layout, costs);
  if (auto* infeasible = std::get_if<Infeasible>(&outcome)) return std::move(*infeasible);
  PreparedRun prepared{std::move(std::get<Plan>(outcome)), {}, {}};
  prepared.warnings = assumptions(scenario.layout, scenario.job);
  if (scenario.layout.ep_comm == ExpertComm::Auto) {
    const auto& groups = prepared.plan.communicators;
    const bool inside = std::any_of(groups.begin(), groups.end(), [](const Communicator& c) {
      return c.name.starts_with("ep_outer");
    });
    prepared.warnings.push_back(
        fmt::format("ep_comm auto: rows of experts are exchanged {}",
                    inside ? "within the nodes first" : "by each rank with each"));
  }
  for (const Plugin* plugin : scenario.plugins) {
    prepared.warnings.push_back(fmt::format("with plugin {}: {}", plugin->name, plugin->what));
  }
  apply_what_if(scenario.what_if, prepared.plan);
  prepared.memory = memory_of(scenario, prepared.plan, costs, topology);
  if (auto shortage = memory_shortage(prepared.plan, prepared.memory, topology)) {
    if (!scenario.what_if.unlimited_memory) {
      shortage->fix = what_fits(scenario, costs, topology);
      return std::move(*shortage);
    }
    prepared.warnings.push_back("does not fit, simulated because of what_if.unlimited_memory: " +
                                shortage->reason);
  }
  return prepared;
}

namespace {

/// Plans and simulates other layouts of the scenario, without a trace.
LayoutTrial trial_of(const Scenario& scenario, const RunRequest& request,
                     const HardwareModel& costs, const CostModel& priced,
                     const Topology& topology) {
  return [&](const Layout& layout, Plan& plan) -> Simulated {
    Outcome<Plan> made = plan_of(scenario, layout, costs);
    if (auto* infeasible = std::get_if<Infeasible>(&made)) return std::move(*infeasible);
    plan = std::move(std::get<Plan>(made));
    apply_what_if(scenario.what_if, plan);
    make_free(plan, scenario.what_if.without);
    ExecutionOutcome outcome =
        executor_of(request.executor)->run(plan, priced, topology, request.options, nullptr);
    if (auto* deadlock = std::get_if<Deadlock>(&outcome)) return std::move(*deadlock);
    if (std::holds_alternative<Cancelled>(outcome)) return Cancelled{};
    return std::move(std::get<Execution>(outcome));
  };
}

/// Of a prediction: its interval. A real machine's time is measured.
void add_interval(const RunRequest& request, const HardwareModel& costs, const CostModel& priced,
                  const Topology& topology, const Plan& plan, RunResult& result) {
  if (request.machine != nullptr) {
    result.low = result.high = to_seconds(result.execution.iteration);
    return;
  }
  const Uncertainty interval =
      uncertainty(plan, result.execution, priced, topology, costs.stack_deviation());
  result.low = interval.low;
  result.high = interval.high;
  result.extrapolated = interval.extrapolated;
}

void append(std::vector<std::string> lines, std::vector<std::string>& to) {
  std::move(lines.begin(), lines.end(), std::back_inserter(to));
}

/// Changes a layout that cannot be lowered by one key so that it can. Returns what was done; empty:
/// nothing.
std::string make_legal(Scenario& scenario, const HardwareModel& costs) {
  std::optional<LayoutChange> change = legal_change(scenario, costs);
  if (!change) return "";
  const Outcome<Plan> refused = plan_of(scenario, scenario.layout, costs);
  scenario.layout = std::move(change->layout);
  return fmt::format("changed to fit: {} ({})", change->what, std::get<Infeasible>(refused).reason);
}

/// A scenario whose passes are chosen, and its plan.
struct Decided {
  std::optional<PassFigures> passes;
  Outcome<PreparedRun> prepared;
};

/// Chooses what the passes of `scenario` leave open, into its layout, and prepares it.
std::variant<Decided, Infeasible, Deadlock, Cancelled> decide(Scenario& scenario,
                                                              const RunRequest& request,
                                                              const HardwareModel& costs,
                                                              const CostModel& priced,
                                                              const Topology& topology) {
  std::optional<PassFigures> passes;
  if (has_passes(scenario.layout)) {
    auto compared = compare_passes(scenario, costs, topology,
                                   trial_of(scenario, request, costs, priced, topology));
    if (auto* infeasible = std::get_if<Infeasible>(&compared)) return std::move(*infeasible);
    if (auto* deadlock = std::get_if<Deadlock>(&compared)) return std::move(*deadlock);
    if (std::holds_alternative<Cancelled>(compared)) return Cancelled{};
    auto& comparison = std::get<PassComparison>(compared);
    scenario.layout = std::move(comparison.layout);
    passes = std::move(comparison.figures);
  }
  return Decided{std::move(passes), prepare(scenario, costs, topology)};
}

/// As `decide`; a job that is short of memory is changed so that it fits, and its passes are chosen
/// and compared again: for the job that runs. `fitted`: what was done; empty: nothing.
std::variant<Decided, Infeasible, Deadlock, Cancelled> decide_to_fit(
    Scenario& scenario, const RunRequest& request, const HardwareModel& costs,
    const CostModel& priced, const Topology& topology, std::string& fitted) {
  const Layout asked = scenario.layout;
  auto decision = decide(scenario, request, costs, priced, topology);
  const auto* decided = std::get_if<Decided>(&decision);
  const auto* short_of = decided != nullptr ? std::get_if<Infeasible>(&decided->prepared)
                                            : std::get_if<Infeasible>(&decision);
  if (!request.fit || short_of == nullptr || !short_of->short_by) return decision;
  Scenario changed = scenario;
  changed.layout = asked;  // with its choices open
  std::optional<LayoutChange> change = cheapest_fit(changed, costs, topology);
  if (!change) return decision;
  fitted = "changed to fit: " + change->what + " (" + short_of->reason + ")";
  scenario.layout = std::move(change->layout);
  return decide(scenario, request, costs, priced, topology);
}

}  // namespace

RunOutcome run(const Scenario& as_given, const RunRequest& request) {
  Scenario scenario = as_given;
  const Topology topology(scenario.cluster);
  const WhatIf& what_if = scenario.what_if;
  const HardwareModel costs(
      topology, scenario.job, data_directory() / "hwmodels",
      without(what_if.without,
              {.times = what_if.times, .among_copies = scenario.layout.offload.enabled}));
  const AblatedCosts ablated(costs, what_if.without);
  const CostModel& priced =
      what_if.without.empty() ? static_cast<const CostModel&>(costs) : ablated;
  const std::string legal = request.fit ? make_legal(scenario, costs) : "";
  std::string fitted;
  auto decision = decide_to_fit(scenario, request, costs, priced, topology, fitted);
  if (auto* infeasible = std::get_if<Infeasible>(&decision)) return std::move(*infeasible);
  if (auto* deadlock = std::get_if<Deadlock>(&decision)) return std::move(*deadlock);
  if (std::holds_alternative<Cancelled>(decision)) return Cancelled{};
  auto& [passes, outcome] = std::get<Decided>(decision);
  if (!(legal + fitted).empty() && request.on_fit) request.on_fit(scenario.layout);
  if (auto* infeasible = std::get_if<Infeasible>(&outcome)) {
    if (!legal.empty()) infeasible->reason = legal + ", and still " + infeasible->reason;
    return std::move(*infeasible);
  }
  PreparedRun& prepared = std::get<PreparedRun>(outcome);

  make_free(prepared.plan, what_if.without);
  if (request.machine != nullptr && scenario.layout.tp_overlap == TpOverlap::FusedBound) {
    return Infeasible{.reason = "tp_overlap fused-bound is a bound, which no machine runs",
                      .fix = "set layout.tp_overlap to ring-exchange, userbuffers or async-tp"};
  }
  if (request.obstacle) {
    if (auto obstacle = request.obstacle(prepared.plan)) return std::move(*obstacle);
  }

  TraceFile trace(request, scenario, prepared.plan, topology, costs,
                  traced_ranks(prepared.plan, request.trace_ranks,
                               request.machine != nullptr || request.options.fold == Fold::Off));
  EventSink* sink = trace.sink(request.sink);
  const std::unique_ptr<Executor> simulator = executor_of(request.executor);
  Executor& executor = request.machine != nullptr ? *request.machine : *simulator;
  ExecutionOutcome executed = executor.run(prepared.plan, priced, topology, request.options, sink);
  if (auto* deadlock = std::get_if<Deadlock>(&executed)) return std::move(*deadlock);
  const bool cancelled = std::holds_alternative<Cancelled>(executed);
  if (!request.address_map.empty() && !cancelled) {
    write_file(request.address_map, address_map(prepared.plan, prepared.plan.programs.front()).svg);
  }
  // A trace that could not be written is the error to report; one of a cancelled run is dropped.
  if (!cancelled || trace.failed()) trace.close();
  if (cancelled) return Cancelled{};

  RunResult result;
  result.scenario = scenario.name;
  result.execution = std::move(std::get<Execution>(executed));
  if (contains(what_if.without, Mechanism::Bubble)) remove_bubble(result.execution);
  result.memory = std::move(prepared.memory);
  add_rates(scenario, costs, topology, prepared.plan, result);
  add_interval(request, costs, priced, topology, prepared.plan, result);
  result.warnings = std::move(prepared.warnings);
  for (const std::string& change : {legal, fitted}) {
    if (!change.empty()) result.warnings.push_back(change);
  }
  result.offload = offload_figures(prepared.plan, result.execution, costs, topology);
  append(offload_lines(result.offload, result.execution.iteration), result.warnings);
  append(unmoved_lines(prepared.plan, scenario.layout.offload), result.warnings);
  add_warnings(costs, result);
  result.passes = std::move(passes);
  trace.close(scenario, result);
  return result;
}

}  // namespace gputwin
