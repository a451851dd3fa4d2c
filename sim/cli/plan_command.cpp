// gputwin plan: how methods from the literature would cut a layer graph, and how fast each runs.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hwmodels/hardware_model.h"
#include "sim/app/data_directory.h"
#include "sim/app/graph_costs.h"
#include "sim/app/scenario.h"
#include "sim/app/terminal_progress.h"
#include "sim/app/worker_pool.h"
#include "sim/cli/commands.h"
#include "sim/core/error.h"
#include "sim/core/spelling.h"
#include "sim/core/topology.h"
#include "strategies/layouts/endless.h"
#include "strategies/layouts/planners.h"
#include "strategies/lowering/layer_graph.h"
#include "strategies/lowering/stack_kernels.h"

namespace gputwin::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string scenario;
  std::vector<std::string> sets, methods;
  std::int64_t micro_batch = 0;
  bool json = false, allow_stale = false;
};

/// One planner's proposal and what became of it. Times are of the scenario's global batch.
struct Proposal {
  std::string method, stages, status;
  PipelinePlan plan;
  Layout layout;
  std::int64_t batch = 0;  // samples of an iteration
  bool often = false;      // steps after every micro-batch, or never drains: compared apart
  bool stale = false;      // gradients of older weights
  double estimate_s = 0, iteration_s = 0, memory_bytes = 0;
};

BytesPerSecond inside(const NodeType& type) {
  if (type.intra.kind == IntraKind::Pcie) {
    return BytesPerSecond(type.pcie.per_gpu.value * type.pcie.efficiency);
  }
  return BytesPerSecond(type.intra.per_gpu.value * type.intra.efficiency);
}

PipelineWorld world_of(const Scenario& s, std::int64_t samples) {
  const Topology topology(s.cluster);
  const HardwareModel costs(topology, s.job, data_directory() / "hwmodels");
  const NodeType& type = s.cluster.groups.front().type;
  PipelineWorld world;
  world.units =
      unit_costs(std::get<LayerGraph>(s.workload), s.job, samples, costs, DeviceKindId(0));
  world.devices = s.layout.ranks();
  world.devices_per_node = std::min(type.gpus, world.devices);
  world.in_node = inside(type);
  const double nics = type.nics.each.value * type.nics.efficiency * type.nics.per_node;
  world.between = BytesPerSecond(nics > 0 ? nics : world.in_node.value);
  world.bucket = Bytes(stored_bytes(s.job.precision.grads, bucket_elements(s.layout, s.job)));
  world.micro_batches = static_cast<std::int32_t>(s.job.global_batch / samples);
  world.samples = samples;
  return world;
}

std::string stages_text(const PipelinePlan& plan) {
  std::string text;
  for (const PipelineStage& s : plan) {
    text += fmt::format("{}{}-{}", text.empty() ? "" : " | ", s.first, s.last);
    if (s.replicas > 1) text += fmt::format(" x{}", s.replicas);
  }
  return text;
}

Json scenario_with(const Scenario& s, const Layout& layout, std::int64_t batch) {
  Json scenario = Json::parse(s.resolved);
  scenario["job"]["global_batch"] = batch;
  Json& l = scenario["layout"];
  const Json recompute = l.value("recompute", "none");
  Json devices = Json::array();
  for (const GpuId gpu : layout.devices) devices.push_back(gpu.value);
  const Json bucket = l.value("bucket_elements", Json());
  l = {{"pp", layout.pp},
       {"schedule", to_string(layout.schedule)},
       {"micro_batch", layout.micro_batch},
       {"recompute", recompute},
       {"stage_layers", layout.stage_layers},
       {"stage_replicas", layout.stage_replicas}};
  if (!devices.empty()) l["devices"] = std::move(devices);
  if (!bucket.is_null()) l["bucket_elements"] = bucket;
  return scenario;
}

