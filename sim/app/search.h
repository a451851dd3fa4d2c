// The search for layouts: the closed form looks at all of them, the event simulator at the best.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "sim/app/scenario.h"
#include "sim/core/error.h"
#include "strategies/search/layout_space.h"

namespace gputwin {

struct SearchRequest {
  LayoutSpace space;
  int top = 10;                   // layouts to simulate
  int workers = 1;                // processes that simulate
  double time_limit_s = 0;        // of wall time, 0: none
  std::filesystem::path program;  // gputwin, for the workers
  /// Told what is being done and the share of it; false stops with the best so far.
  std::function<bool(const char* what, double share)> progress;
};

/// One layout that fits by the closed form.
struct FoundLayout {
  Layout layout;
  Seconds closed_form{};  // 0: a schedule that it does not know
  Bytes memory{};         // by the closed form, of the fullest GPU
  std::optional<Seconds> simulated;
  Bytes simulated_memory{};   // on the device, with what the allocator holds
  std::string not_simulated;  // why the simulator refused it, or empty
};

/// What a method from the literature would have chosen (strategies/search/methods.h).
struct MethodChoice {
  std::string method, what;
  std::optional<FoundLayout> found;  // none: none of its kind is possible and fits
};

struct SearchResult {
  std::vector<FoundLayout> best;    // simulated first, by time; then the others that were tried
  std::vector<FoundLayout> pareto;  // no other is faster, smaller and on fewer GPUs (closed form)
  SpaceCount space;
  std::optional<FoundLayout> given;  // the scenario's own layout, where it fits
  std::vector<MethodChoice> methods;
  bool stopped = false;  // by `progress` or the time limit
};

/// Infeasible: no layout fits; by how much the closest misses, and how many GPUs would do.
using SearchOutcome = std::variant<SearchResult, Infeasible>;

/// Searches layouts for the job of `scenario`, whose own layout lends its other settings. The
/// workload is a Transformer. Errors: InputError for a workload or GPU count that cannot be
/// searched.
SearchOutcome search(const Scenario& scenario, const SearchRequest& request);

/// The scenario with another layout, as a file that `gputwin run` accepts.
std::string scenario_with(const Scenario& scenario, const Layout& layout, const std::string& name);

}  // namespace gputwin
