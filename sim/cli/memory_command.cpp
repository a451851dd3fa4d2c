// gputwin memory: closed forms of training memory, for a first estimate without a plan. `run`
// counts buffers instead and is the better figure.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "hwmodels/memory/closed_forms.h"
#include "sim/app/data_directory.h"
#include "sim/app/scenario.h"
#include "sim/cli/commands.h"
#include "sim/core/error.h"

namespace gputwin::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

struct EstimateOptions {
  std::string scenario;
  std::vector<std::string> sets;
  bool json = false;
};

struct DeepSpeedOptions {
  double parameters = 0, largest_layer = 0, buffer_factor = 1.5;
  std::int32_t gpus_per_node = 8, nodes = 1;
  bool json = false;
};

// Parameters a rank of each stage holds: its layers over tp, the embedding on the first stage, the
// head (a copy of it where they are tied and stages are several) on the last.
std::vector<double> stage_parameters(const Transformer& m, const Layout& l) {
  const std::vector<std::int32_t> layers = l.layers_per_chunk(m.layers);
  std::vector<double> held(static_cast<std::size_t>(l.pp), 0.0);
  for (std::size_t c = 0; c < layers.size(); ++c) {
    held[c % held.size()] += static_cast<double>(layers[c] * m.parameters_of_layer(0));
  }
  const auto table = static_cast<double>(m.vocab * m.hidden);
  held.front() += table + static_cast<double>(m.max_positions * m.hidden);
  if (!m.tied_embeddings || l.pp > 1) held.back() += table;
  for (double& p : held) p /= l.tp;
  return held;
}

Json estimate_of(const Scenario& s) {
  if (!std::holds_alternative<Transformer>(s.workload)) {
    throw InputError(s.name, "/model/kind", "layer-graph", "has no closed form of its memory",
                     "gputwin run counts it");
  }
  const auto& model = std::get<Transformer>(s.workload);
  const Layout& l = s.layout;
  const ActivationShape kept{.sequence = s.job.sequence,
                             .micro_batch = l.micro_batch,
                             .tp = l.tp,
                             .sequence_parallel = l.sp,
                             .flash = is_flash(s.job.attention),
                             .recompute = l.recompute,
                             .cp = l.cp};
  ActivationShape live = kept;
  live.recompute = Recompute::None;
  const StateBytes bytes = state_bytes(s.job.precision, l.zero, l.shards());
  const std::vector<double> parameters = stage_parameters(model, l);
  const std::vector<std::int32_t> layers = l.layers_per_chunk(model.layers);
  const auto micro_batches = static_cast<std::int32_t>(s.job.global_batch / (l.micro_batch * l.dp));
  Json stages = Json::array();
  for (std::int32_t p = 0; p < l.pp; ++p) {
    double own = 0;
    for (std::size_t c = static_cast<std::size_t>(p); c < layers.size();
         c += static_cast<std::size_t>(l.pp)) {
      own += layers[c];
    }
    const double in_flight = live_micro_batches(l.schedule, p, l.pp, l.vpp, micro_batches);
    const double held = parameters[static_cast<std::size_t>(p)];
    stages.push_back(
        {{"stage", p},
         {"layers", own},
         {"parameters", held},
         {"weights_bytes", bytes.weights * held},
         {"gradients_bytes", bytes.gradients * held},
         {"optimizer_bytes", bytes.optimizer * held},
         {"live_micro_batches", in_flight},
         {"activations_bytes", own * in_flight * activation_bytes_per_layer(model, kept)}});
  }
  return {{"parameters", model.parameters()},
          {"bytes_per_parameter",
           {{"weights", bytes.weights},
            {"gradients", bytes.gradients},
            {"optimizer", bytes.optimizer},
            {"total", bytes.total()}}},
          {"activations_per_layer_bytes", activation_bytes_per_layer(model, kept)},
          {"activations_of_a_live_layer_bytes", activation_bytes_per_layer(model, live)},
          {"logits_fp32_bytes", logits_bytes(model, kept)},
          {"stages", stages}};
}

