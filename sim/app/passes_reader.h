// The list `passes` of a scenario: what the passes do is part of the layout.
#pragma once

#include "sim/app/json_text.h"
#include "sim/app/scenario.h"
#include "sim/app/scenario_document.h"

namespace gputwin {

/// Fills in the layout's pass options. Errors: InputError for a pass that stands twice or that the
/// model has no use for, for a share below 0 but -1, and for a setting that the codec named beside
/// it does not read.
void read_passes(const ScenarioDocument& document, const Json& list, Scenario& scenario);

}  // namespace gputwin
