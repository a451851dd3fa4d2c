// From the inputs of a published run to a scenario.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

namespace gputwin {

/// Why a run cannot be predicted yet.
struct Unsupported {
  std::string reason;
};

/// The scenario of a run's `config` (keys in validation/runs/README.md), with model and cluster
/// inline. It reads nothing else, so that equal configurations give equal predictions. What sources
/// do not print is filled by general rules, named in validation/runs/README.md.
///
/// `name` becomes the scenario's name.
std::variant<nlohmann::ordered_json, Unsupported> row_scenario(
    const std::string& name, const nlohmann::ordered_json& config);

}  // namespace gputwin
