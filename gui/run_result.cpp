#include "gui/run_result.h"

#include <algorithm>

namespace gputwin::gui {

namespace {

using nlohmann::json;

bool numbers_or_absent(const json& object, std::initializer_list<const char*> keys) {
  return std::all_of(keys.begin(), keys.end(), [&](const char* key) {
    return !object.contains(key) || object[key].is_number();
  });
}

bool is_role(const json& role) {
  return role.is_object() && role.contains("role") && role["role"].is_string() &&
         std::all_of(role.items().begin(), role.items().end(), [](const auto& item) {
           return !std::string(item.key()).ends_with("_bytes") || item.value().is_number();
         });
}

bool is_memory(const json& memory) {
  if (!memory.is_object() || !numbers_or_absent(memory, {"peak_device_bytes"})) return false;
  if (!memory.contains("by_role")) return false;
  const json& roles = memory["by_role"];
  return roles.is_array() && std::all_of(roles.begin(), roles.end(), is_role);
}

bool is_result(const json& r) {
  if (!r.is_object() || !r.contains("iteration_time_s")) return false;
  if (!numbers_or_absent(r, {"iteration_time_s", "tokens_per_s", "mfu", "model_tflops_per_gpu"})) {
    return false;
  }
  const auto all_numbers = [](const json& values) {
    return std::all_of(values.begin(), values.end(), [](const json& v) { return v.is_number(); });
  };
  if (r.contains("interval_s") && !(r["interval_s"].is_array() && all_numbers(r["interval_s"]))) {
    return false;
  }
  if (r.contains("breakdown_s") &&
      !(r["breakdown_s"].is_object() && all_numbers(r["breakdown_s"]))) {
    return false;
  }
  return !r.contains("memory") || is_memory(r["memory"]);
}

}  // namespace

json run_result(const std::string& text) {
  json r = json::parse(text, nullptr, false);
  return is_result(r) ? r : json();
}

}  // namespace gputwin::gui