void simulate(const Scenario& s, std::vector<Proposal>& proposals) {
  std::vector<Json> requests;
  for (const Proposal& p : proposals) {
    requests.push_back(
        {{"name", p.method}, {"scenario", scenario_with(s, p.layout, p.batch)}, {"exact", true}});
  }
  TerminalProgress progress("simulating plans", stderr);
  WorkerPool pool(this_program(), usable_processors());
  const auto answers = pool.run(requests, [&](double share) { return progress.progress(share); });
  for (std::size_t i = 0; i < proposals.size(); ++i) {
    Proposal& p = proposals[i];
    p.status = answers[i].at("status").get<std::string>();
    if (p.status != "ok") {
      p.status += ": " + answers[i].at("reason").get<std::string>();
      continue;
    }
    const Json& result = answers[i].at("result");
    p.iteration_s = result.at("iteration_time_s").get<double>() *
                    static_cast<double>(s.job.global_batch) / static_cast<double>(p.batch);
    p.memory_bytes = result.at("memory").at("peak_device_bytes").get<double>();
  }
}

/// Of each method the proposal that runs fastest; its first where none runs.
std::vector<Proposal> fastest_by_method(std::vector<Proposal> proposals) {
  std::vector<Proposal> best;
  for (Proposal& p : proposals) {
    if (best.empty() || best.back().method != p.method) {
      best.push_back(std::move(p));
    } else if (p.status == "ok" &&
               (best.back().status != "ok" || p.iteration_s < best.back().iteration_s)) {
      best.back() = std::move(p);
    }
  }
  return best;
}

double time_of(const std::vector<Proposal>& proposals, const std::string& method) {
  for (const Proposal& p : proposals) {
    if (p.method == method) return p.iteration_s;
  }
  return 0;
}

const Proposal* fastest(const std::vector<Proposal>& proposals, bool often) {
  const Proposal* best = nullptr;
  for (const Proposal& p : proposals) {
    const bool counts = p.status == "ok" && p.often == often;
    if (counts && (best == nullptr || p.iteration_s < best->iteration_s)) best = &p;
  }
  return best;
}

/// Where a pipeline of several stages helps, and where it cannot.
std::string verdict(const std::vector<Proposal>& proposals) {
  constexpr double kWorthIt = 0.02;
  const Proposal* best = fastest(proposals, false);
  const double all = time_of(proposals, "data-parallel");
  if (best == nullptr) return "no plan with a flush runs";
  if (all == 0) return fmt::format("best: {}", best->method);
  if (all < best->iteration_s * (1 + kWorthIt)) {
    return "data parallelism is as fast as any cut: hybrid partitioning cannot help here";
  }
  return fmt::format("best: {}, {:.2f}x over data parallelism", best->method,
                     all / best->iteration_s);
}

/// What is said of the plans that were asked for with --allow-stale; else empty.
std::string endless_verdict(const std::vector<Proposal>& proposals) {
  const Proposal* best = fastest(proposals, true);
  if (best == nullptr) return "";
  const double all = time_of(proposals, "data-parallel-step");
  std::string text =
      fmt::format("with a step after every micro-batch or no flush: {}", best->method);
  if (all > 0) {
    text +=
        fmt::format(", {:.2f}x over data parallelism that steps as often", all / best->iteration_s);
  }
  if (best->stale) {
    text +=
        "; its gradients are those of older weights (stale), and what that does to accuracy is not "
        "modelled";
  }
  return text;
}

