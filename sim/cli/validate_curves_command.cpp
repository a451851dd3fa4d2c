// gputwin validate curves: published throughput over model size against predictions.
#include <fmt/format.h>

#include <csignal>

#include "sim/app/terminal_progress.h"
#include "sim/app/worker_pool.h"
#include "sim/cli/commands.h"
#include "sim/cli/row_choice.h"
#include "validation/curves/curves.h"

namespace gputwin::cli {
namespace {

struct Options {
  std::vector<std::string> files, kinds, groups;
  double time_limit = 60;
  int jobs = 0;
  bool json = false, list = false;
};

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

int validate_curves(const Options& o) {
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
  std::signal(SIGINT, on_interrupt);
  TerminalProgress progress("predicting curves", stderr, [] { return interrupted != 0; });
  PredictOptions options;
  options.time_limit_s = o.time_limit;
  options.progress = [&](double share) { return progress.progress(share); };
  WorkerPool pool(this_program(), o.jobs > 0 ? o.jobs : usable_processors());
  const CurveScores scores = score_curves(runs, pool, options);
  if (interrupted != 0) {
    fmt::print(stderr, "gputwin: cancelled\n");
    return kBoundBreached;
  }
  fmt::print("{}", o.json ? curves_json(scores) : curves_report(scores, o.list));
  return kDone;
}

}  // namespace

Action add_validate_curves(CLI::App& validate) {
  CLI::App* command =
      validate.add_subcommand("curves", "Published throughput over model size, memory enforced");
  command->footer(
      "Example: gputwin validate curves validation/curves/offload.json --list\n"
      "Rows are those of `validate runs`; where the batch is not printed, the fastest micro-batch "
      "that fits counts (validation/curves/README.md). Exit codes: 0 done, 1 cancelled, 2 bad "
      "input.");
  auto o = std::make_shared<Options>();
  command->add_option("files", o->files, "Files of published runs")->required();
  command->add_flag("--json", o->json, "Print curves and points as JSON");
  command->add_flag("--list", o->list, "Print every point");
  command->add_option("--kind", o->kinds, "Only rows whose kind contains this; repeatable");
  command->add_option("--group", o->groups, "Only rows whose group contains this; repeatable");
  command->add_option("--time-limit", o->time_limit, "Give up on a point after this many seconds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("-j,--jobs", o->jobs, "Worker processes; default: one per processor")
      ->check(CLI::PositiveNumber);
  return [o] { return validate_curves(*o); };
}

}  // namespace gputwin::cli
