#include "strategies/search/estimate.h"

#include <algorithm>
#include <unordered_map>

#include "strategies/lowering/feasibility.h"
#include "strategies/lowering/stack_kernels.h"
#include "strategies/lowering/wiring.h"
#include "strategies/search/layout_costs.h"
#include "strategies/search/offload_costs.h"

namespace gputwin {
namespace {

using Key = std::array<std::int32_t, 18>;

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t hash = 0;
    for (const std::int32_t k : key) {
      hash = (hash ^ static_cast<std::uint32_t>(k)) * 0x9e3779b97f4a7c15u;
    }
    return hash ^ hash >> 32;
  }
};

std::int32_t number(auto value) { return static_cast<std::int32_t>(value); }

// The order of ranks, and with one of its own the stages it steps over.
std::int32_t placing(const Layout& l) {
  if (l.rank_order == Layout().rank_order) return 0;
  std::int32_t code = l.pp;
  for (const Dim d : l.rank_order) code = 4 * code + number(d);
  return code;
}

Key chunk_key(const Layout& l, const Job& job, DeviceKindId device) {
  const bool sharded = l.zero >= 2;
  return {l.tp,
          number(l.sp),
          l.cp,
          number(l.cp_comm),
          number(l.tp_overlap),
          number(l.micro_batch),
          number(l.recompute == Recompute::Block ? Recompute::None : l.recompute),
          sharded ? l.zero : 0,
          sharded ? l.dp : 0,
          sharded ? l.hsdp_group : 0,
          number(l.chunks() == 1),
          number(blocking_messages(l, job)),
          l.ep,
          0,
          number(sharded && l.overlap_param_gather),
          number(sharded && l.overlap_grad_reduce),
          number(device.value),
          placing(l)};
}

Key grid_key(const Layout& l) {
  return {l.tp,
          l.sp,
          l.cp,
          l.dp,
          l.pp,
          l.vpp,
          l.zero,
          l.hsdp_group,
          l.overlap_grad_reduce,
          number(l.bucket_elements),
          placing(l),
          l.ep,
          0,
          0,
          0,
          0,
          0,
          0};
}

Key message_key(const Layout& l, Bytes message) {
  return {l.tp * l.cp,
          l.dp,
          l.pp,
          placing(l),
          number(message.value >> 31),
          number(message.value & 0x7fffffff)};
}

}  // namespace

struct LayoutEstimator::State {
  State(const Transformer& m, const Cluster& c, const Job& j, const CostModel& costs,
        const Topology& topology)
      : probed{m, c, j}, prices(costs, topology) {
    const auto kinds = c.device_kinds().size();
    for (std::int32_t g = 0; g < topology.gpus() && first_gpu.size() < kinds; ++g) {
      const GpuId gpu(static_cast<std::uint32_t>(g));
      if (topology.device_kind(gpu).value == first_gpu.size()) first_gpu.push_back(gpu);
    }
    for (std::uint32_t k = 0; k < kinds; ++k) {
      const Bytes has = costs.memory(DeviceKindId(k), {}).capacity;
      most_memory = has.value == 0 ? Bytes(INT64_MAX) : std::max(most_memory, has);
    }
  }

  const ChunkTable& table(const Layout& layout, DeviceKindId device) {
    std::unique_ptr<ChunkTable>& t = tables[chunk_key(layout, probed.job, device)];
    if (!t) {
      Outcome<ChunkTable> made = probe_chunks(probed, layout, first_gpu.at(device.value), prices);
      // The layout was accepted, so the smaller one is too, but for limits on the whole job.
      if (auto* no = std::get_if<Infeasible>(&made)) throw std::logic_error(no->reason);
      t = std::make_unique<ChunkTable>(std::move(std::get<ChunkTable>(made)));
    }
    return *t;
  }

  // Bytes of weights, gradients and states that a parameter takes at least on one GPU, states
  // spread over `shards`.
  double state_bytes(const Layout& l, std::int32_t shards) const {
    ParameterBytes gone = leaving_bytes(probed.job, l, shards);
    if (l.offload.optimizer_share >= 0) gone.states *= l.offload.optimizer_share;
    return parameter_bytes(probed.job, l, shards).all() - gone.all();
  }

  // A stage's micro-batches that are in flight at least.
  static double least_in_flight(const Layout& l, const Job& job) {
    const auto m = static_cast<double>(job.global_batch / l.micro_batch / l.dp);
    if (l.schedule == Schedule::Gpipe) return m;
    return l.vpp > 1 ? l.pp : std::min<double>(m, l.pp);  // interleaved: chunks, not stages
  }