void print_table(const std::vector<Proposal>& proposals) {
  const double all = time_of(proposals, "data-parallel"), even = time_of(proposals, "gpipe");
  fmt::print("{:<18} {:>11} {:>11} {:>8} {:>8} {:>8}  {}\n", "method", "iteration", "closed form",
             "vs dp", "vs gpipe", "memory", "stages (units x replicas)");
  const auto name = [](const Proposal& p) { return p.method + (p.stale ? "*" : ""); };
  for (const Proposal& p : proposals) {
    if (p.status != "ok") {
      fmt::print("{:<18} {:>11} {:>9.4f} s  {}: {}\n", name(p), "-", p.estimate_s, p.stages,
                 p.status);
      continue;
    }
    const auto ratio = [&](double to) {
      return to > 0 ? fmt::format("{:.2f}x", to / p.iteration_s) : std::string("-");
    };
    fmt::print("{:<18} {:>9.4f} s {:>9.4f} s {:>8} {:>8} {:>5.1f} GiB  {}\n", name(p),
               p.iteration_s, p.estimate_s, ratio(all), ratio(even),
               p.memory_bytes / (1024.0 * 1024 * 1024), p.stages);
  }
  fmt::print("{}\n", verdict(proposals));
  const bool stale =
      std::any_of(proposals.begin(), proposals.end(), [](const Proposal& p) { return p.stale; });
  if (stale) fmt::print("* no flush: gradients are those of older weights (stale)\n");
  if (const std::string text = endless_verdict(proposals); !text.empty()) {
    fmt::print("{}\n", text);
  }
}

void print_json(const std::vector<Proposal>& proposals) {
  Json rows = Json::array();
  for (const Proposal& p : proposals) {
    Json stages = Json::array();
    for (const PipelineStage& s : p.plan) {
      stages.push_back({{"first", s.first}, {"last", s.last}, {"replicas", s.replicas}});
    }
    const bool ok = p.status == "ok";
    rows.push_back({{"method", p.method},
                    {"status", ok ? "ok" : p.status.substr(0, p.status.find(':'))},
                    {"reason", ok ? Json(nullptr) : Json(p.status)},
                    {"iteration_time_s", ok ? Json(p.iteration_s) : Json(nullptr)},
                    {"closed_form_s", p.estimate_s},
                    {"stale_weights", p.stale},
                    {"peak_device_bytes", ok ? Json(p.memory_bytes) : Json(nullptr)},
                    {"stages", std::move(stages)}});
  }
  Json page{{"plans", std::move(rows)}, {"verdict", verdict(proposals)}};
  if (const std::string text = endless_verdict(proposals); !text.empty()) {
    page["endless_verdict"] = text;
  }
  fmt::print("{}\n", page.dump(2));
}

bool asked(const Options& options, const std::string& method) {
  const auto& wanted = options.methods;
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), method) != wanted.end();
}

std::vector<Proposal> with_flush(const Options& options, const Scenario& s, std::int64_t samples) {
  const PipelineWorld world = world_of(s, samples);
  std::vector<Proposal> proposals;
  for (const PlannerEntry& planner : planners()) {
    if (!asked(options, planner.name)) continue;
    for (PipelinePlan& plan : proposals_by(planner.name, world)) {
      Proposal p;
      p.method = planner.name;
      p.plan = std::move(plan);
      p.layout = layout_of(p.method, p.plan, samples);
      p.batch = s.job.global_batch;
      p.estimate_s = synchronous_time(world, p.plan).value;
      p.stages = stages_text(p.plan);
      proposals.push_back(std::move(p));
    }
  }
  return proposals;
}

/// Each GPU works on a micro-batch of its share of `samples`; iterations hold about as many samples
/// as the scenario's.
std::vector<Proposal> without_flush(const Options& options, const Scenario& s,
                                    std::int64_t samples) {
  const std::int64_t each = samples / s.layout.ranks();
  if (each * s.layout.ranks() != samples) {
    throw InputError("--micro-batch", "", std::to_string(samples),
                     fmt::format("does not divide over {} GPUs", s.layout.ranks()),
                     "without a flush each GPU takes whole micro-batches: use a multiple of it");
  }
  PipelineWorld world = world_of(s, each);
  world.samples = 0;
  std::vector<Proposal> proposals;
  for (const EndlessEntry& planner : endless_planners()) {
    if (!asked(options, planner.name)) continue;
    for (PipelinePlan& plan : endless_proposals(planner.name, world)) {
      Proposal p;
      p.method = planner.name;
      p.layout = endless_layout(planner, plan, each);
      p.often = true;
      p.stale = never_drains(p.layout.schedule);
      p.batch = p.stale ? each * endless_micro_batches(p.layout, s.job.global_batch / each)
                        : p.layout.micro_batch;
      const bool each_round = planner.schedule != Schedule::PipedreamAsync;
      p.estimate_s = endless_time(world, plan, each_round).value *
                     static_cast<double>(s.job.global_batch) / static_cast<double>(each);
      p.stages = stages_text(plan);
      p.plan = std::move(plan);
      proposals.push_back(std::move(p));
    }
  }
  return proposals;
}

