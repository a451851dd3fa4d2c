#include "validation/probes/host_validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "hwmodels/processor/processor.h"
#include "sim/core/error.h"
#include "sim/core/median.h"
#include "sim/core/spelling.h"
#include "sim/engine/simgrid_executor.h"

namespace gputwin::probes {

namespace {

constexpr double kApart = 1.10;  // predictions that are to be in the right order
constexpr std::uint64_t kSeeds = 15;

std::string overlapped(int chunks) {
  return fmt::format(R"([{{"overlap":{{"variant":"equal","max_chunks":{}}}}}])", chunks);
}

std::string offloaded(std::int64_t bucket) {
  return fmt::format(R"([{{"offload":{{"strategy":"zero-offload","bucket_elements":{}}}}}])",
                     bucket);
}

struct Predicted {
  double iteration_s = 0;
  std::vector<double> calls_s;
};

class Events final : public EventSink {
 public:
  void op(const OpEvent& event) override { run.events.push_back(event); }
  void flow(RankId, RankId, Bytes, const Route&, Ps, Ps) override {}
  bool progress(double) override { return true; }
  HostRun run;
};

/// Calls without the time that their stream needs between two tasks, or to wake up for a copy: the
/// model counts it with them, the executor's clock does not.
std::vector<double> without_gaps(const HostPlan& made, std::vector<double> calls_s) {
  const auto& processor = made.costs.device(DeviceKindId(0)).processor;
  const double gap = processor ? processor->issue.value : 0.0;
  const double wake = processor ? processor->wake_ups().value : 0.0;
  for (std::size_t c = 0; c < calls_s.size(); ++c) {
    const OpKind kind = made.plan.calls[c].op.kind;
    if (kind < OpKind::AllReduce) calls_s[c] -= gap;
    if (kind == OpKind::CopyBytes) calls_s[c] -= wake;
  }
  return calls_s;
}

double simulated_s(const HostPlan& made, const Plan& plan, EventSink* events) {
  RunOptions options;
  options.fold = Fold::Off;
  const ExecutionOutcome outcome =
      SimgridExecutor().run(plan, made.costs, made.topology, options, events);
  const auto* execution = std::get_if<Execution>(&outcome);
  if (execution == nullptr) throw std::runtime_error(made.scenario.name + ": does not simulate");
  return to_seconds(execution->iteration).value;
}

/// Operations by their costs, which are medians. The iteration with the computer's jitter, by which
/// sums of medians fall short and ranks wait for each other: the median of several seeds.
Predicted predict(const HostPlan& made) {
  Events events;
  Predicted predicted;
  predicted.iteration_s = simulated_s(made, made.plan, &events);
  predicted.calls_s = without_gaps(made, call_medians(made.plan, events.run));
  const auto& processor = made.costs.device(DeviceKindId(0)).processor;
  if (!processor || processor->jitter_sigma == 0.0) return predicted;
  std::vector<double> iterations;
  Plan plan = made.plan;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    plan.jitter = {processor->jitter_sigma, seed};
    iterations.push_back(simulated_s(made, plan, nullptr));
  }
  predicted.iteration_s = median(iterations);
  return predicted;
}

/// How often each call runs in a body, over all ranks; a joint call once for all its members.
std::vector<double> occurrences(const Plan& plan) {
  std::vector<double> count(plan.calls.size(), 0.0);
  for (const Rank& rank : plan.ranks) {
    for (const Instruction& i : plan.programs[rank.program.value].body) {
      const bool task = i.kind <= Kind::HostTask;
      if (!task) continue;
      const SlotId slot = plan.call(i).op.slot;
      const double members =
          i.kind == Kind::Collective && slot.valid()
              ? static_cast<double>(plan.communicators[rank.slots[slot.value]].members.size())
              : 1.0;
      count[i.call] += 1.0 / members;
    }
  }
  return count;
}

struct Errors {
  std::vector<std::pair<double, double>> errors;  // absolute error, operations
  double signed_sum = 0, measured_s = 0, predicted_s = 0;
};

double quantile(std::vector<std::pair<double, double>> weighted, double share) {
  std::sort(weighted.begin(), weighted.end());
  double all = 0, seen = 0;
  for (const auto& [value, weight] : weighted) all += weight;
  for (const auto& [value, weight] : weighted) {
    seen += weight;
    if (seen >= share * all) return value;
  }
  return 0;
}

KindError summary(const std::string& kind, const Errors& e) {
  KindError out;
  out.kind = kind;
  double count = 0;
  for (const auto& [error, n] : e.errors) {
    out.mean += error * n;
    count += n;
  }
  out.operations = static_cast<std::size_t>(std::llround(count));
  out.mean /= count;
  out.bias = e.signed_sum / count;
  out.p50 = quantile(e.errors, 0.5);
  out.p95 = quantile(e.errors, 0.95);
  out.measured_s = e.measured_s;
  out.predicted_s = e.predicted_s;
  return out;
}

void compare_calls(const Plan& plan, const std::vector<double>& predicted,
                   const std::vector<double>& measured, CaseResult& result) {
  const std::vector<double> count = occurrences(plan);
  std::map<std::string, Errors> kinds;
  double all = 0, sum = 0, time = 0, weighted = 0;
  for (std::size_t c = 0; c < plan.calls.size(); ++c) {
    if (count[c] <= 0 || measured[c] <= 0 || predicted[c] <= 0) continue;
    const double error = predicted[c] / measured[c] - 1.0;
    Errors& kind = kinds[operator_key(plan.calls[c].op)];
    kind.errors.emplace_back(std::abs(error), count[c]);
    kind.signed_sum += error * count[c];
    kind.measured_s += measured[c] * count[c];
    kind.predicted_s += predicted[c] * count[c];
    all += count[c];
    sum += std::abs(error) * count[c];
    time += measured[c] * count[c];
    weighted += std::abs(error) * measured[c] * count[c];
  }
  result.operation_error = sum / all;
  result.weighted_error = weighted / time;
  for (const auto& [kind, errors] : kinds) result.kinds.push_back(summary(kind, errors));
  std::sort(result.kinds.begin(), result.kinds.end(),
            [](const KindError& a, const KindError& b) { return a.measured_s > b.measured_s; });
}

struct Running {
  HostCase of;
  std::unique_ptr<HostPlan> made;
  double as_probed_s = 0;
  Predicted predicted;
  std::vector<double> runs_s, yardsticks_s;
  std::vector<std::vector<double>> calls_s;  // of every run
};

/// The plan as it is predicted for the computer of these minutes. It does not depend on the pace.
void keep_pace(Running& r) {
  const auto& processor = r.made->costs.device(DeviceKindId(0)).processor;
  if (processor && processor->yardstick.value > 0) {
    r.of.job.pace = median(r.yardsticks_s) / processor->yardstick.value;
  }
  r.made = std::make_unique<HostPlan>(r.of.job);
  r.predicted = predict(*r.made);
}

CaseResult result_of(const Running& r) {
  CaseResult result;
  result.family = r.of.family;
  result.name = r.of.job.name;
  result.predicted_s = r.predicted.iteration_s;
  result.pace = r.of.job.pace;
  result.as_probed_s = r.as_probed_s;
  result.runs_s = r.runs_s;
  result.measured_s = median(r.runs_s);
  std::vector<double> measured(r.made->plan.calls.size(), 0.0);
  for (std::size_t c = 0; c < measured.size(); ++c) {
    std::vector<double> times;
    for (const auto& run : r.calls_s) times.push_back(run[c]);
    measured[c] = median(times);
  }
  compare_calls(r.made->plan, r.predicted.calls_s, measured, result);
  return result;
}

void judge(HostValidation& v) {
  for (const CaseResult& c : v.cases) {
    v.mean_operation_error += c.operation_error / static_cast<double>(v.cases.size());
    v.worst_error = std::max(v.worst_error, std::abs(c.error()));
  }
  for (std::size_t i = 0; i < v.cases.size(); ++i) {
    for (std::size_t j = i + 1; j < v.cases.size(); ++j) {
      const CaseResult *a = &v.cases[i], *b = &v.cases[j];
      if (a->family != b->family) continue;
      if (a->predicted_s > b->predicted_s) std::swap(a, b);
      const double apart = b->predicted_s / a->predicted_s;
      if (apart < kApart) continue;
      v.orders.push_back({a->name, b->name, apart, b->measured_s / a->measured_s});
    }
  }
}

}  // namespace

