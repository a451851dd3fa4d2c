// What no schema can say: how the values of a scenario must fit each other.
#pragma once

#include "sim/app/scenario.h"
#include "sim/app/scenario_document.h"

namespace gputwin {

/// Each throws InputError for the first rule broken, with the nearest legal values. They expect
/// values within the ranges of the schemas.
void check_model_rules(const ScenarioDocument& document, const Transformer& model);
void check_cluster_rules(const ScenarioDocument& document, const Cluster& cluster);
void check_job_rules(const ScenarioDocument& document, const Scenario& scenario);
void check_layout_rules(const ScenarioDocument& document, const Scenario& scenario);
void check_what_if_rules(const ScenarioDocument& document, const Scenario& scenario);

}  // namespace gputwin