int plan(const Options& options) {
  const Scenario s =
      load_scenario(options.scenario, options.sets, {data_directory() / "scenarios"});
  if (!std::holds_alternative<LayerGraph>(s.workload)) {
    throw InputError(s.name, "/model/kind", "decoder", "is no layer graph",
                     "gputwin search looks for layouts of Transformers");
  }
  const std::int64_t samples =
      options.micro_batch > 0 ? options.micro_batch : s.layout.micro_batch * s.layout.dp;
  if (s.job.global_batch % samples != 0) {
    throw InputError("--micro-batch", "", std::to_string(samples),
                     fmt::format("does not divide the global batch ({})", s.job.global_batch),
                     "use a divisor of it");
  }
  for (const EndlessEntry& planner : endless_planners()) {
    const auto& wanted = options.methods;
    if (options.allow_stale ||
        std::find(wanted.begin(), wanted.end(), planner.name) == wanted.end())
      continue;
    throw InputError("--method", "", planner.name, "is compared with --allow-stale alone",
                     "add --allow-stale if gradients of older weights will do");
  }
  std::vector<Proposal> proposals = with_flush(options, s, samples);
  if (options.allow_stale) {
    for (Proposal& p : without_flush(options, s, samples)) proposals.push_back(std::move(p));
  }
  simulate(s, proposals);
  proposals = fastest_by_method(std::move(proposals));
  options.json ? print_json(proposals) : print_table(proposals);
  const bool any = std::any_of(proposals.begin(), proposals.end(),
                               [](const Proposal& p) { return p.status == "ok"; });
  return any ? kDone : kInfeasible;
}

}  // namespace

Action add_plan(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "plan", "How planners would cut a layer graph into stages and replicas, simulated");
  command->footer(
      "Example: gputwin plan vgg16__v100_10gbe_4x1__tp1_pp2_dp1_1f1b_3-1\n"
      "All GPUs of the scenario's layout are used. Of hybrid ten plans are simulated, the fastest "
      "is shown. With --allow-stale each GPU takes whole micro-batches of its share, and times are "
      "those of as many samples. Exit codes: 0 done, 2 bad input, 3 no plan "
      "runs.");
  auto o = std::make_shared<Options>();
  command->add_option("scenario", o->scenario, "Scenario file, or the name of a shipped run")
      ->required();
  command->add_option("--set", o->sets, "Override path=value, for example job.global_batch=256");
  std::vector<std::string> names;
  for (const PlannerEntry& p : planners()) names.emplace_back(p.name);
  for (const EndlessEntry& p : endless_planners()) names.emplace_back(p.name);
  command->add_option("--method", o->methods, "Only these planners")->check(CLI::IsMember(names));
  command
      ->add_option("--micro-batch", o->micro_batch,
                   "Samples that the replicas of a stage share (default: the layout's, times dp)")
      ->check(CLI::PositiveNumber);
  command->add_flag("--allow-stale", o->allow_stale,
                    "Also pipelines without a flush (pipedream-stash, hybrid-stash, "
                    "pipedream-2bw): gradients are those of older weights; what that does to "
                    "accuracy is not modelled");
  command->add_flag("--json", o->json, "Print JSON instead of a table");
  return [o] { return plan(*o); };
}

}  // namespace gputwin::cli
