#include "sim/cli/ipc.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "sim/app/result_json.h"
#include "sim/cli/commands.h"
#include "sim/core/error.h"

namespace gputwin::cli::ipc {

namespace {

using Json = nlohmann::ordered_json;
constexpr std::chrono::milliseconds kEvery{100};

void say(const Json& line) {
  fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
  std::fflush(stdout);
}

}  // namespace

bool Progress::progress(double fraction) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ >= kEvery) {
    last_ = now;
    say({{"type", "progress"}, {"fraction", fraction}});
  }
  return !cancelled_();
}

int say_result(const RunResult& result, const std::string& flops_convention) {
  say({{"type", "result"}, {"result", Json::parse(result_json(result, flops_convention))}});
  return kDone;
}

int say_why_not(const RunOutcome& outcome) {
  if (const auto* infeasible = std::get_if<Infeasible>(&outcome)) {
    Json line{{"type", "error"}, {"code", kInfeasible}, {"reason", infeasible->reason}};
    if (infeasible->short_by) line["short_by_bytes"] = infeasible->short_by->value;
    line["fix"] = infeasible->fix;
    say(line);
    return kInfeasible;
  }
  if (const auto* deadlock = std::get_if<Deadlock>(&outcome)) {
    std::string reason = fmt::format("deadlock: {} ranks wait forever", deadlock->total);
    for (const Deadlock::Blocked& b : deadlock->ranks) {
      reason +=
          fmt::format("; rank {}: {} waits for {}", b.rank.value, b.instruction, b.waiting_for);
    }
    say({{"type", "error"}, {"code", kInfeasible}, {"reason", reason}, {"fix", ""}});
    return kInfeasible;
  }
  say({{"type", "error"}, {"code", kBoundBreached}, {"reason", "cancelled"}, {"fix", ""}});
  return kBoundBreached;
}

int guarded(const std::function<int()>& body) {
  try {
    return body();
  } catch (const InputError& error) {
    say({{"type", "error"},
         {"code", kBadInput},
         {"file", error.file},
         {"pointer", error.pointer},
         {"value", error.value},
         {"problem", error.problem},
         {"reason", error.what()},
         {"fix", error.fix}});
    return kBadInput;
  }
}

}  // namespace gputwin::cli::ipc
