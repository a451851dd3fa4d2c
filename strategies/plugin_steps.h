// The steps of plugins within make_plan.
#pragma once

#include <span>

#include "strategies/plugin.h"

namespace gputwin {

using Plugins = std::span<const Plugin* const>;

/// Each runs the step of every plugin that has it, in order, and checks what comes out. Errors
/// InputError naming the plugin if it throws, or if its tables or plan are not sound.
Outcome<Lowered> plugin_segments(Plugins plugins, Lowered lowered, const Job& job);
Outcome<std::vector<StageTable>> plugin_schedule(Plugins plugins, const Layout& layout,
                                                 std::int32_t micro_batches,
                                                 std::vector<StageTable> tables);
Outcome<Plan> plugin_plan(Plugins plugins, Plan plan, const Layout& layout, const Job& job);

}  // namespace gputwin
