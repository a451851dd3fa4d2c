#include "strategies/search/chunk_table.h"

#include <algorithm>
#include <numeric>

#include "strategies/lowering/stack_kernels.h"
#include "strategies/lowering/transformer.h"
#include "strategies/passes/recompute.h"

namespace gputwin {
namespace {

constexpr int kWarmUp = 1, kTimes = 3;  // passes walked; the period is of those after the warm-up

template <class Combine>
ChunkFigures combined(const ChunkFigures& a, const ChunkFigures& b, Combine combine) {
  ChunkFigures c;
  for (double ChunkFigures::*member :
       {&ChunkFigures::forward, &ChunkFigures::backward, &ChunkFigures::forwards,
        &ChunkFigures::backwards, &ChunkFigures::kept, &ChunkFigures::forward_peak,
        &ChunkFigures::backward_peak, &ChunkFigures::weights, &ChunkFigures::gradients,
        &ChunkFigures::optimizer, &ChunkFigures::other, &ChunkFigures::elements,
        &ChunkFigures::experts}) {
    c.*member = combine(a.*member, b.*member);
  }
  return c;
}

// A copy of `layout` with one stage or three of which the middle one has the layers, and as few
// data-parallel ranks as its passes allow.
Layout small(const Layout& layout, std::int32_t layers) {
  Layout s = layout;
  const bool alone = layout.chunks() == 1;
  s.pp = alone ? 1 : 3;
  s.vpp = 1;
  s.schedule = alone ? Schedule::None : Schedule::OneFOneB;
  s.stage_layers =
      alone ? std::vector<std::int32_t>{layers} : std::vector<std::int32_t>{0, layers, 0};
  s.devices.clear();
  s.recompute = layout.recompute == Recompute::Block ? Recompute::None : layout.recompute;
  s.recompute_layers.clear();
  if (s.zero < 2) {
    s.zero = 0;
    // An expert group spans ranks of a stage in their order.
    s.dp = layout.ep / std::gcd(layout.ep, layout.tp * layout.cp);
    s.overlap_grad_reduce = false;
    s.hsdp_group = 0;
  }
  return s;
}

Outcome<Lowered> lower_small(const Probed& probed, const Layout& layout, std::int32_t layers,
                             std::int32_t dense_layers) {
  Transformer model = probed.model;
  model.layers = layers;
  model.moe.dense_layers = dense_layers;
  Job job = probed.job;
  job.global_batch = layout.micro_batch * layout.dp * 2 * layout.pp;
  Cluster cluster = probed.cluster;  // only its size is looked at; the walk places the ranks
  cluster.groups.back().count += layout.ranks();
  Outcome<Lowered> outcome = lower(model, cluster, layout, job);
  if (auto* lowered = std::get_if<Lowered>(&outcome)) return recompute(std::move(*lowered));
  return outcome;
}

// Templates of one stage alone.
Templates middle_stage(Lowered lowered, std::int32_t stage) {
  PlanBuilder builder(std::move(lowered.plan));
  Templates t{.plan = {},
              .layout = lowered.layout,
              .blocking_messages = lowered.blocking_messages,
              .micro_batches = lowered.micro_batches,
              .stages = std::vector<StageTemplates>(static_cast<std::size_t>(stage))};
  const StageTable table =
      schedule_tables(lowered.layout, lowered.micro_batches)[static_cast<std::size_t>(stage)];
  t.stages.push_back(stage_templates(builder, lowered, stage, table));
  t.plan = std::move(builder).take();
  return t;
}

void add_persistent(const Plan& plan, const StageTemplates& stage, ChunkFigures& f) {
  for (const BufferId id : stage.buffers) {
    const Buffer& b = plan.buffers[id.value];
    if (!b.persistent || b.in_place || b.framed) continue;
    const auto bytes = static_cast<double>(b.bytes.value);
    switch (b.memory) {
      case MemoryClass::Weights: f.weights += bytes; break;
      case MemoryClass::Gradients: f.gradients += bytes; break;
      case MemoryClass::Optimizer: f.optimizer += bytes; break;
      case MemoryClass::Activations:
      case MemoryClass::Temporary:
      case MemoryClass::Communication:
      case MemoryClass::Context: f.other += bytes; break;
    }
  }
}

// A stage's own pieces of one pass, as memory sees them.
PassMemory memory_of(const Plan& plan, const PassTemplate& pass) {
  return pass_memory(plan, {&pass.receive, &pass.body, &pass.send});
}

// A stage of the small job on its GPUs.
struct WalkedStage {
  const Templates& templates;
  std::int32_t stage;
  const std::vector<GpuId>& place;
  bool blocking;
  Prices& prices;

