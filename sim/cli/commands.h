// One function per command: adds itself to the parser and returns what to do when chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace gputwin::cli {

/// Exit codes (DESIGN 5).
enum Exit : int { kDone = 0, kBoundBreached = 1, kBadInput = 2, kInfeasible = 3, kOurBug = 4 };

using Action = std::function<int()>;

Action add_run(CLI::App& app);
Action add_sweep(CLI::App& app);
Action add_list(CLI::App& app);
Action add_collective(CLI::App& app);
Action add_compare(CLI::App& app);
Action add_replay(CLI::App& app);
Action add_twin(CLI::App& app);
Action add_explain(CLI::App& app);
Action add_validate(CLI::App& app);
Action add_validate_cases(CLI::App& validate);
Action add_validate_curves(CLI::App& validate);
Action add_validate_ops(CLI::App& validate);
Action add_validate_convergence(CLI::App& validate);
Action add_validate_host(CLI::App& validate);
Action add_validate_speedups(CLI::App& validate);
Action add_probes(CLI::App& app);
Action add_memory(CLI::App& app);
Action add_search(CLI::App& app);
Action add_calibrate(CLI::App& app);
Action add_import(CLI::App& app);
Action add_plan(CLI::App& app);
Action add_compare(CLI::App& app);
Action add_worker(CLI::App& app);

}  // namespace gputwin::cli
