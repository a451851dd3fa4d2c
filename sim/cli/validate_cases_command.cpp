// gputwin validate cases: which published questions the program's commands answer rightly.
#include <fmt/format.h>

#include <csignal>

#include "sim/app/data_directory.h"
#include "sim/app/terminal_progress.h"
#include "sim/app/worker_pool.h"
#include "sim/cli/commands.h"
#include "sim/cli/row_choice.h"
#include "validation/cases/cases.h"

namespace gputwin::cli {
namespace {

struct Options {
  std::vector<std::string> files, categories, ids;
  std::string mapping;
  double max_failed = -1;
  int jobs = 0;
  bool json = false, list = false;
};

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

std::vector<cases::Case> read_all(const Options& o) {
  std::vector<cases::Case> all;
  for (const std::string& file : o.files) {
    for (cases::Case& c : cases::read_cases(file)) all.push_back(std::move(c));
  }
  const bool any = !all.empty();
  RowFilter categories{.option = "--category", .wanted = o.categories, .whole = true};
  RowFilter ids{.option = "--id", .wanted = o.ids, .whole = true};
  std::erase_if(all, [&](const cases::Case& c) {
    const bool other = categories.leaves_out(c.category), unnamed = ids.leaves_out(c.id);
    return other || unnamed;
  });
  require_rows(o.files, any, !all.empty(), {categories, ids});
  return all;
}

int validate_cases(const Options& o) {
  const std::vector<cases::Case> all = read_all(o);
  const std::filesystem::path mapped = o.mapping.empty()
                                           ? data_directory() / "validation" / "cases" / "mapping"
                                           : std::filesystem::path(o.mapping);
  const auto mapping = cases::read_mapping(mapped);
  const std::vector<cases::Command> commands = cases::commands_of(all, mapping);
  std::signal(SIGINT, on_interrupt);
  TerminalProgress progress(fmt::format("running {} commands", commands.size()), stderr,
                            [] { return interrupted != 0; });
  const int jobs = o.jobs > 0 ? o.jobs : usable_processors();
  const std::vector<cases::Ran> ran =
      cases::run_commands(this_program(), commands, mapping, jobs,
                          [&](double share) { return progress.progress(share); });
  if (interrupted != 0) {
    fmt::print(stderr, "gputwin: cancelled\n");
    return kBoundBreached;
  }
  const std::vector<cases::Scored> scored = cases::score(all, mapping, commands, ran);
  if (o.json) {
    fmt::print("{}", cases::cases_json(scored));
  } else {
    if (o.list) fmt::print("{}\n", cases::cases_listing(scored));
    fmt::print("{}", cases::cases_report(scored));
  }
  const double failed = cases::failed_share(scored);
  if (o.max_failed < 0 || failed <= o.max_failed) return kDone;
  fmt::print(stderr, "gputwin: {:.3f} of the scored checks failed, above --max-failed {:.3f}\n",
             failed, o.max_failed);
  return kBoundBreached;
}

}  // namespace

Action add_validate_cases(CLI::App& validate) {
  CLI::App* command = validate.add_subcommand("cases", "Published questions with checked answers");
  command->footer(
      "Example: gputwin validate cases CASES.json --category memory --list\n"
      "What answers a case: validation/cases/README.md. Exit codes: 0 done, 1 --max-failed "
      "breached or cancelled, 2 bad input (the mapping's file and pointer are named).");
  auto o = std::make_shared<Options>();
  command->add_option("files", o->files, "Files of cases")->required();
  command->add_flag("--json", o->json, "Print checks and categories as JSON");
  command->add_flag("--list", o->list, "Print every check before the table");
  command->add_option("--category", o->categories, "Only cases of this category; repeatable");
  command->add_option("--id", o->ids, "Only the case with this id; repeatable");
  command->add_option("--mapping", o->mapping,
                      "File or folder that says what answers the cases; default: the shipped one");
  command
      ->add_option("--max-failed", o->max_failed,
                   "Exit with 1 if more than this share of the scored checks fails (0.15 is 15 %)")
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("-j,--jobs", o->jobs, "Commands at once; default: one per processor")
      ->check(CLI::PositiveNumber);
  return [o] { return validate_cases(*o); };
}

}  // namespace gputwin::cli
