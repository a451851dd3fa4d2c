#include "sim/app/worker.h"

#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "sim/app/data_directory.h"
#include "sim/app/describe.h"
#include "sim/app/extrapolate.h"
#include "sim/app/plugin_library.h"
#include "sim/app/result_json.h"
#include "sim/app/run.h"
#include "sim/core/error.h"

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

Json failure(const char* status, const std::string& reason) {
  return {{"status", status}, {"reason", reason}};
}

Json answer(const Json& request) {
  std::vector<std::filesystem::path> dirs;
  for (const Json& dir : request.value("dirs", Json::array())) dirs.emplace_back(dir);
  if (dirs.empty()) dirs.push_back(data_directory() / "scenarios");
  Scenario scenario =
      parse_scenario(request.at("scenario").dump(), request.value("name", "request"),
                     request.value("sets", std::vector<std::string>{}), dirs);
  for (const Json& plugin : request.value("plugins", Json::array())) {
    scenario.plugins.push_back(load_plugin(plugin.get<std::string>()));
  }
  RunRequest how;
  how.options.time_limit_s = request.value("time_limit_s", 0.0);
  const bool exact = request.value("exact", false);
  RunOutcome outcome = exact ? run(scenario, how) : run_extrapolated(scenario, how);
  if (const auto* no = std::get_if<Infeasible>(&outcome)) {
    return failure("infeasible", no->reason + (no->fix.empty() ? "" : " (" + no->fix + ")"));
  }
  if (std::holds_alternative<Deadlock>(outcome)) return failure("error", "the plan deadlocks");
  if (std::holds_alternative<Cancelled>(outcome)) return failure("cancelled", "time limit reached");
  const RunResult& result = std::get<RunResult>(outcome);
  return {{"status", "ok"},
          {"result", Json::parse(result_json(result, describe(scenario).flops_convention))}};
}

Json guarded(const std::string& line) {
  try {
    return answer(Json::parse(line));
  } catch (const InputError& e) {
    return failure("input", e.what());
  } catch (const std::exception& e) {
    return failure("error", e.what());
  }
}

}  // namespace

void serve(std::istream& in, std::ostream& out) {
  for (std::string line; std::getline(in, line);) {
    out << guarded(line).dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
}

}  // namespace gputwin
