// gputwin validate speedups: published gains of one way to run a job over another.
#include <fmt/format.h>

#include <csignal>

#include "sim/app/terminal_progress.h"
#include "sim/cli/commands.h"
#include "sim/cli/row_choice.h"
#include "validation/speedups/speedups.h"

namespace gputwin::cli {
namespace {

struct Options {
  std::vector<std::string> files, groups;
  bool json = false;
};

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

int validate_speedups(const Options& o) {
  std::vector<SpeedupRow> rows;
  for (const std::string& file : o.files) {
    for (SpeedupRow& row : read_speedups(file)) rows.push_back(std::move(row));
  }
  const bool any = !rows.empty();
  RowFilter groups{"--group", o.groups};
  std::erase_if(rows, [&](const SpeedupRow& row) { return groups.leaves_out(row.group); });
  require_rows(o.files, any, !rows.empty(), {groups});
  std::signal(SIGINT, on_interrupt);
  TerminalProgress progress("simulating pairs", stderr, [] { return interrupted != 0; });
  const std::vector<ScoredSpeedup> scored =
      score_speedups(rows, [&](double share) { return progress.progress(share); });
  if (interrupted != 0) {
    fmt::print(stderr, "gputwin: cancelled\n");
    return kBoundBreached;
  }
  fmt::print("{}", o.json ? speedups_json(scored) : speedups_report(scored));
  return kDone;
}

}  // namespace

Action add_validate_speedups(CLI::App& validate) {
  CLI::App* command =
      validate.add_subcommand("speedups", "Published gains of one way to run a job over another");
  command->footer(
      "Example: gputwin validate speedups validation/speedups/overlap.json --group domino\n"
      "Format of the rows: validation/speedups/README.md. Exit codes: 0 done, 1 cancelled, 2 bad "
      "input.");
  auto o = std::make_shared<Options>();
  command->add_option("files", o->files, "Files of rows")->required();
  command->add_option("--group", o->groups, "Only rows whose group contains this; repeatable");
  command->add_flag("--json", o->json, "Print rows and times as JSON");
  return [o] { return validate_speedups(*o); };
}

}  // namespace gputwin::cli