  // What certainly does not fit, before a table is made for it: weights, gradients and states
  // alone, or with the first chunk's activations, taken from micro-batches of one sample.
  std::optional<Estimate> too_large(const Layout& l) {
    if (probed.job.lora_rank > 0) return std::nullopt;
    Estimate e;
    e.capacity = most_memory;
    const Transformer& m = probed.model;
    double experts = 0;
    for (std::int64_t i = 0; i < m.layers; ++i) {
      if (m.has_experts(i)) experts += static_cast<double>(m.moe.experts * m.expert_parameters());
    }
    const double dense = static_cast<double>(m.parameters()) - experts;
    const double split = std::max(l.ep, l.tp);
    e.memory =
        Bytes(static_cast<std::int64_t>((dense / l.tp * state_bytes(l, l.shards()) +
                                         experts / split * state_bytes(l, expert_replicas(l))) /
                                        l.pp));
    if (!e.fits()) return e;
    Layout one = l;
    one.micro_batch = 1;
    const bool known = l.micro_batch > 1 && l.recompute != Recompute::Block &&
                       !refusal(probed.model, probed.cluster, one, probed.job);
    if (!known) return std::nullopt;
    const ChunkTable& of_one = table(one, DeviceKindId(0));
    const double kept = std::min(of_one.layer.kept, of_one.dense_layer.kept) *
                        l.layers_per_chunk(probed.model.layers)[0] *
                        static_cast<double>(l.micro_batch) * least_in_flight(l, probed.job);
    e.memory += Bytes(static_cast<std::int64_t>(kept));
    if (e.fits()) return std::nullopt;
    return e;
  }

  // What the closed form makes of it, of several ways to leave the fastest that fits.
  Estimate composed(const Layout& l, const Tables& tables, const GridCosts& grid,
                    const MessageCosts& messages_of) {
    if (!l.offload.enabled) return compose(probed, l, tables, grid, messages_of);
    const auto with = [&](const Absent& absent) {
      return compose(probed, l, tables, offloaded(probed, l, grid, absent, prices), messages_of);
    };
    GridCosts without = grid;
    const bool steps_leave = l.offload.optimizer != OffloadPlace::Gpu && !l.offload.step_on_gpu;
    for (StageCosts& stage : without.stages) stage.step *= steps_leave ? 0 : 1;
    const Estimate whole = compose(probed, l, tables, without, messages_of);
    const StageCosts& fullest = grid.stages[static_cast<std::size_t>(whole.stage)];
    const double parameters = fullest.persistent / parameter_bytes(probed.job, l, l.shards()).all();
    const double usable = static_cast<double>(whole.capacity.value) * (1 - l.offload.reserve);
    const double over = static_cast<double>(whole.memory.value) - usable;
    Estimate best;
    bool first = true;
    for (const Absent& absent : choices(probed, l, parameters, over)) {
      const Estimate e = with(absent);
      const auto cost = [](const Estimate& one) { return std::pair(!one.fits(), one.iteration); };
      if (first || cost(e) < cost(best)) best = e;
      first = false;
    }
    return best;
  }

  Tables tables_of(const Layout& layout) {
    Layout whole = layout;
    whole.recompute = Recompute::Full;
    Tables list;
    for (std::uint32_t k = 0; k < first_gpu.size(); ++k) {
      const DeviceKindId device(k);
      list.plain.push_back(&table(layout, device));
      list.full.push_back(layout.recompute == Recompute::Block ? &table(whole, device)
                                                               : list.plain.back());
    }
    return list;
  }

  Probed probed;
  Prices prices;
  Bytes most_memory{};           // of the largest device; 0: unknown
  std::vector<GpuId> first_gpu;  // by device kind
  std::unordered_map<Key, std::unique_ptr<ChunkTable>, KeyHash> tables;
  std::unordered_map<Key, std::unique_ptr<GridCosts>, KeyHash> grids;
  std::unordered_map<Key, MessageCosts, KeyHash> messages;
};

LayoutEstimator::LayoutEstimator(const Transformer& model, const Cluster& cluster, const Job& job,
                                 const CostModel& costs, const Topology& topology)
    : state_(std::make_unique<State>(model, cluster, job, costs, topology)) {}

LayoutEstimator::~LayoutEstimator() = default;

const ChunkTable& LayoutEstimator::table(const Layout& layout, DeviceKindId device) {
  return state_->table(layout, device);
}

Outcome<Estimate> LayoutEstimator::estimate(const Layout& layout) {
  State& s = *state_;
  if (auto no = refusal(s.probed.model, s.probed.cluster, layout, s.probed.job)) {
    return *std::move(no);
  }
  if (auto hopeless = s.too_large(layout)) return *hopeless;
  const Tables tables = s.tables_of(layout);
  const Bytes message = tables.plain[0]->message;
  if (!layout.devices.empty() || !layout.stage_layers.empty()) {
    return s.composed(layout, tables, grid_costs(s.probed, layout, tables, s.prices),
                      message_costs(layout, message, s.prices));
  }
  const auto [messages, added] = s.messages.try_emplace(message_key(layout, message));
  if (added) messages->second = message_costs(layout, message, s.prices);
  std::unique_ptr<GridCosts>& grid = s.grids[grid_key(layout)];
  if (!grid) {
    grid = std::make_unique<GridCosts>(grid_costs(s.probed, layout, tables, s.prices));
  }
  return s.composed(layout, tables, *grid, messages->second);
}

}  // namespace gputwin
