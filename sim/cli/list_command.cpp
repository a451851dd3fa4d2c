// gputwin list: what ships.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hwmodels/device.h"
#include "sim/app/data_directory.h"
#include "sim/app/scenario.h"
#include "sim/cli/commands.h"
#include "sim/core/codecs.h"
#include "strategies/strategy.h"

namespace gputwin::cli {
namespace {

std::vector<Listing> devices() {
  std::vector<Listing> list;
  const auto folder = data_directory() / "hwmodels" / "devices";
  for (const std::string& name : list_devices(folder)) {
    const Device d = load_device(folder / (name + ".json"));
    list.push_back({name, fmt::format("{} SMs, {:.0f} TFLOP/s bf16 dense, {:.0f} GB at {:.0f} GB/s",
                                      d.sms, d.dense_peak(DType::Bf16).value / 1e12,
                                      static_cast<double>(d.memory.value) / 1e9,
                                      d.memory_bandwidth.value / 1e9)});
  }
  return list;
}

std::vector<Listing> strategy_steps(bool schedules) {
  std::vector<Listing> list;
  for (const StepInfo& step : steps()) {
    if (step.is_schedule == schedules) list.push_back({step.name, step.what});
  }
  return list;
}

std::vector<Listing> codecs() {
  std::vector<Listing> list;
  for (const CodecEntry& codec : codec_table()) {
    const double width = 4096;
    const double share =
        static_cast<double>(payload_bytes(codec.usual, 4096, 4096).value) / (2 * width * width);
    list.push_back({codec.name, fmt::format("{}; {:.3f} of the bytes at width 4,096 ({})",
                                            codec.what, share, describe(codec.usual))});
  }
  return list;
}

std::vector<Listing> listing(const std::string& what) {
  const std::vector<std::filesystem::path> dirs{data_directory() / "scenarios"};
  if (what == "models") return list_models(dirs);
  if (what == "clusters") return list_clusters(dirs);
  if (what == "runs") return list_runs(dirs);
  if (what == "devices") return devices();
  if (what == "codecs") return codecs();
  return strategy_steps(what == "schedules");
}

}  // namespace

Action add_list(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("list", "What ships: models, clusters, devices, runs and strategies");
  command->footer("Example: gputwin list models");
  auto what = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  command
      ->add_option("what", *what,
                   "models, clusters, runs, devices, strategies, schedules or codecs")
      ->required()
      ->check(CLI::IsMember(
          {"models", "clusters", "runs", "devices", "strategies", "schedules", "codecs"}));
  command->add_flag("--json", *json, "Print JSON");
  return [what, json] {
    const std::vector<Listing> list = listing(*what);
    if (*json) {
      nlohmann::ordered_json out = nlohmann::ordered_json::array();
      for (const Listing& l : list) out.push_back({{"name", l.name}, {"facts", l.facts}});
      fmt::print("{}\n", out.dump(2));
      return static_cast<int>(kDone);
    }
    std::size_t width = 0;
    for (const Listing& l : list) width = std::max(width, l.name.size());
    for (const Listing& l : list) fmt::print("{:<{}}  {}\n", l.name, width, l.facts);
    return static_cast<int>(kDone);
  };
}

}  // namespace gputwin::cli
