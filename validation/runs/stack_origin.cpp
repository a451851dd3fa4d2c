#include "validation/runs/stack_origin.h"

#include <algorithm>
#include <map>

#include "hwmodels/stack.h"

namespace gputwin {
namespace {

std::string text(const PublishedRun& run, const char* key) {
  const auto found = run.config.find(key);
  return found != run.config.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::vector<StackOrigin> stack_origins(const std::vector<PublishedRun>& runs,
                                       const std::filesystem::path& hardware) {
  const std::vector<std::string> names = list_json_names(hardware / "stacks");
  std::map<std::string, Architecture> architectures;
  for (const std::string& name : list_devices(hardware / "devices")) {
    architectures[name] = load_device(hardware / "devices" / (name + ".json")).architecture;
  }
  std::vector<StackOrigin> origins;
  for (const PublishedRun& run : runs) {
    StackOrigin origin;
    origin.stack = text(run, "stack");
    origin.family = stack_family(names, origin.stack);
    std::vector<std::string> others = names;
    std::erase(others, origin.family);
    origin.other_family = stack_family(others, origin.stack);
    if (origin.other_family.empty()) {
      origin.other_family = nearest_stack_family(others, origin.stack);
    }
    const auto device = architectures.find(text(run, "device_id"));
    if (device != architectures.end()) origin.architecture = device->second;
    origins.push_back(std::move(origin));
  }
  return origins;
}

}  // namespace gputwin
