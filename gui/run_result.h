// The result.json that travels inside a trace.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gputwin::gui {

/// The result of a run; null if there is none, or if a key that views read has another type than
/// scenarios/README.md says. A trace may come from anywhere: views take what is here as it is.
nlohmann::json run_result(const std::string& json);

}  // namespace gputwin::gui
