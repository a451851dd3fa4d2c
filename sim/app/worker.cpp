#include "sim/app/worker.h"

#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "sim/app/data_directory.h"
#include "sim/app/describe.h"
#include "sim/app/extrapolate.h"
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
  const Scenario scenario =
      parse_scenario(request.at("scenario").dump(), request.value("name", "request"), {},
                     {data_directory() / "scenarios"});
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
