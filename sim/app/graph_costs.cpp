#include "sim/app/graph_costs.h"

#include <algorithm>

#include "sim/core/check.h"
#include "strategies/lowering/graph_weights.h"
#include "strategies/lowering/layer_graph.h"

namespace gputwin {
namespace {

// A cluster of one device: what a plan of one stage needs.
Cluster one_gpu() {
  Cluster cluster;
  cluster.groups.push_back({.type = {.device = "any", .gpus = 1}, .count = 1});
  return cluster;
}

}  // namespace

LayerCosts unit_costs(const LayerGraph& graph, const Job& job, std::int64_t samples,
                      const CostModel& costs, DeviceKindId device) {
  Job one = job;
  one.global_batch = samples;
  Layout layout;
  layout.micro_batch = samples;
  layout.schedule = Schedule::None;
  const Outcome<Plan> outcome = lower_graph(graph, one_gpu(), layout, one);
  const Plan* plan = std::get_if<Plan>(&outcome);
  GPUTWIN_CHECK(plan != nullptr, "one stage on one device can always be lowered");
  LayerCosts units(static_cast<std::size_t>(graph.units()));
  Seconds step{};  // of all weights
  for (const Instruction& i : plan->programs[0].body) {
    if (i.kind != Kind::Kernel) continue;
    const Name& name = plan->names[i.name];
    const Call& call = plan->call(i);
    const Seconds time =
        costs.kernel(call.op, bytes_of(call.reads), bytes_of(call.writes), device).time;
    if (name.layer < 0) {
      step += time;
      continue;
    }
    LayerCost& unit = units[static_cast<std::size_t>(name.layer)];
    (name.phase == Phase::Forward ? unit.forward : unit.backward) += time;
  }
  const DType activation = graph_activation(job);
  for (std::size_t l = 0; l < graph.layers.size(); ++l) {
    const GraphLayer& layer = graph.layers[l];
    LayerCost& unit = units[static_cast<std::size_t>(layer.unit)];
    unit.weights += Bytes(stored_bytes(job.precision.params, parameters_of(graph, layer)));
    if (unit.name.empty()) unit.name = layer.name.substr(0, layer.name.find('.'));
    std::int32_t last = layer.unit;
    for (std::size_t c = l + 1; c < graph.layers.size(); ++c) {
      const auto& inputs = graph.layers[c].inputs;
      const bool reads =
          std::find(inputs.begin(), inputs.end(), static_cast<std::int32_t>(l)) != inputs.end();
      if (reads) last = graph.layers[c].unit;
    }
    for (std::int32_t u = layer.unit; u < last; ++u) {
      units[static_cast<std::size_t>(u)].output +=
          Bytes(stored_bytes(activation, samples * layer.output.elements()));
    }
  }
  double weights = 1;
  for (const LayerCost& u : units) weights += static_cast<double>(u.weights.value);
  for (LayerCost& u : units) u.step = step * (static_cast<double>(u.weights.value) / weights);
  for (std::size_t u = 1; u < units.size(); ++u) {
    units[u].inputs = {static_cast<std::int32_t>(u) - 1};
  }
  return units;
}

}  // namespace gputwin