std::vector<HostCase> host_cases(bool quick) {
  std::vector<HostCase> cases;
  const std::int64_t scale = quick ? 1 : 2;
  HostJob tp{.name = "tp2", .hidden = 112 * scale, .heads = 8, .layers = quick ? 1 : 3};
  tp.vocab = 288, tp.sequence = 56 * scale, tp.micro_batch = 4, tp.tp = 2;
  tp.link_GBps = 0.1;
  HostJob tp_overlap = tp, tp_fast = tp;
  tp_overlap.name = "tp2_overlap", tp_overlap.passes = overlapped(2);
  tp_fast.name = "tp2_fast_link", tp_fast.link_GBps = 2;
  cases.push_back({"tp", tp});
  cases.push_back({"tp", tp_overlap});
  cases.push_back({"tp", tp_fast});
  HostJob pp{.name = "pp2_1f1b", .hidden = 104 * scale, .heads = 4, .layers = quick ? 2 : 4};
  pp.vocab = 224, pp.sequence = 72, pp.micro_batches = quick ? 3 : 8, pp.pp = 2;
  pp.link_GBps = 1;
  HostJob pp_few = pp;
  pp_few.name = "pp2_1f1b_slow_link", pp_few.link_GBps = 0.02;
  cases.push_back({"pp", pp});
  cases.push_back({"pp", pp_few});
  HostJob on_device{
      .name = "on_device", .hidden = 120 * scale, .heads = 8, .layers = quick ? 1 : 3};
  on_device.vocab = 352, on_device.sequence = 40;
  on_device.link_GBps = 0.25;
  HostJob offload = on_device;
  offload.name = "zero_offload", offload.passes = offloaded(4 * offload.hidden * offload.hidden);
  cases.push_back({"offload", on_device});
  cases.push_back({"offload", offload});
  return cases;
}

