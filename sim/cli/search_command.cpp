// gputwin search: the best layouts of a job on its cluster, and why not the others.
#include <fmt/format.h>

#include <csignal>
#include <memory>

#include "sim/app/data_directory.h"
#include "sim/app/search.h"
#include "sim/app/search_report.h"
#include "sim/app/terminal_progress.h"
#include "sim/app/worker_pool.h"
#include "sim/cli/commands.h"
#include "sim/core/error.h"
#include "sim/trace/atomic_file.h"
#include "strategies/offload/strategies.h"

namespace gputwin::cli {
namespace {

struct Options {
  std::string scenario, out;
  std::vector<std::string> sets, offload;
  std::vector<std::int32_t> gpus;
  double time_limit = 0;
  int top = 10, jobs = 0;
  bool json = false;
};

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

// One line on a terminal for each step of the search.
class Steps {
 public:
  bool operator()(const char* what, double share) {
    if (what_ != what) {
      line_.reset();
      what_ = what;
      line_ = std::make_unique<TerminalProgress>(what, stderr, [] { return interrupted != 0; });
    }
    return line_->progress(share) && interrupted == 0;
  }

 private:
  std::string what_;
  std::unique_ptr<TerminalProgress> line_;
};

void write_scenarios(const Options& o, const Scenario& scenario, const SearchResult& result) {
  const std::filesystem::path folder = o.out;
  int rank = 0;
  for (const FoundLayout& f : result.best) {
    if (!f.simulated) continue;
    const std::string name = fmt::format("{}__rank{}", scenario.name, ++rank);
    write_file(folder / (name + ".json"), scenario_with(scenario, f.layout, name));
  }
  write_file(folder / "search.json", search_json(result, scenario));
}

int print_infeasible(const Infeasible& no) {
  fmt::print(stderr, "gputwin: infeasible: {}", no.reason);
  if (no.short_by) {
    fmt::print(stderr, ", {:.2f} GiB too much on the fullest GPU",
               static_cast<double>(no.short_by->value) / (1 << 30));
  }
  fmt::print(stderr, "\n  what would fit: {}\n", no.fix);
  return kInfeasible;
}

int run_search(const Options& o) {
  const Scenario scenario = load_scenario(o.scenario, o.sets, {data_directory() / "scenarios"});
  std::signal(SIGINT, on_interrupt);
  SearchRequest request;
  request.space.gpus = o.gpus;
  request.top = o.top;
  request.offload = o.offload;
  request.workers = o.jobs > 0 ? o.jobs : usable_processors();
  request.time_limit_s = o.time_limit;
  request.program = this_program();
  SearchOutcome outcome;
  {
    Steps steps;
    request.progress = [&](const char* what, double share) { return steps(what, share); };
    outcome = search(scenario, request);
  }
  if (const auto* no = std::get_if<Infeasible>(&outcome)) return print_infeasible(*no);
  const SearchResult& result = std::get<SearchResult>(outcome);
  if (!o.out.empty()) write_scenarios(o, scenario, result);
  fmt::print("{}", o.json ? search_json(result, scenario) : search_report(result, scenario));
  if (!result.stopped) return kDone;
  fmt::print(stderr, "gputwin: {}: the best so far\n",
             interrupted != 0 ? "cancelled" : "--time-limit reached");
  return kBoundBreached;
}

}  // namespace

Action add_search(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "search", "Best layouts of a job under memory, Pareto front, why not the others");
  command->footer(
      "Example: gputwin search gpt3_175b__a100_128x8__tp8_pp16_dp8 --gpus 512,1024 --out best\n"
      "         gputwin run best/gpt3_175b__a100_128x8__tp8_pp16_dp8__rank1.json\n"
      "The scenario's layout lends the settings that are not searched. Exit codes: 0 done, 1 "
      "stopped (prints the best so far), 2 bad input, 3 no layout fits.");
  auto o = std::make_shared<Options>();
  command->add_option("scenario", o->scenario, "Scenario file, or the name of a shipped run")
      ->required();
  command->add_option("--set", o->sets, "Override path=value, for example job.global_batch=512");
  command->add_option("--gpus", o->gpus, "Counts of GPUs to search; default: all of the cluster")
      ->delimiter(',');
  std::vector<std::string> strategies;
  for (const OffloadStrategy& s : offload_strategies()) strategies.emplace_back(s.name);
  command
      ->add_option(
          "--offload", o->offload,
          "Strategies of offload to choose among; default: tried only if nothing fits, none: never")
      ->delimiter(',')
      ->check(CLI::IsMember(strategies));
  command->add_option("--top", o->top, "Layouts that the event simulator re-scores")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("-j,--jobs", o->jobs, "Worker processes; default: one per processor")
      ->check(CLI::PositiveNumber);
  command->add_option("--time-limit", o->time_limit, "Stop after this many seconds of wall time")
      ->check(CLI::PositiveNumber);
  command->add_option("--out", o->out,
                      "Folder for search.json and a scenario of each ranked layout");
  command->add_flag("--json", o->json, "Print the result as JSON");
  return [o] { return run_search(*o); };
}

}  // namespace gputwin::cli
