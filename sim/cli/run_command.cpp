// gputwin run: one scenario, simulated; report, result.json, trace.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>

#include "sim/app/data_directory.h"
#include "sim/app/describe.h"
#include "sim/app/plugin_library.h"
#include "sim/app/report.h"
#include "sim/app/result_json.h"
#include "sim/app/run.h"
#include "sim/app/terminal_progress.h"
#include "sim/cli/commands.h"
#include "sim/cli/heap_count.h"
#include "sim/cli/ipc.h"
#include "sim/core/error.h"
#include "validation/executors/cuda/cuda_executor.h"
#include "validation/executors/host/host_executor.h"

namespace gputwin::cli {
namespace {

struct Options {
  bool fit = false;
  std::string address_map;
  std::string scenario, out, trace, fold = "auto", executor = "simgrid", advance = "run-ahead";
  std::vector<std::string> sets, plugins;
  double time_limit = 0;
  int repeats = 5;                            // of --executor host and cuda
  double link_rate = 0, link_latency_us = 0;  // of --executor host; GB/s
  bool json = false, ascii = false, ipc = false;
};

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

int print_infeasible(const Infeasible& infeasible) {
  fmt::print(stderr, "gputwin: infeasible: {}\n", infeasible.reason);
  if (!infeasible.fix.empty()) fmt::print(stderr, "  what would fit: {}\n", infeasible.fix);
  return kInfeasible;
}

int print_deadlock(const Deadlock& deadlock) {
  fmt::print(stderr, "gputwin: deadlock: {} ranks wait forever\n", deadlock.total);
  for (const Deadlock::Blocked& b : deadlock.ranks) {
    fmt::print(stderr, "  rank {}: {} waits for {}\n", b.rank.value, b.instruction, b.waiting_for);
  }
  return kInfeasible;
}

RunRequest request_of(const Options& options) {
  RunRequest request;
  request.executor =
      options.executor == "reference" ? ExecutorKind::Reference : ExecutorKind::Simgrid;
  request.options.fold = options.fold == "off" ? Fold::Off : Fold::Auto;
  request.options.advance = options.advance == "calendar" ? Advance::Calendar : Advance::RunAhead;
  request.options.time_limit_s = options.time_limit;
  request.trace = options.trace;
  request.fit = options.fit;
  request.address_map = options.address_map;
  return request;
}

ReportContext context_of(const Options& options, const Scenario& scenario) {
  ReportContext context = describe(scenario);
  context.ascii = options.ascii;
  context.colour = isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  if (!options.out.empty()) context.files.push_back({"figures", options.out + "/result.json", ""});
  if (!options.trace.empty()) {
    const bool columns = options.trace.ends_with(".gtr");
    context.files.push_back({"trace", options.trace,
                             columns ? "open in gputwin-gui" : "open in https://ui.perfetto.dev"});
  }
  return context;
}

void check_trace_name(const std::string& trace) {
  if (trace.empty() || trace.ends_with(".json") || trace.ends_with(".json.gz") ||
      trace.ends_with(".gtr")) {
    return;
  }
  throw InputError("--trace", "", trace, "is not a kind of trace that is written",
                   "end the name in .json or .json.gz for Perfetto, .gtr for gputwin-gui");
}

executors::HostOptions host_options(const Options& options) {
  const executors::Link link{BytesPerSecond(options.link_rate * 1e9),
                             Seconds(options.link_latency_us * 1e-6)};
  executors::HostOptions host;
  host.bodies = options.repeats + 1;
  host.collectives = host.messages = host.copies = link;
  return host;
}

/// What a run on this computer yields that no prediction has.
std::string host_line(const executors::HostValues& values, const Options& options) {
  const auto [least, most] =
      std::minmax_element(values.iterations.begin(), values.iterations.end());
  return fmt::format(
      "ran for real on the processor of this computer: median of {} iterations of {:.6f} to {:.6f} "
      "s after one that warms up; loss {:.6f}; {} bytes in use at most; MFU and memory are those "
      "of "
      "the cluster's GPUs",
      options.repeats, to_seconds(*least).value, to_seconds(*most).value, values.loss,
      values.peak.value);
}

/// Clock and power of GPUs, as far as NVML was there to say.
std::string gpu_lines(const std::vector<executors::GpuState>& gpus) {
  std::string text;
  for (const executors::GpuState& gpu : gpus) {
    text += gpu.samples == 0 ? fmt::format("; GPU {}: no clock and power known", gpu.name)
                             : fmt::format("; GPU {}: {:.0f} to {:.0f} MHz, {:.0f} W", gpu.name,
                                           gpu.least_MHz, gpu.most_MHz, gpu.mean_W);
  }
  return text;
}

std::string cuda_line(const executors::CudaValues& values, const Options& options) {
  const auto [least, most] =
      std::minmax_element(values.iterations.begin(), values.iterations.end());
  return fmt::format(
      "ran for real on {} GPUs of this computer: median of {} iterations of {:.6f} to {:.6f} s "
      "after one that warms up; loss {:.6f}; {} bytes of GPU memory taken{}; MFU and memory are "
      "those of the cluster's GPUs",
      values.gpus.size(), options.repeats, to_seconds(*least).value, to_seconds(*most).value,
      values.loss, values.peak.value, gpu_lines(values.gpus));
}

int simulate(const Options& options) {
  check_trace_name(options.trace);
  if (options.executor == "cuda") executors::need_cuda();
  const auto start = std::chrono::steady_clock::now();
  Scenario scenario =
      load_scenario(options.scenario, options.sets, {data_directory() / "scenarios"});
  for (const std::string& plugin : options.plugins) scenario.plugins.push_back(load_plugin(plugin));
  std::signal(SIGINT, on_interrupt);
  const auto cancelled = [] { return interrupted != 0; };
  TerminalProgress progress("simulating " + scenario.name, stderr, cancelled);
  ipc::Progress lines(cancelled);
  RunRequest request = request_of(options);
  request.sink = options.ipc ? static_cast<EventSink*>(&lines) : &progress;
  executors::HostExecutor host(host_options(options));
  if (options.executor == "host") {
    request.machine = &host;
    request.obstacle = [](const Plan& plan) {
      return executors::host_obstacle(plan, executors::host_memory_limit());
    };
  }
  executors::CudaOptions on_gpus;
  on_gpus.bodies = options.repeats + 1;
  executors::CudaExecutor cuda(on_gpus);
  if (options.executor == "cuda") {
    request.machine = &cuda;
    request.obstacle = executors::cuda_obstacle;
  }
  request.on_fit = [&](const Layout& layout) { scenario.layout = layout; };
  RunOutcome outcome = run(scenario, request);
  if (options.ipc && !std::holds_alternative<RunResult>(outcome)) return ipc::say_why_not(outcome);
  if (const auto* infeasible = std::get_if<Infeasible>(&outcome))
    return print_infeasible(*infeasible);
  if (const auto* deadlock = std::get_if<Deadlock>(&outcome)) return print_deadlock(*deadlock);
  if (std::holds_alternative<Cancelled>(outcome)) {
    fmt::print(stderr, "gputwin: cancelled{}\n", interrupted != 0 ? "" : ": --time-limit reached");
    return kBoundBreached;
  }
  RunResult& result = std::get<RunResult>(outcome);
  if (request.machine == &host) result.warnings.push_back(host_line(host.values(), options));
  if (request.machine == &cuda) result.warnings.push_back(cuda_line(cuda.values(), options));
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  result.execution.engine.peak_rss_bytes = usage.ru_maxrss * std::int64_t{1024};
  result.execution.engine.wall_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ReportContext context = context_of(options, scenario);
  context.heap_allocations = heap_allocations();
  if (!options.out.empty()) {
    write_result_json(std::filesystem::path(options.out) / "result.json", result,
                      context.flops_convention);
  }
  if (options.ipc) return ipc::say_result(result, context.flops_convention);
  fmt::print(
      "{}", options.json ? result_json(result, context.flops_convention) : report(result, context));
  return kDone;
}

}  // namespace

Action add_run(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("run", "Simulate one scenario: time, breakdown, memory, timeline");
  command->footer(
      "Example: gputwin run gpt3_175b__a100_128x8__tp8_pp16_dp8 --set layout.vpp=3 --out out/vpp3\n"
      "Keys of a scenario: scenarios/README.md. Exit codes: 0 done, 1 cancelled, 2 bad input, 3 "
      "infeasible.");
  auto o = std::make_shared<Options>();
  command->add_option("scenario", o->scenario, "Scenario file, or the name of a shipped run")
      ->required();
  command->add_option("--set", o->sets, "Override path=value, for example layout.tp=4; repeatable");
  command
      ->add_option("--plugin", o->plugins,
                   "Shared library with a strategy of your own (strategies/PLUGINS.md); repeatable")
      ->allow_extra_args(false);
  command->add_option("--out", o->out, "Folder for result.json");
  command->add_option("--trace", o->trace,
                      "Timeline: .json or .json.gz for Perfetto, .gtr for gputwin-gui");
  command->add_flag("--fit", o->fit,
                    "A job that does not fit is changed so that it does, by the fastest change");
  command->add_option("--address-map", o->address_map,
                      "Picture (SVG) of the first stage's GPU memory by address");
  command->add_option("--fold", o->fold, "auto: simulate ranks proven alike once; off: every rank")
      ->check(CLI::IsMember({"auto", "off"}))
      ->capture_default_str();
  command
      ->add_option(
          "--executor", o->executor,
          "simgrid; reference (longest path, no contention); host, cuda (for real, on this "
          "computer's processor or GPUs)")
      ->check(CLI::IsMember({"simgrid", "reference", "host", "cuda"}))
      ->capture_default_str();
  command->add_option("--repeats", o->repeats, "Iterations that --executor host and cuda measure")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command
      ->add_option("--link-rate", o->link_rate,
                   "GB/s that links of --executor host are slowed to; 0: as fast as memory")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--link-latency", o->link_latency_us,
                   "Microseconds that a transfer of --executor host takes besides")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--advance", o->advance, "run-ahead, or calendar (slower, same result)")
      ->check(CLI::IsMember({"run-ahead", "calendar"}))
      ->capture_default_str();
  command->add_option("--time-limit", o->time_limit, "Give up after this many seconds of wall time")
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", o->json, "Print result.json instead of the report");
  command->add_flag("--ipc", o->ipc,
                    "Speak JSON lines on stdout, for programs (sim/cli/README.md)");
  command->add_flag("--ascii", o->ascii, "Bars of # instead of block characters");
  return [o] { return o->ipc ? ipc::guarded([o] { return simulate(*o); }) : simulate(*o); };
}

}  // namespace gputwin::cli
