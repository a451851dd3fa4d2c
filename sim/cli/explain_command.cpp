// gputwin explain: why an operation takes the time it takes.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hwmodels/hardware_model.h"
#include "sim/app/data_directory.h"
#include "sim/app/scenario.h"
#include "sim/cli/commands.h"
#include "sim/core/error.h"
#include "sim/core/spelling.h"
#include "strategies/strategy.h"

namespace gputwin::cli {
namespace {

struct Options {
  std::string scenario, op;
  std::vector<std::string> sets;
  bool json = false;
};

constexpr std::array<const char*, kTerms> kTermNames{"compute",  "memory",  "wave",     "split_k",
                                                     "start_up", "latency", "bandwidth"};

nlohmann::ordered_json explain_kernel(const Call& call, const CostModel& costs,
                                      DeviceKindId device) {
  const Cost cost = costs.kernel(call.op, bytes_of(call.reads), bytes_of(call.writes), device);
  nlohmann::ordered_json terms;
  for (std::size_t t = 0; t < kTerms; ++t) {
    if (cost.terms[t].value > 0)
      terms[std::string(kTermNames[t]) + "_us"] = cost.terms[t].value * 1e6;
  }
  return {{"time_us", cost.time.value * 1e6},
          {"model", cost.model},
          {"terms", terms},
          {"interval", {cost.low, cost.high}},
          {"extrapolated", cost.extrapolated}};
}

nlohmann::ordered_json explain_collective(const Plan& plan, RankId rank, const Call& call,
                                          const CostModel& costs, const Topology& topology) {
  std::vector<GpuId> members;
  for (const RankId m : plan.communicators[plan.communicator(rank, call.op.slot).value].members) {
    members.push_back(plan.ranks[m.value].gpu);
  }
  const Bytes bytes = std::max(bytes_of(call.reads), bytes_of(call.writes));
  const CollectiveSchedule s = costs.collective(call.op.kind, bytes, members);
  return {{"time_us", closed_form(s, members, topology).value * 1e6},
          {"model", s.model},
          {"terms",
           {{"latency_us", s.latency.value * 1e6},
            {"bytes", bytes.value},
            {"ranks", members.size()},
            {"rate_cap_GBps", s.rate_cap.value / 1e9}}},
          {"algorithm", to_string(s.algorithm)},
          {"protocol", to_string(s.protocol)},
          {"extrapolated", s.extrapolated}};
}

std::string shape_of(const Op& op) {
  std::string text(to_string(op.kind));
  const std::string_view letters = dimension_letters(op.kind);
  for (std::size_t d = 0; d < letters.size(); ++d)
    text += fmt::format(" {}={}", letters[d], op.dims[d]);
  return text + " " + std::string(to_string(op.dtype));
}

/// One entry per different cost among the instructions whose op name matches.
nlohmann::ordered_json explain_all(const Plan& plan, const Options& options, const CostModel& costs,
                                   const Topology& topology) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  std::vector<std::string> seen;
  for (std::uint32_t r = 0; r < plan.ranks.size(); ++r) {
    const Rank& rank = plan.ranks[r];
    const bool first_of_program =
        std::none_of(plan.ranks.begin(), plan.ranks.begin() + r,
                     [&](const Rank& other) { return other.program == rank.program; });
    if (!first_of_program) continue;
    for (const Instruction& i : plan.programs[rank.program.value].body) {
      if (!is_task(i.kind) || plan.names[i.name].op != options.op) continue;
      const Call& call = plan.calls[i.call];
      const std::string key =
          fmt::format("{} {}", shape_of(call.op), static_cast<int>(plan.names[i.name].phase));
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
      const bool collective = i.kind == Kind::Collective;
      if (!collective && i.kind != Kind::Kernel && i.kind != Kind::HostTask) continue;
      seen.push_back(key);
      nlohmann::ordered_json row{{"name", plan.full_name(i)}, {"shape", shape_of(call.op)}};
      row.update(collective ? explain_collective(plan, RankId(r), call, costs, topology)
                            : explain_kernel(call, costs, topology.device_kind(rank.gpu)));
      out.push_back(std::move(row));
    }
  }
  return out;
}

[[noreturn]] void no_such_op(const Plan& plan, const std::string& op) {
  std::vector<std::string> names;
  for (const Name& n : plan.names) names.push_back(n.op);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  throw InputError("--op", "", op, "is no operation of this plan",
                   fmt::format("one of: {}", fmt::join(names, ", ")));
}

int explain(const Options& options) {
  const Scenario scenario =
      load_scenario(options.scenario, options.sets, {data_directory() / "scenarios"});
  const Topology topology(scenario.cluster);
  const HardwareModel costs(topology, scenario.job, data_directory() / "hwmodels");
  const auto outcome = make_plan(scenario.workload, scenario.cluster, scenario.layout, scenario.job,
                                 nullptr, &costs);
  if (const auto* infeasible = std::get_if<Infeasible>(&outcome)) {
    fmt::print(stderr, "gputwin: infeasible: {}\n", infeasible->reason);
    return kInfeasible;
  }
  const Plan& plan = std::get<Plan>(outcome);
  const nlohmann::ordered_json rows = explain_all(plan, options, costs, topology);
  if (rows.empty()) no_such_op(plan, options.op);
  if (options.json) {
    fmt::print("{}\n", rows.dump(2));
    return kDone;
  }
  for (const auto& row : rows) {
    fmt::print("{}\n  {}\n  {:.2f} us by {}\n", row["name"].get<std::string>(),
               row["shape"].get<std::string>(), row["time_us"].get<double>(),
               row["model"].get<std::string>());
    for (const auto& [term, value] : row["terms"].items())
      fmt::print("    {:<16} {:.6g}\n", term, value.get<double>());
  }
  fmt::print("Sources of the constants: hwmodels/devices/*.json, hwmodels/README.md\n");
  return kDone;
}

}  // namespace

Action add_explain(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "explain", "Cost terms of one operation, with the equation they come from");
  command->footer("Example: gputwin explain gpt3_175b__a100_128x8__tp8_pp16_dp8 --op fc1");
  auto options = std::make_shared<Options>();
  command->add_option("scenario", options->scenario, "Scenario file or name")->required();
  command->add_option("--op", options->op, "Operation, as in the trace: qkv, fc1, tp_all_reduce")
      ->required();
  command->add_option("--set", options->sets, "Override path=value; repeatable");
  command->add_flag("--json", options->json, "Print JSON");
  return [options] { return explain(*options); };
}

}  // namespace gputwin::cli
