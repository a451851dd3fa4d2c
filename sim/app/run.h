// One run: scenario in, figures out. The place where strategies, hardware models and an executor
// meet.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "hwmodels/hardware_model.h"
#include "sim/app/scenario.h"
#include "sim/core/executor.h"
#include "sim/core/run_result.h"

namespace gputwin {

enum class ExecutorKind : std::uint8_t { Simgrid, Reference };

struct RunRequest {
  ExecutorKind executor = ExecutorKind::Simgrid;
  RunOptions options{};
  EventSink* sink = nullptr;    // progress, or null
  std::filesystem::path trace;  // empty: none
  /// At most this many ranks are written: of those that a folded run proves alike one, of a real
  /// run or without folding all.
  std::size_t trace_ranks = 64;
  std::filesystem::path address_map;  // empty: none; a picture of the first stage's memory
  /// Runs the plan in place of a simulator: a real machine. What is predicted about passes and
  /// memory stays predicted.
  Executor* machine = nullptr;
  /// Why `machine` cannot run a plan, if so; or empty.
  std::function<std::optional<Infeasible>(const Plan&)> obstacle{};
  bool fit = false;                             // change a job that does not fit so that it does
  std::function<void(const Layout&)> on_fit{};  // called with the layout that it has then
};

/// Everything between the scenario and the executor, made once and kept for explaining and tracing.
struct PreparedRun {
  Plan plan;
  std::vector<RoleMemory> memory;  // by program
  std::vector<std::string> warnings;
};

/// Lowers the scenario to a plan and predicts its memory. Infeasible: the layout cannot be, or some
/// rank needs more memory than its GPU or its host has; then `fix` names the nearest change that
/// fits. With what_if.unlimited_memory a shortage is a warning.
Outcome<PreparedRun> prepare(const Scenario& scenario, const HardwareModel& costs,
                             const Topology& topology);

/// The result of a run, or why there is none.
using RunOutcome = std::variant<RunResult, Infeasible, Deadlock, Cancelled>;

/// Simulates `scenario`. Errors: InputError for an unknown device or unwritable trace.
RunOutcome run(const Scenario& scenario, const RunRequest& request);

}  // namespace gputwin
