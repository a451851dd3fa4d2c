// Published questions with checked answers, and whether the program's commands answer them.
//
//   case file ─► read_cases ─┐
//   mapping  ─► read_mapping ┴► run_commands (children of the program) ─► score ─► report
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gputwin::cases {

using Json = nlohmann::ordered_json;

/// One checkable statement of an answer.
struct Check {
  std::string metric;
  std::string op;  // approx, eq, ge, le, gt, lt, order, contains, error_or_warning, observed
  Json value;
  std::string unit;
  double tolerance = 0;  // relative
};

struct Case {
  std::string id, category;
  std::vector<Check> checks;
};

/// Cases of a file {"cases": [{"id", "category", "answer": {"checks": […]}}]}. Throws InputError
/// with file and JSON pointer.
std::vector<Case> read_cases(const std::filesystem::path& path);

/// What answers one case: commands by name and, by metric, what to make of their output. Kept as
/// JSON with its place, so that errors can name it.
struct MappedCase {
  std::string file, pointer;
  Json node;
};

/// Cases of one mapping file, or of all *.json files of a folder, by id; validation/cases/README.md
/// describes them. Throws InputError for text that is no mapping and for an id that stands twice.
std::map<std::string, MappedCase> read_mapping(const std::filesystem::path& path);

/// A command that a case needs; {NAME} in an argument stands for the case's document NAME.
struct Command {
  std::string case_id, name;
  std::vector<std::string> arguments;
  std::string file, pointer;  // of the mapping
  bool may_fail = false;      // some check asks whether it does
};

/// What a command did: its exit code and what it printed.
struct Ran {
  int exit = 0;
  std::string out, err;
};

/// Commands of those cases that are mapped, in the order of `cases`.
std::vector<Command> commands_of(const std::vector<Case>& cases,
                                 const std::map<std::string, MappedCase>& mapping);

/// Runs each command as a user would type it; documents of a case become files of a temporary
/// folder. `progress` is told the share done after each and ends the rest by returning false.
std::vector<Ran> run_commands(const std::filesystem::path& program,
                              const std::vector<Command>& commands,
                              const std::map<std::string, MappedCase>& mapping, int jobs,
                              const std::function<bool(double)>& progress);

enum class Verdict : std::uint8_t { Held, Failed, NotScorable };

struct Scored {
  std::string id, category, metric, op, unit;
  std::string expected, predicted;  // as text; predicted empty where nothing was
  double tolerance = 0;
  bool numeric = false;  // the answer is a number
  Verdict verdict = Verdict::NotScorable;
  std::string reason;  // why not scorable, or why it failed where that is no number
};

/// Every check of every case. Throws InputError with file and pointer where the mapping names a
/// metric that the case lacks, a command that it lacks, a pointer that the output lacks, or a
/// command that is bad input itself.
std::vector<Scored> score(const std::vector<Case>& cases,
                          const std::map<std::string, MappedCase>& mapping,
                          const std::vector<Command>& commands, const std::vector<Ran>& ran);

/// Table by category, and why checks are not scored.
std::string cases_report(const std::vector<Scored>& scored);
/// One line per check.
std::string cases_listing(const std::vector<Scored>& scored);
/// {"checks": […], "categories": […]}.
std::string cases_json(const std::vector<Scored>& scored);
/// Failed checks over scored ones.
double failed_share(const std::vector<Scored>& scored);

}  // namespace gputwin::cases
