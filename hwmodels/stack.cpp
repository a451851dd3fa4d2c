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
                                                             "host_time",
                                                             "collective_start_time"};

StackFactors read_factors(ConstantsFile& file, const std::string& group) {
  StackFactors factors = kNoFactors;
  for (std::size_t f = 0; f < kFactors; ++f) {
    factors[f] = file.number_or(group + "/" + std::string(kFactorKeys[f]), 1.0, Range::Positive);
  }
  return factors;
}

// "a-b-c" starts with the family "a-b", "a-bc" does not.
bool belongs_to(const std::string& wanted, const std::string& family) {
  if (!wanted.starts_with(family)) return false;
  return wanted.size() == family.size() || wanted[family.size()] == '-' ||
         wanted[family.size()] == '.';
}

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
  stack.factors = read_factors(file, "/factors");
  for (std::size_t a = 0; a < kArchitectures; ++a) {
    const auto architecture = static_cast<Architecture>(a);
    const std::string group = "/factors_on/" + std::string(to_string(architecture));
    if (file.has(group)) stack.factors_on[architecture] = read_factors(file, group);
  }
  stack.reserved_over_allocated = file.number_or("/memory/reserved_over_allocated", 0.0);
  stack.allocator.expandable_segments =
      file.number_or("/memory/expandable_segments", 0.0, Range::NotNegative) > 0;
  stack.allocator.max_split_size = Bytes(static_cast<std::int64_t>(
      file.number_or("/memory/max_split_size_MiB", 0.0, Range::NotNegative) * 1024 * 1024));
  stack.device_extra = Bytes(static_cast<std::int64_t>(
      file.number_or("/memory/device_extra_GiB", 0.0) * 1024 * 1024 * 1024));
  stack.nvls = file.number_or("/nccl/nvls", 0.0) > 0;
  stack.benchmark = file.number_or("/nccl/measured_curves", 0.0) > 0;
  stack.host.launch = Seconds(file.number("/host/launch_us", Range::NotNegative) * 1e-6);
  stack.host.collective_launch =
      Seconds(file.number("/host/collective_launch_us", Range::NotNegative) * 1e-6);
  stack.host.resume = Seconds(file.number_or("/host/resume_us", 0.0, Range::NotNegative) * 1e-6);
  stack.host.queue_depth = static_cast<std::int32_t>(file.number("/host/queue_depth"));
  stack.unknown_deviation = file.number_or("/unknown_stack/time_deviation", 0.0);
  file.finish();
  stack.constants = file.constants();
  return stack;
}

Stack Stack::on(Architecture architecture) const {
  Stack here = *this;
  if (const auto found = factors_on.find(architecture); found != factors_on.end()) {
    here.factors = found->second;
  }
  here.factors_on.clear();
  return here;
}

std::string stack_family(const std::vector<std::string>& names, const std::string& wanted) {
  std::string family;
  for (const std::string& name : names) {
    if (belongs_to(wanted, name) && name.size() > family.size()) family = name;
  }
  return family;
}

std::string nearest_stack_family(const std::vector<std::string>& names, const std::string& wanted) {
  std::size_t end = wanted.rfind('-');
  const std::size_t first = wanted.find('-');
  while (end != std::string::npos && end > 0) {
    std::vector<std::string> relatives;
    const std::string shared = wanted.substr(0, end);
    for (const std::string& name : names) {
      if (name == shared || name.starts_with(shared + "-")) relatives.push_back(name);
    }
    if (!relatives.empty()) return nearest_name(wanted, relatives);
    end = wanted.rfind('-', end - 1);
    if (end == first) break;  // one word in common is little
  }
  return "default";
}

StackChoice choose_stack(const std::filesystem::path& directory, const std::string& wanted) {
  const std::vector<std::string> names = list_json_names(directory);
  const auto load = [&](const std::string& name) {
    return load_stack(directory / (name + ".json"));
  };
  const std::string family = stack_family(names, wanted);
  if (!family.empty()) return {load(family), "", 0};
  const std::string chosen = nearest_stack_family(names, wanted);
  const double deviation = load("default").unknown_deviation;
  return {load(chosen),
          "software stack \"" + wanted + "\" has no constants of its own; \"" + chosen +
              "\" is used, and the interval is wider for it",
          deviation};
}

}  // namespace gputwin