  const StageTemplates& pieces() const { return templates.stages[static_cast<std::size_t>(stage)]; }
  PassWalk walk() const {
    const RankId first = templates.layout.rank({.pp = stage});
    return PassWalk(templates.plan, first, place, prices, blocking);
  }
  void pass(PassWalk& walk, const PassTemplate& pass) const {
    walk.run(pass.body);
    if (blocking) walk.meet();
  }
  // Seconds of `passes` in turn, once going.
  double period(const std::vector<const PassTemplate*>& passes) const {
    PassWalk w = walk();
    double warm = 0, host = 0;
    for (int i = 0; i < kTimes; ++i) {
      for (const PassTemplate* p : passes) pass(w, *p);
      if (i == kWarmUp - 1) warm = w.end(), host = w.host();
    }
    const double period = (w.end() - warm) / (kTimes - kWarmUp);
    return blocking ? period : std::max(period, host / kWarmUp);
  }
};

ChunkFigures measure(const WalkedStage& walked) {
  const Templates& t = walked.templates;
  const StageTemplates& s = walked.pieces();
  const PassTemplate& forward = s.of({PassKind::Forward}, false);
  const PassTemplate& backward = s.of({PassKind::Backward}, false);
  ChunkFigures f;
  PassWalk once = walked.walk();
  walked.pass(once, forward);
  f.forward = once.end();
  f.backward = walked.period({&forward, &backward}) - f.forward;
  f.forwards = walked.period({&forward});
  f.backwards = walked.period({&backward});
  const PassMemory ahead = memory_of(t.plan, forward), back = memory_of(t.plan, backward);
  f.kept = ahead.kept;
  f.forward_peak = ahead.peak;
  f.backward_peak = back.peak;
  add_persistent(t.plan, s, f);
  for (const Parameter& p : t.plan.programs[static_cast<std::size_t>(walked.stage)].parameters) {
    if (!p.gradient.buffer.valid()) continue;
    const auto elements = static_cast<double>(p.rows * p.cols);
    f.elements += elements;
    if (p.name.find(".experts.") != std::string::npos) f.experts += elements;
  }
  return f;
}

// GPU of every rank of the small job: all of its stages stand where the first one of `layout` does.
std::vector<GpuId> first_stage(const Layout& layout, const Layout& small, GpuId base,
                               const Topology& topology) {
  std::vector<GpuId> place;
  for (std::int32_t r = 0; r < small.ranks(); ++r) {
    Coordinates c = small.coordinates(RankId(static_cast<std::uint32_t>(r)));
    c.pp = 0;
    const auto gpus = static_cast<std::uint32_t>(topology.gpus());
    place.emplace_back((base.value + layout.rank(c).value) % gpus);
  }
  return place;
}

Bytes message_of(const Templates& t) {
  for (const Instruction& i : t.stages[0].of({PassKind::Forward}, false).send) {
    if (i.kind == Kind::Send) return bytes_of(t.plan.call(i).reads);
  }
  return Bytes(0);
}

// Peaks of passes one after the other: what the first keeps lies under the second.
ChunkFigures joined(const ChunkFigures& first, const ChunkFigures& second) {
  ChunkFigures f = combined(first, second, [](double a, double b) { return a + b; });
  f.forward_peak = std::max(first.forward_peak, first.kept + second.forward_peak);
  // Backward begins with the second, and gives back what that one kept.
  f.backward_peak = std::max(second.backward_peak, first.backward_peak - second.kept);
  return f;
}

}  // namespace

bool blocking_messages(const Layout& layout, const Job& job) {
  const StackKernels& kernels = nearest_stack(job.stack, layout.zero);
  if (layout.pp == 1 || kernels.messages == Messages::Overlapped) return false;
  return kernels.messages == Messages::Blocking || layout.vpp == 1 || !layout.overlap_p2p;
}

ChunkFigures ChunkTable::of(ChunkKind kind, double layers_of_chunk, double dense_layers) const {
  const double more = layers_of_chunk - layers - dense_layers;
  ChunkFigures body = combined(some, layer, [more](double a, double b) { return a + more * b; });
  if (dense_layers > 0) {
    body = combined(body, dense_layer,
                    [dense_layers](double a, double b) { return a + dense_layers * b; });
  }
  switch (kind) {
    case ChunkKind::Only:
    case ChunkKind::Middle: return body;
    case ChunkKind::First: return layers_of_chunk > 0 ? joined(embedding, body) : embedding;
    case ChunkKind::Last: return layers_of_chunk > 0 ? joined(body, head) : head;
  }
  return body;
}

std::int32_t ChunkTable::small_stage(ChunkKind kind) const {
  switch (kind) {
    case ChunkKind::Only:
    case ChunkKind::First: return 0;
    case ChunkKind::Middle: return 1;
    case ChunkKind::Last: return 2;
  }
  return 0;
}

double ChunkTable::small_elements(ChunkKind kind) const {
  switch (kind) {
    case ChunkKind::Only:
    case ChunkKind::Middle: return some.elements;
    case ChunkKind::First: return embedding.elements;
    case ChunkKind::Last: return head.elements;
  }
  return some.elements;
}

Outcome<ChunkTable> probe_chunks(const Probed& probed, const Layout& layout, GpuId base,
                                 Prices& prices) {
  const std::int64_t alike = probed.model.has_experts() ? probed.model.moe.every : 1;
  const auto few = static_cast<std::int32_t>(layout.zero >= 2 ? 2 * alike : alike), more = 2 * few;
  const Layout shallow = small(layout, few), deep = small(layout, more);
  Outcome<Lowered> first = lower_small(probed, shallow, few, 0);
  if (auto* no = std::get_if<Infeasible>(&first)) return std::move(*no);
  Outcome<Lowered> second = lower_small(probed, deep, more, 0);
  if (auto* no = std::get_if<Infeasible>(&second)) return std::move(*no);
  const std::int32_t middle = shallow.pp == 1 ? 0 : 1;
  ChunkTable table;
  table.layers = few;
  table.blocking_messages = blocking_messages(layout, probed.job);
  Lowered& lowered = std::get<Lowered>(first);
  const auto tables = schedule_tables(lowered.layout, lowered.micro_batches);
  table.small = derive_templates(std::move(lowered), tables);
  const std::vector<GpuId> place = first_stage(layout, shallow, base, prices.topology());
  const auto measured = [&](const Templates& t, std::int32_t stage) {
    return measure({t, stage, place, table.blocking_messages, prices});
  };
  table.some = measured(table.small, middle);
  const auto each_more = [&](Outcome<Lowered>& lowered_deep) {
    const Templates t = middle_stage(std::move(std::get<Lowered>(lowered_deep)), middle);
    return combined(measured(t, middle), table.some,
                    [few](double x, double y) { return (x - y) / few; });
  };
  table.layer = each_more(second);
  table.dense_layer = table.layer;
  if (probed.model.has_experts() && probed.model.moe.dense_layers > 0) {
    Outcome<Lowered> mixed = lower_small(probed, deep, more, few);
    if (auto* no = std::get_if<Infeasible>(&mixed)) return std::move(*no);
    table.dense_layer = each_more(mixed);
  }
  if (shallow.pp > 1) {
    table.embedding = measured(table.small, 0);
    table.head = measured(table.small, 2);
  }
  table.message = message_of(table.small);
  return table;
}

}  // namespace gputwin
