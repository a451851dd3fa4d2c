// gputwin probes: measures the machine it runs on, for gputwin calibrate.
#include <fmt/format.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "sim/app/terminal_progress.h"
#include "sim/cli/commands.h"
#include "sim/core/error.h"
#include "validation/probes/probes.h"

namespace gputwin::cli {
namespace {

struct Options {
  std::string device = "host", out;
  std::vector<std::string> only;
  double time_limit = 480;
  bool quick = false, json = false;
};

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

int refuse_cuda() {
  fmt::print(stderr,
             "gputwin: no probe of a GPU can be run by this program: it has no executor that runs "
             "plans on one.\nOn a GPU it would measure\n{}"
             "validation/device_check.sh builds and times the kernels of validation/executors/cuda "
             "on a machine with a GPU.\n",
             probes::cuda_probe_list());
  return kInfeasible;
}

void print_summary(const Options& o, const probes::ProbeSummary& s) {
  std::vector<std::string> tables;
  for (const auto& t : s.tables) tables.push_back(t.string());
  if (o.json) {
    const nlohmann::ordered_json out = {
        {"measured", s.measured}, {"kept", s.kept}, {"left", s.left}, {"tables", tables}};
    fmt::print("{}\n", out.dump(1));
    return;
  }
  fmt::print("{} probes measured, {} of an earlier run, {} left\n{}\n", s.measured, s.kept, s.left,
             fmt::join(tables, "\n"));
  if (s.left > 0) return;
  fmt::print("next: gputwin calibrate {}/*.csv --device host-cpu --out host.json\n", o.out);
}

int probe(const Options& o) {
  if (o.device == "cuda") return refuse_cuda();
  std::signal(SIGINT, on_interrupt);
  TerminalProgress bar("probes", stderr, [] { return interrupted != 0; });
  const probes::ProbeSummary summary =
      probes::run_probes({o.out, o.only, o.quick, o.time_limit},
                         [&](double share, const std::string&) { return bar.progress(share); });
  print_summary(o, summary);
  if (summary.left == 0) return kDone;
  fmt::print(stderr, "gputwin: stopped before {} probes; the same command goes on\n", summary.left);
  return kBoundBreached;
}

}  // namespace

Action add_probes(CLI::App& app) {
  CLI::App* command = app.add_subcommand("probes", "Measure this machine, for calibrate");
  command->require_subcommand(1);
  CLI::App* run = command->add_subcommand("run", "Run microbenchmarks and write their tables");
  run->footer(
      "Example: gputwin probes run --device host --out out/host && gputwin calibrate "
      "out/host/*.csv --device host-cpu --out host.json\n"
      "What was measured stays in OUT/done: a run that was ended goes on where it was.\n"
      "Exit codes: 0 done, 1 cancelled or out of time, 2 bad input, 3 no such device here.");
  auto o = std::make_shared<Options>();
  run->add_option("--device", o->device, "host: this computer's cores; cuda: its GPUs")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  run->add_option("--out", o->out, "Folder for the tables")->required();
  run->add_option("--only", o->only,
                  "Only these groups: system, layers, host-adam, launch, copies, collectives, "
                  "interference, files")
      ->delimiter(',');
  run->add_option("--time-limit", o->time_limit, "Seconds after which no further probe starts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  run->add_flag("--quick", o->quick, "One or two sizes of each: seconds, for tests");
  run->add_flag("--json", o->json, "Print what was done as JSON");
  return [o] { return probe(*o); };
}

}  // namespace gputwin::cli
