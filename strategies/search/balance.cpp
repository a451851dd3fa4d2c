#include "strategies/search/balance.h"

#include <algorithm>

namespace gputwin {
namespace {

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

std::int32_t block(const Layout& l) { return l.tp * l.cp * l.dp; }

// GPUs of every device kind, in the order in which stages take them.
std::vector<std::vector<GpuId>> by_kind(const Topology& topology, std::size_t kinds) {
  std::vector<std::vector<GpuId>> gpus(kinds);
  for (std::uint32_t g = 0; g < static_cast<std::uint32_t>(topology.gpus()); ++g) {
    gpus[topology.device_kind(GpuId(g)).value].push_back(GpuId(g));
  }
  return gpus;
}

// Bytes of one more layer: of all states with the layout's sharding, and kept per micro-batch.
ChainMemory memory_of(const ChunkFigures& f, const Layout& layout) {
  const double shards = layout.zero == 1 ? layout.shards() : 1;
  return {.state = f.weights + f.gradients + f.other + f.optimizer / shards, .kept = f.kept};
}

ChainMemory operator+(const ChainMemory& a, const ChainMemory& b) {
  return {a.state + b.state, a.kept + b.kept, a.gradient + b.gradient};
}

}  // namespace

ChainProblem chain_of(const Layout& layout, const Transformer& model, const Cluster& cluster,
                      const Job& job, const Topology& topology, const CostModel& costs,
                      LayoutEstimator& estimator) {
  ChainProblem p;
  const std::vector<std::string> names = cluster.device_kinds();
  const auto gpus = by_kind(topology, names.size());
  const std::vector<std::int32_t> sizes{layout.tp, layout.dp * layout.cp, layout.ranks()};
  p.options = {{.devices = block(layout), .replicas = layout.dp * layout.cp}};
  std::vector<const ChunkTable*> tables;
  for (std::uint32_t k = 0; k < names.size(); ++k) {
    const MemoryCost memory = costs.memory(DeviceKindId(k), sizes);
    const Bytes taken = memory.context + memory.communicators + memory.workspace;
    const double has = static_cast<double>((memory.capacity - taken).value);
    const std::int32_t per_node = topology.node_type(gpus[k][0]).gpus;
    const auto count = static_cast<std::int32_t>(gpus[k].size());
    const std::int32_t used = names.size() == 1 ? layout.ranks() : count;
    const std::int32_t in_node = used % per_node == 0 ? per_node : used;
    // Messages are in the latency, so links need no rate.
    p.devices.push_back(
        {names[k], used / in_node, in_node, memory.capacity.value > 0 ? has : 0, 1e30});
    tables.push_back(&estimator.table(layout, DeviceKindId(k)));
  }
  p.between = 1e30;
  p.micro_batches = static_cast<std::int32_t>(job.global_batch / (layout.micro_batch * layout.dp));
  p.all_in_flight = layout.schedule == Schedule::Gpipe;
  p.most_stages = layout.pp;
  p.use_all = true;
  for (std::int64_t l = 0; l < model.layers; ++l) {
    std::vector<ChainCost> of_layer;
    const bool dense = model.has_experts() && l < model.moe.dense_layers;
    const auto layer = dense ? &ChunkTable::dense_layer : &ChunkTable::layer;
    ChainMemory memory = memory_of(tables[0]->*layer, layout);
    for (const ChunkTable* t : tables) {
      ChainCost c{(t->*layer).forward, (t->*layer).backward};
      for (const ChunkFigures* end :
           {l == 0 ? &t->embedding : nullptr, l + 1 == model.layers ? &t->head : nullptr}) {
        if (end == nullptr) continue;
        c.forward += end->forward;
        c.backward += end->backward;
        if (t == tables[0]) memory = memory + memory_of(*end, layout);
      }
      of_layer.push_back(c);
    }
    p.costs.push_back({std::move(of_layer)});
    p.memory.push_back({memory});
    p.output.push_back(0);
  }
  return p;
}

std::optional<Layout> balanced(const Layout& layout, const Transformer& model,
                               const Cluster& cluster, const Job& job, const Topology& topology,
                               const CostModel& costs, LayoutEstimator& estimator) {
  const std::size_t kinds = cluster.device_kinds().size();
  if (layout.pp == 1 || layout.vpp > 1 || layout.recompute == Recompute::Block) return {};
  if (kinds > 1 && layout.ranks() != topology.gpus()) return {};
  const ChainProblem problem = chain_of(layout, model, cluster, job, topology, costs, estimator);
  const std::optional<ChainPlan> plan = partition(problem, {.tolerance = 0.005});
  if (!plan || static_cast<std::int32_t>(plan->stages.size()) != layout.pp) return {};
  Layout moved = layout;
  moved.stage_layers.clear();
  for (const ChainStage& s : plan->stages) moved.stage_layers.push_back(s.last - s.first);
  if (kinds == 1) return moved;
  auto gpus = by_kind(topology, kinds);
  std::vector<std::size_t> next(kinds, 0);
  moved.devices.assign(at(layout.ranks()), GpuId(0));
  for (std::int32_t s = layout.pp; s-- > 0;) {
    std::int32_t rank = s * block(layout);
    for (std::size_t k = 0; k < kinds; ++k) {
      for (std::int32_t n = 0; n < plan->stages[at(s)].take[k]; ++n) {
        moved.devices[at(rank++)] = gpus[k][next[k]++];
      }
    }
  }
  return moved;
}

}  // namespace gputwin