int estimate(const EstimateOptions& o) {
  const Json e = estimate_of(load_scenario(o.scenario, o.sets, {data_directory() / "scenarios"}));
  if (o.json) {
    fmt::print("{}\n", e.dump(2));
    return kDone;
  }
  const Json& per = e["bytes_per_parameter"];
  fmt::print("{:.4g} parameters at {:.4g} B: weights {:.4g}, gradients {:.4g}, optimizer {:.4g}\n",
             e["parameters"].get<double>(), per["total"].get<double>(),
             per["weights"].get<double>(), per["gradients"].get<double>(),
             per["optimizer"].get<double>());
  fmt::print("one layer keeps {:.2f} GiB, computing {:.2f} GiB; fp32 logits {:.2f} GiB\n",
             e["activations_per_layer_bytes"].get<double>() / kGiB,
             e["activations_of_a_live_layer_bytes"].get<double>() / kGiB,
             e["logits_fp32_bytes"].get<double>() / kGiB);
  fmt::print("{:>5}{:>8}{:>12}{:>9}{:>8}{:>8}{:>8}{:>10}  GiB\n", "stage", "layers", "parameters",
             "weights", "grads", "optim", "live", "activ");
  for (const Json& s : e["stages"]) {
    const auto of = [&](const char* key) { return s[key].get<double>(); };
    fmt::print("{:>5}{:>8}{:>12.4g}{:>9.2f}{:>8.2f}{:>8.2f}{:>8.2f}{:>10.2f}\n",
               s["stage"].get<int>(), of("layers"), of("parameters"), of("weights_bytes") / kGiB,
               of("gradients_bytes") / kGiB, of("optimizer_bytes") / kGiB, of("live_micro_batches"),
               of("activations_bytes") / kGiB);
  }
  return kDone;
}

int deepspeed(const DeepSpeedOptions& o) {
  Json out;
  const auto add = [&](const char* name, std::int32_t zero, HostOffload offload) {
    const DeepSpeedEstimate e = deepspeed_estimate(zero, offload, o.parameters, o.largest_layer,
                                                   o.gpus_per_node, o.nodes, o.buffer_factor);
    out[name] = {{"gpu_bytes", e.gpu},
                 {"host_bytes", e.host},
                 {"host_without_zero_init_bytes", e.host_without_init}};
  };
  add("zero2", 2, HostOffload::None);
  add("zero2_offload_optimizer", 2, HostOffload::Optimizer);
  add("zero3", 3, HostOffload::None);
  add("zero3_offload_optimizer", 3, HostOffload::Optimizer);
  add("zero3_offload_optimizer_params", 3, HostOffload::OptimizerAndParameters);
  if (o.json) {
    fmt::print("{}\n", out.dump(2));
    return kDone;
  }
  fmt::print("{:<32}{:>12}{:>12}{:>24}\n", "GiB of model states", "per GPU", "per host",
             "host without zero.Init");
  for (const auto& [name, e] : out.items()) {
    fmt::print("{:<32}{:>12.2f}{:>12.2f}{:>24.2f}\n", name, e["gpu_bytes"].get<double>() / kGiB,
               e["host_bytes"].get<double>() / kGiB,
               e["host_without_zero_init_bytes"].get<double>() / kGiB);
  }
  return kDone;
}

Action add_estimate(CLI::App& memory) {
  CLI::App* command = memory.add_subcommand(
      "estimate", "Parameters, states and activations of a scenario, by pipeline stage");
  command->footer("Example: gputwin memory estimate gpt3_175b__a100_128x8__tp8_pp16_dp8");
  auto o = std::make_shared<EstimateOptions>();
  command->add_option("scenario", o->scenario, "Scenario file, or the name of a shipped run")
      ->required();
  command->add_option("--set", o->sets, "Override a value, for example layout.zero=1; repeatable");
  command->add_flag("--json", o->json, "Print JSON");
  return [o] { return estimate(*o); };
}

Action add_deepspeed(CLI::App& memory) {
  CLI::App* command = memory.add_subcommand(
      "deepspeed", "What DeepSpeed's ZeRO estimators say, with and without offloading");
  command->footer(
      "Example: gputwin memory deepspeed --params 2.851e9 --largest-layer 32e6 --gpus-per-node 8");
  auto o = std::make_shared<DeepSpeedOptions>();
  command->add_option("--params", o->parameters, "Parameters of the model")
      ->required()
      ->check(CLI::Range(1.0, 1e15));
  command->add_option("--largest-layer", o->largest_layer, "Parameters of its largest layer")
      ->check(CLI::Range(0.0, 1e15));
  command->add_option("--gpus-per-node", o->gpus_per_node, "GPUs of a node")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--nodes", o->nodes, "Nodes")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--buffer-factor", o->buffer_factor, "DeepSpeed's additional_buffer_factor")
      ->check(CLI::Range(1.0, 100.0))
      ->capture_default_str();
  command->add_flag("--json", o->json, "Print JSON");
  return [o] { return deepspeed(*o); };
}

}  // namespace

Action add_memory(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("memory", "Closed forms of training memory, without a plan");
  command->require_subcommand(1);
  const Action estimates = add_estimate(*command), deepspeeds = add_deepspeed(*command);
  return [command, estimates, deepspeeds] {
    return command->got_subcommand("deepspeed") ? deepspeeds() : estimates();
  };
}

}  // namespace gputwin::cli
