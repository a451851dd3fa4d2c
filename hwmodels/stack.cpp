#include "hwmodels/stack.h"

#include <algorithm>

#include "sim/core/error.h"

namespace gputwin {
namespace {

constexpr std::array<std::string_view, kFactors> kFactorKeys{"gemm_time",
                                                             "attention_time",
                                                             "memory_bound_time",
                                                             "collective_in_node_time",
                                                             "collective_across_nodes_time",
                                                             "host_time"};

}  // namespace

std::span<const std::string_view> factor_keys() { return kFactorKeys; }

Stack load_stack(const std::filesystem::path& path) {
  ConstantsFile file(path);
  Stack stack;
  stack.name = file.text("/name");
  if (stack.name != path.stem().string()) {
    throw InputError(path.string(), "/name", stack.name, "is not the file's name",
                     "write " + path.stem().string());
  }
  for (std::size_t f = 0; f < kFactors; ++f) {
    const std::string pointer = "/factors/" + std::string(kFactorKeys[f]);
    stack.factors[f] = file.number_or(pointer, 1.0, Range::Positive);
  }
  stack.nvls = file.number_or("/nccl/nvls", 0.0) > 0;
  stack.host.launch = Seconds(file.number("/host/launch_us", Range::NotNegative) * 1e-6);
  stack.host.collective_launch =
      Seconds(file.number("/host/collective_launch_us", Range::NotNegative) * 1e-6);
  stack.host.queue_depth = static_cast<std::int32_t>(file.number("/host/queue_depth"));
  file.finish();
  stack.constants = file.constants();
  return stack;
}

StackChoice choose_stack(const std::filesystem::path& directory, const std::string& wanted) {
  const std::vector<std::string> names = list_json_names(directory);
  const auto known = [&](const std::string& name) {
    return std::binary_search(names.begin(), names.end(), name);
  };
  if (known(wanted)) return {load_stack(directory / (wanted + ".json")), ""};
  const std::string family = wanted.substr(0, wanted.rfind('-'));
  std::vector<std::string> relatives;
  for (const std::string& name : names) {
    if (!family.empty() && name.starts_with(family)) relatives.push_back(name);
  }
  const std::string chosen = relatives.empty() ? "default" : nearest_name(wanted, relatives);
  return {load_stack(directory / (chosen + ".json")),
          "software stack \"" + wanted + "\" has no constants of its own; \"" + chosen +
              "\" is used, so expect 10-15 % error on times"};
}

}  // namespace gputwin