HostValidation validate_host(const ValidationOptions& options,
                             const std::function<bool(double)>& progress) {
  std::vector<Running> running;
  for (HostCase& of : host_cases(options.quick)) {
    const auto& only = options.only;
    if (!only.empty() && std::find(only.begin(), only.end(), of.family) == only.end()) continue;
    of.job.device = options.device;
    Running r;
    r.of = of;
    r.made = std::make_unique<HostPlan>(of.job);
    r.as_probed_s = predict(*r.made).iteration_s;
    running.push_back(std::move(r));
  }
  if (running.empty()) {
    throw InputError("--only", "", fmt::format("{}", fmt::join(options.only, ",")), "names no plan",
                     "tp, pp or offload");
  }
  const double all = static_cast<double>(running.size()) * options.repeats;
  double done = 0;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (Running& r : running) {
      if (!progress(done++ / all)) repeat = options.repeats;
      if (repeat == options.repeats) break;
      r.yardsticks_s.push_back(yardstick_s());
      const HostRun run = run_on_host(r.made->plan, host_options(r.of.job, options.bodies));
      r.runs_s.push_back(median(run.iterations_s));
      r.calls_s.push_back(call_medians(r.made->plan, run));
    }
  }
  HostValidation validation;
  for (Running& r : running) {
    if (!r.runs_s.empty()) keep_pace(r);
    if (!r.runs_s.empty()) validation.cases.push_back(result_of(r));
  }
  judge(validation);
  return validation;
}

std::string validation_table(const HostValidation& v) {
  std::string out;
  for (const CaseResult& c : v.cases) {
    const auto [least, most] = std::minmax_element(c.runs_s.begin(), c.runs_s.end());
    out += fmt::format(
        "{:<20} predicted {:8.3f} ms  measured {:8.3f} ms ({:.3f} to {:.3f}, {} runs)  error "
        "{:+6.1f} %\n    kernels take {:.2f} of their time when probed; predicted as probed {:.3f} "
        "ms\n"
        "    operations: mean absolute error {:.1f} %, weighted by time {:.1f} %\n",
        c.name, 1e3 * c.predicted_s, 1e3 * c.measured_s, 1e3 * *least, 1e3 * *most, c.runs_s.size(),
        100 * c.error(), c.pace, 1e3 * c.as_probed_s, 100 * c.operation_error,
        100 * c.weighted_error);
    out +=
        "    kind                             ops   mean    p50    p95    bias  measured ms  "
        "predicted ms\n";
    for (const KindError& k : c.kinds) {
      out += fmt::format(
          "    {:<30} {:>5} {:>5.1f}% {:>5.1f}% {:>5.1f}% {:>+6.1f}% {:>12.3f} {:>12.3f}\n", k.kind,
          k.operations, 100 * k.mean, 100 * k.p50, 100 * k.p95, 100 * k.bias, 1e3 * k.measured_s,
          1e3 * k.predicted_s);
    }
  }
  for (const Order& o : v.orders) {
    out += fmt::format("{:<20} before {:<20} predicted {:.2f}x, measured {:.2f}x: {}\n", o.faster,
                       o.slower, o.predicted, o.measured, o.right() ? "right" : "wrong");
  }
  out += fmt::format(
      "operations: mean absolute error {:.1f} % over plans; iteration: worst error {:.1f} %\n",
      100 * v.mean_operation_error, 100 * v.worst_error);
  return out;
}

std::string validation_json(const HostValidation& v) {
  nlohmann::ordered_json out;
  out["cases"] = nlohmann::ordered_json::array();
  for (const CaseResult& c : v.cases) {
    nlohmann::ordered_json kinds = nlohmann::ordered_json::array();
    for (const KindError& k : c.kinds) {
      kinds.push_back({{"kind", k.kind},
                       {"operations", k.operations},
                       {"mean", k.mean},
                       {"p50", k.p50},
                       {"p95", k.p95},
                       {"bias", k.bias},
                       {"measured_s", k.measured_s},
                       {"predicted_s", k.predicted_s}});
    }
    out["cases"].push_back({{"family", c.family},
                            {"name", c.name},
                            {"predicted_s", c.predicted_s},
                            {"pace", c.pace},
                            {"as_probed_s", c.as_probed_s},
                            {"measured_s", c.measured_s},
                            {"error", c.error()},
                            {"runs_s", c.runs_s},
                            {"operation_error", c.operation_error},
                            {"weighted_operation_error", c.weighted_error},
                            {"kinds", kinds}});
  }
  out["orders"] = nlohmann::ordered_json::array();
  for (const Order& o : v.orders) {
    out["orders"].push_back({{"faster", o.faster},
                             {"slower", o.slower},
                             {"predicted_ratio", o.predicted},
                             {"measured_ratio", o.measured},
                             {"right", o.right()}});
  }
  out["summary"] = {{"mean_operation_error", v.mean_operation_error},
                    {"worst_iteration_error", v.worst_error}};
  return out.dump(1) + "\n";
}

}  // namespace gputwin::probes
