// Eager 1F1B: more forward passes before the first backward pass, so that a pipeline message has a
// whole pass more to arrive. Costs memory: stage r of p holds up to 2 (p - r) - 1 micro-batches
// instead of p - r. (Zhuang et al., MLSys 2023, "overlapping-friendly" schedule.)
#include <algorithm>

#include "strategies/plugin.h"

namespace {

using gputwin::Infeasible;
using gputwin::Layout;
using gputwin::Outcome;
using gputwin::PassKind;
using gputwin::StageTable;

StageTable table_of_stage(std::int32_t stages, std::int32_t stage, std::int32_t micro_batches) {
  const std::int32_t warm_up = std::min(micro_batches, 2 * (stages - stage - 1));
  StageTable table;
  std::int32_t forwards = 0;
  const auto forward = [&] { table.push_back({PassKind::Forward, 0, forwards++}); };
  while (forwards < warm_up) forward();
  for (std::int32_t backwards = 0; backwards < micro_batches; ++backwards) {
    if (forwards < micro_batches) forward();
    table.push_back({PassKind::Backward, 0, backwards});
  }
  return table;
}

Outcome<std::vector<StageTable>> schedule(const Layout& layout, std::int32_t micro_batches) {
  if (layout.vpp > 1) {
    return Infeasible{.reason = "eager 1F1B knows one model chunk per stage",
                      .short_by = {},
                      .fix = "layout.vpp=1"};
  }
  std::vector<StageTable> tables;
  for (std::int32_t stage = 0; stage < layout.pp; ++stage) {
    tables.push_back(table_of_stage(layout.pp, stage, micro_batches));
  }
  return tables;
}

constexpr gputwin::Plugin kPlugin{.name = "eager_1f1b",
                                  .what = "1F1B with twice the warm-up passes",
                                  .segments = nullptr,
                                  .schedule = schedule,
                                  .plan = nullptr};

}  // namespace

GPUTWIN_PLUGIN(kPlugin);
