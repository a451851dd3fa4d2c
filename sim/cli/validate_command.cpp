// gputwin validate: predicts published facts and says how wrong the predictions are.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "sim/app/ablation.h"
#include "sim/app/data_directory.h"
#include "sim/app/terminal_progress.h"
#include "sim/app/worker_pool.h"
#include "sim/cli/commands.h"
#include "sim/cli/row_choice.h"
#include "sim/core/error.h"
#include "validation/runs/report.h"
#include "validation/runs/row_scenario.h"

namespace gputwin::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> files, without, kinds, groups, times;
  std::string emit, fit_stacks;
  double max_error = 0, time_limit = 60;
  int jobs = 0;
  bool json = false, list = false, exact = false, cross_fit = false, ablation = false;
};

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

std::vector<PublishedRun> read_all(const Options& o) {
  std::vector<PublishedRun> runs;
  for (const std::string& file : o.files) {
    for (PublishedRun& run : read_published_runs(file)) runs.push_back(std::move(run));
  }
  const bool any = !runs.empty();
  RowFilter kinds{"--kind", o.kinds}, groups{"--group", o.groups};
  std::erase_if(runs, [&](const PublishedRun& r) {
    const bool other_kind = kinds.leaves_out(r.kind), other_group = groups.leaves_out(r.group);
    return other_kind || other_group;
  });
  require_rows(o.files, any, !runs.empty(), {kinds, groups});
  return runs;
}

// "gemm_time=1.1" as a key of what_if.times and its value.
std::pair<std::string, double> factor_of(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string key = text.substr(0, equals);
  const auto keys = factor_keys();
  if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
    throw InputError("--time", "", text, "names no class of times",
                     fmt::format("write one of {} and =factor", fmt::join(keys, ", ")));
  }
  const std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
  char* end = nullptr;
  const double factor = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != 0 || !(factor >= 0.01 && factor <= 100)) {
    throw InputError("--time", "", text, "is no factor", "write a number from 0.01 to 100 after =");
  }
  return {key, factor};
}

int emit(const Options& o, const std::vector<PublishedRun>& runs) {
  const auto found =
      std::find_if(runs.begin(), runs.end(), [&](const auto& r) { return r.id == o.emit; });
  if (found == runs.end()) {
    throw InputError("--emit-scenario", "", o.emit, "is the id of no row", "ids stand in the file");
  }
  const auto scenario = row_scenario(found->id, found->config);
  if (const auto* no = std::get_if<Unsupported>(&scenario)) {
    fmt::print(stderr, "gputwin: infeasible: {}\n", no->reason);
    return kInfeasible;
  }
  fmt::print("{}\n", std::get<Json>(scenario).dump(2));
  return kDone;
}

PredictOptions predict_options(const Options& o) {
  PredictOptions options;
  options.time_limit_s = o.time_limit;
  options.exact = o.exact;
  if (!o.without.empty()) options.what_if["without"] = o.without;
  for (const std::string& time : o.times) {
    const auto [key, value] = factor_of(time);
    options.what_if["times"][key] = value;
  }
  return options;
}

// What the options ask for; predictions last, so that they see factors that were written.
struct Results {
  std::optional<StackFit> fit;
  std::optional<AblationTable> ablation;
  std::vector<Prediction> predictions;

  RunsExtras extras(const Options& o) const {
    return {.unseen = o.cross_fit ? &fit->unseen : nullptr,
            .ablation = ablation ? &*ablation : nullptr,
            .fit = o.fit_stacks.empty() ? nullptr : &*fit};
  }
};

Results results(const Options& o, const std::vector<PublishedRun>& runs, EventSink& progress) {
  const bool fits = o.cross_fit || !o.fit_stacks.empty();
  const double weights = 1 + (fits ? kFitPasses : 0) + (o.ablation ? ablation_passes() : 0);
  PassProgress passes([&](double share) { return progress.progress(share); }, weights);
  PredictOptions options = predict_options(o);
  WorkerPool pool(this_program(), o.jobs > 0 ? o.jobs : usable_processors());
  const std::filesystem::path hardware = data_directory() / "hwmodels";
  Results results;
  if (fits) results.fit = fit_stacks(runs, hardware, pool, options, passes);
  if (interrupted == 0 && !o.fit_stacks.empty()) write_stack_factors(*results.fit, o.fit_stacks);
  if (o.ablation) results.ablation = ablate(runs, hardware, pool, options, passes);
  options.progress = passes.next(1);
  results.predictions = predict(runs, pool, options);
  return results;
}

