#include "strategies/plugin_steps.h"

#include <algorithm>
#include <exception>
#include <tuple>

#include "sim/core/verify.h"

namespace gputwin {
namespace {

InputError wrong(const Plugin& plugin, const std::string& problem) {
  return InputError("--plugin", plugin.name, "", problem, "ask the author of the plugin");
}

// What `step` returns; what it throws becomes an error of the plugin.
template <class Step>
auto guarded(const Plugin& plugin, Step step) {
  try {
    return step();
  } catch (const std::exception& e) {
    throw wrong(plugin, std::string("failed: ") + e.what());
  }
}

// What a pass does, whatever it is joined with.
std::tuple<PassKind, std::int32_t, std::int32_t> work_of(const Pass& pass) {
  return {pass.kind, pass.chunk, pass.micro_batch};
}

bool earlier(const Pass& a, const Pass& b) { return work_of(a) < work_of(b); }
bool alike(const Pass& a, const Pass& b) { return work_of(a) == work_of(b); }

// The passes of the built-in tables, each once, a forward before its backward.
void check_tables(const Plugin& plugin, const std::vector<StageTable>& tables,
                  const std::vector<StageTable>& built_in) {
  if (tables.size() != built_in.size()) {
    throw wrong(plugin, "made " + std::to_string(tables.size()) + " tables for " +
                            std::to_string(built_in.size()) + " stages");
  }
  for (std::size_t s = 0; s < tables.size(); ++s) {
    StageTable mine = tables[s], theirs = built_in[s];
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (mine[i].kind == PassKind::Forward) continue;
      const bool weights = mine[i].kind == PassKind::WeightGrad;
      const Pass before{weights ? PassKind::Backward : PassKind::Forward, mine[i].chunk,
                        mine[i].micro_batch};
      const auto end = mine.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::none_of(mine.begin(), end, [&](const Pass& p) { return alike(p, before); })) {
        throw wrong(plugin, std::string("runs a ") + (weights ? "weight-gradient" : "backward") +
                                " pass before its " + (weights ? "backward" : "forward") +
                                " pass on stage " + std::to_string(s));
      }
    }
    std::sort(mine.begin(), mine.end(), earlier);
    std::sort(theirs.begin(), theirs.end(), earlier);
    if (!std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end(), alike)) {
      throw wrong(plugin, "does not run every pass once on stage " + std::to_string(s));
    }
  }
}

}  // namespace

Outcome<Lowered> plugin_segments(Plugins plugins, Lowered lowered, const Job& job) {
  for (const Plugin* plugin : plugins) {
    if (plugin->segments == nullptr) continue;
    auto outcome = guarded(*plugin, [&] { return plugin->segments(std::move(lowered), job); });
    if (std::holds_alternative<Infeasible>(outcome)) return outcome;
    lowered = std::move(std::get<Lowered>(outcome));
  }
  return lowered;
}

Outcome<std::vector<StageTable>> plugin_schedule(Plugins plugins, const Layout& layout,
                                                 std::int32_t micro_batches,
                                                 std::vector<StageTable> tables) {
  for (const Plugin* plugin : plugins) {
    if (plugin->schedule == nullptr) continue;
    auto outcome = guarded(*plugin, [&] { return plugin->schedule(layout, micro_batches); });
    if (std::holds_alternative<Infeasible>(outcome)) return outcome;
    auto& made = std::get<std::vector<StageTable>>(outcome);
    check_tables(*plugin, made, tables);
    tables = std::move(made);
  }
  return tables;
}

Outcome<Plan> plugin_plan(Plugins plugins, Plan plan, const Layout& layout, const Job& job) {
  for (const Plugin* plugin : plugins) {
    if (plugin->plan == nullptr) continue;
    auto outcome = guarded(*plugin, [&] { return plugin->plan(std::move(plan), layout, job); });
    if (std::holds_alternative<Infeasible>(outcome)) return outcome;
    plan = std::move(std::get<Plan>(outcome));
    const std::vector<Violation> broken = verify(plan);
    if (!broken.empty()) {
      throw wrong(*plugin, "made a plan that cannot run: " + broken.front().where + ": " +
                               broken.front().what);
    }
  }
  return plan;
}

}  // namespace gputwin
