// gputwin sweep: many runs of one scenario that differ by overrides; CSV, JSON, a page with plots.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>

#include "sim/app/data_directory.h"
#include "sim/app/plugin_library.h"
#include "sim/app/sweep.h"
#include "sim/app/sweep_page.h"
#include "sim/app/sweep_run.h"
#include "sim/app/sweep_table.h"
#include "sim/app/terminal_progress.h"
#include "sim/cli/commands.h"
#include "sim/core/error.h"
#include "sim/trace/atomic_file.h"

namespace gputwin::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  SweepRequest request;
  std::string out;
  double time_limit = 0;
  int jobs = 0;
  bool json = false;
};

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

std::size_t count(const SweepRows& rows, const std::string& status) {
  return static_cast<std::size_t>(std::count_if(rows.begin(), rows.end(), [&](const auto& row) {
    return (row ? row->at("status").template get<std::string>() : "not run") == status;
  }));
}

void print_reason(const Sweep& sweep, const SweepRows& rows, const std::string& status) {
  const auto first = std::find_if(rows.begin(), rows.end(), [&](const auto& row) {
    return row && row->at("status") == status;
  });
  const auto i = static_cast<std::size_t>(first - rows.begin());
  std::string settings;
  for (const Setting& s : sweep.points[i]) settings += " " + s.path + "=" + s.value;
  fmt::print(stderr, "gputwin: {} of {} points are {}; the first,{}: {}\n", count(rows, status),
             rows.size(), status, settings, (*first)->value("reason", ""));
}

// What the rows say about the sweep as a whole.
int verdict(const Options& o, const Sweep& sweep, const SweepRows& rows) {
  if (const std::size_t left = count(rows, "not run"); left > 0) {
    fmt::print(stderr, "gputwin: {}: {} of {} points done{}\n",
               interrupted != 0 ? "cancelled" : "--time-limit reached", rows.size() - left,
               rows.size(),
               o.out.empty() ? "" : "; the same command goes on where this one stopped");
    return kBoundBreached;
  }
  if (count(rows, "error") > 0) {
    print_reason(sweep, rows, "error");
    return kOurBug;
  }
  if (count(rows, "ok") > 0) return kDone;
  const bool infeasible = count(rows, "infeasible") > 0;
  print_reason(sweep, rows, infeasible ? "infeasible" : "invalid");
  return infeasible ? kInfeasible : kBadInput;
}

void write_outputs(const fs::path& folder, const Sweep& sweep, const SweepRows& rows) {
  write_file(folder / "sweep.csv", sweep_csv(sweep, rows));
  write_file(folder / "sweep.json", sweep_json(sweep, rows));
  write_file(folder / "sweep.html", sweep_page(sweep, rows));
}

int sweep_points(const Options& o, WorkerPool& pool, MpiCrew* crew) {
  for (const std::string& plugin : o.request.plugins) load_plugin(plugin);
  const Sweep sweep = plan_sweep(o.request, {data_directory() / "scenarios"});
  std::optional<SweepJournal> journal;
  if (!o.out.empty()) {
    journal.emplace(fs::path(o.out) / "journal.jsonl", sweep_identity(sweep, GPUTWIN_VERSION),
                    sweep.points.size());
    if (!journal->rows().empty()) {
      fmt::print(stderr, "gputwin: {} of {} points are in {}/journal.jsonl already\n",
                 journal->rows().size(), sweep.points.size(), o.out);
    }
  }
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
  const auto start = std::chrono::steady_clock::now();
  const auto stopped = [&] {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    return interrupted != 0 || (o.time_limit > 0 && spent.count() > o.time_limit);
  };
  SweepRows rows;
  {
    TerminalProgress progress(fmt::format("sweep of {} points", sweep.points.size()), stderr,
                              [] { return interrupted != 0; });
    rows = run_sweep(sweep, pool,
                     {.journal = journal ? &*journal : nullptr,
                      .crew = crew,
                      .progress = [&](double share) { return progress.progress(share); },
                      .cancelled = stopped});
  }
  if (!o.out.empty()) write_outputs(o.out, sweep, rows);
  fmt::print("{}", o.json ? sweep_json(sweep, rows) : sweep_report(sweep, rows));
  if (!o.json && !o.out.empty()) {
    fmt::print("\nwritten to {}: sweep.csv, sweep.json, sweep.html (plots; open in a browser)\n",
               o.out);
  }
  return verdict(o, sweep, rows);
}

int sweep(const Options& o) {
  if (launched_processes() == 1) {
    WorkerPool pool(this_program(), o.jobs > 0 ? o.jobs : usable_processors());
    return sweep_points(o, pool, nullptr);
  }
  MpiCrew crew;
  WorkerPool pool(this_program(), std::max(1, o.jobs));
  if (crew.rank() == 0) return sweep_points(o, pool, &crew);
  // Rank 0 decides when to stop, also when all get the signal.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
  crew.help(pool);
  return kDone;
}

}  // namespace

Action add_sweep(CLI::App& app) {
  CLI::App* command = app.add_subcommand("sweep", "What-if grid: one scenario, many overrides");
  command->footer(
      "Example: gputwin sweep gpt3_175b__a100_128x8__tp8_pp16_dp8 --out out/network \\\n"
      "           --vary cluster.groups.0.type.nics.each_Gbps=50,100,200,400 \\\n"
      "           --vary 'layout.tp=8,4;layout.dp=8,16'\n"
      "         mpirun -n 16 gputwin sweep SCENARIO --vary ... --out DIR\n"
      "The first --vary varies slowest; paths joined by ; vary together. With --out every point "
      "is kept\nin DIR/journal.jsonl as soon as it is done: after a crash or Ctrl-C the same "
      "command goes on.\nPaths: scenarios/README.md. Exit codes: 0 done, 1 stopped, 2 bad input, "
      "3 no point is feasible.");
  auto o = std::make_shared<Options>();
  command->add_option("scenario", o->request.scenario, "Scenario file, or a shipped run")
      ->required();
  command->add_option("--vary", o->request.vary, "path=v1,v2,...; repeatable: the grid of all")
      ->allow_extra_args(false);
  command
      ->add_option("--list", o->request.list,
                   "File of points, one a line: path=value path=value; times the grid")
      ->check(CLI::ExistingFile);
  command->add_option("--set", o->request.sets, "Override path=value of every point; repeatable")
      ->allow_extra_args(false);
  command
      ->add_option("--plugin", o->request.plugins,
                   "Shared library with a strategy of your own (strategies/PLUGINS.md); repeatable")
      ->allow_extra_args(false);
  command->add_option("--out", o->out,
                      "Folder for sweep.csv, sweep.json, sweep.html and the journal");
  command
      ->add_option("-j,--jobs", o->jobs,
                   "Worker processes; default: one per processor, under mpirun one per rank")
      ->check(CLI::PositiveNumber);
  command->add_option("--time-limit", o->time_limit, "Stop after this many seconds of wall time")
      ->check(CLI::PositiveNumber);
  command->add_flag("--extrapolate", o->request.extrapolate,
                    "Extend two shorter runs where a pipeline has many micro-batches");
  command->add_flag("--json", o->json, "Print sweep.json instead of the table");
  return [o] { return sweep(*o); };
}

}  // namespace gputwin::cli