int validate_runs(const Options& o) {
  const std::vector<PublishedRun> runs = read_all(o);
  if (!o.emit.empty()) return emit(o, runs);
  std::signal(SIGINT, on_interrupt);
  TerminalProgress progress(fmt::format("predicting {} runs", runs.size()), stderr,
                            [] { return interrupted != 0; });
  const Results found = results(o, runs, progress);
  if (interrupted != 0) {
    fmt::print(stderr, "gputwin: cancelled\n");
    return kBoundBreached;
  }
  if (o.json) {
    fmt::print("{}", runs_json(runs, found.predictions, found.extras(o)));
  } else {
    if (o.list) fmt::print("{}\n", runs_listing(runs, found.predictions));
    fmt::print("{}", runs_report(runs, found.predictions, found.extras(o)));
  }
  const double mean = score(runs, found.predictions).kinds.back().errors.mean;
  if (o.max_error <= 0 || mean <= o.max_error) return kDone;
  fmt::print(stderr, "gputwin: the mean error {:.3f} is above --max-error {:.3f}\n", mean,
             o.max_error);
  return kBoundBreached;
}

void add_fit_options(CLI::App& runs, Options& o, CLI::Option* without, CLI::Option* time) {
  runs.add_option(
          "--fit-stacks", o.fit_stacks,
          "Fit factors of software stacks and write them into this folder's files (predicts "
          "every run 18 to 26 times); the tables use the files of the program's own folder")
      ->check(CLI::ExistingDirectory)
      ->excludes(without)
      ->excludes(time);
  runs.add_flag(
          "--cross-fit", o.cross_fit,
          "Add mean errors without factors, with factors fitted on other runs, and with those "
          "of the nearest other stack (predicts every run 18 to 26 times)")
      ->excludes(without)
      ->excludes(time);
  runs.add_flag("--ablation", o.ablation,
                "Add mean errors when one mechanism is made free (predicts most runs 16 times)")
      ->excludes(without);
}

}  // namespace

Action add_validate_runs(CLI::App& validate) {
  CLI::App* runs = validate.add_subcommand("runs", "Published training runs");
  runs->footer(
      "Example: gputwin validate runs validation/runs/published.json --kind dense-A100 --list\n"
      "         gputwin validate runs FILE --fit-stacks hwmodels/stacks --cross-fit --ablation\n"
      "Format of the file: validation/runs/README.md. Exit codes: 0 done, 1 --max-error breached "
      "or cancelled, 2 bad input.");
  auto o = std::make_shared<Options>();
  std::vector<std::string> words;
  for (const std::string_view w : mechanism_words()) words.emplace_back(w);
  runs->add_option("files", o->files, "Files of published runs")->required();
  runs->add_flag("--json", o->json, "Print rows and summary as JSON");
  runs->add_flag("--list", o->list, "Print every row before the tables");
  runs->add_option("--kind", o->kinds, "Only rows whose kind contains this; repeatable");
  runs->add_option("--group", o->groups, "Only rows whose group contains this; repeatable");
  runs->add_option("--max-error", o->max_error,
                   "Exit with 1 if the mean absolute time error of all measured rows is above this "
                   "(0.1 is 10 %)")
      ->check(CLI::PositiveNumber);
  runs->add_option("--emit-scenario", o->emit,
                   "Print the scenario of the row with this id, and stop");
  CLI::Option* without =
      runs->add_option("--without", o->without, "Predict as if these mechanisms were free")
          ->delimiter(',')
          ->check(CLI::IsMember(words));
  CLI::Option* time = runs->add_option(
      "--time", o->times, "Scale a class of times, for example memory_bound_time=1.2; repeatable");
  add_fit_options(*runs, *o, without, time);
  runs->add_flag("--exact", o->exact,
                 "Simulate every micro-batch instead of extending two shorter runs");
  runs->add_option("--time-limit", o->time_limit, "Give up on a row after this many seconds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  runs->add_option("-j,--jobs", o->jobs, "Worker processes; default: one per processor")
      ->check(CLI::PositiveNumber);
  return [o] { return validate_runs(*o); };
}

Action add_validate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("validate", "Predict published facts; error tables");
  command->require_subcommand(1);
  const Action runs = add_validate_runs(*command), ops = add_validate_ops(*command),
               cases = add_validate_cases(*command), curves = add_validate_curves(*command),
               convergence = add_validate_convergence(*command), host = add_validate_host(*command),
               speedups = add_validate_speedups(*command);
  return [command, runs, ops, cases, convergence, curves, host, speedups] {
    if (command->got_subcommand("speedups")) return speedups();
    if (command->got_subcommand("host")) return host();
    if (command->got_subcommand("convergence")) return convergence();
    if (command->got_subcommand("ops")) return ops();
    if (command->got_subcommand("curves")) return curves();
    return command->got_subcommand("cases") ? cases() : runs();
  };
}

}  // namespace gputwin::cli
