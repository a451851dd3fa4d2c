#include "strategies/search/layout_costs.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "strategies/lowering/stack_kernels.h"
#include "strategies/lowering/wiring.h"

namespace gputwin {
namespace {

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

GpuId gpu_of(const Layout& layout, const Coordinates& c) {
  const RankId rank = layout.rank(c);
  return layout.devices.empty() ? GpuId(rank.value) : layout.devices[rank.value];
}

ChunkKind kind_of(const Layout& l, std::int32_t chunk) {
  if (l.chunks() == 1) return ChunkKind::Only;
  if (chunk == 0) return ChunkKind::First;
  return chunk == l.chunks() - 1 ? ChunkKind::Last : ChunkKind::Middle;
}

// A chunk as it runs: its first `recompute_layers` layers recomputed with Block.
ChunkFigures figures(const Layout& layout, const Tables& tables, std::uint32_t device,
                     std::int32_t chunk, std::int32_t layers, std::int32_t dense) {
  const ChunkKind kind = kind_of(layout, chunk);
  const ChunkTable& plain = *tables.plain[device];
  ChunkFigures f = plain.of(kind, layers, dense);
  if (layout.recompute != Recompute::Block) return f;
  const ChunkTable& full = *tables.full[device];
  const std::int32_t again = std::min(layers, layout.recomputed_layers(chunk % layout.pp));
  const std::int32_t again_dense = std::min(again, dense);
  const auto recompute = [&f](double times, const ChunkFigures& whole, const ChunkFigures& once) {
    f.backward += times * (whole.backward - once.backward);
    f.backwards += times * (whole.backwards - once.backwards);
    f.kept += times * (whole.kept - once.kept);
  };
  recompute(again - again_dense, full.layer, plain.layer);
  recompute(again_dense, full.dense_layer, plain.dense_layer);
  if (again > 0) {
    f.backward_peak = std::max(f.backward_peak, full.of(kind, layers, dense).backward_peak);
  }
  return f;
}

// Neighbouring chunks are mostly alike: the last one's figures are kept.
class ChunkReader {
 public:
  ChunkReader(const Layout& layout, const Tables& tables) : layout_(layout), tables_(tables) {}

  const ChunkFigures& of(std::uint32_t device, std::int32_t chunk, const GridCosts& grid) {
    const std::int32_t layers = grid.layers[at(chunk)], dense = grid.dense[at(chunk)];
    const std::array<std::int32_t, 5> key{
        static_cast<std::int32_t>(device), static_cast<std::int32_t>(kind_of(layout_, chunk)),
        layers, dense, layout_.recomputed_layers(chunk % layout_.pp)};
    if (key != key_) {
      key_ = key;
      figures_ = figures(layout_, tables_, device, chunk, layers, dense);
    }
    return figures_;
  }

 private:
  const Layout& layout_;
  const Tables& tables_;
  std::array<std::int32_t, 5> key_{-1, -1, -1, -1, -1};
  ChunkFigures figures_;
};

// The first `members` data-parallel ranks (dp x cp) of a stage, as one group for each
// tensor-parallel rank in the node of the first.
std::vector<Group> replicas(const Layout& layout, std::int32_t stage, std::int32_t members,
                            const Topology& topology) {
  std::vector<Group> groups;
  const std::int32_t node = topology.node_of(gpu_of(layout, {.pp = stage}));
  for (std::int32_t t = 0; t < layout.tp; ++t) {
    if (topology.node_of(gpu_of(layout, {.tp = t, .pp = stage})) != node) break;
    Group group;
    for (std::int32_t m = 0; m < members; ++m) {
      group.push_back(
          gpu_of(layout, {.tp = t, .cp = m % layout.cp, .dp = m / layout.cp, .pp = stage}));
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

// Ranks of a stage that hold the same experts, as one group for each expert rank in the node of the
// first.
std::vector<Group> expert_copies(const Layout& layout, std::int32_t stage,
                                 const Topology& topology) {
  std::vector<Group> groups;
  const auto gpu = [&](std::int32_t index) {
    const std::int32_t data = index / layout.tp;
    return gpu_of(
        layout,
        {.tp = index % layout.tp, .cp = data % layout.cp, .dp = data / layout.cp, .pp = stage});
  };
  const std::int32_t node = topology.node_of(gpu(0));
  for (std::int32_t e = 0; e < layout.ep && topology.node_of(gpu(e)) == node; ++e) {
    Group group;
    for (std::int32_t m = 0; m < expert_replicas(layout); ++m) {
      group.push_back(gpu(e + m * layout.ep));
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

// Seconds of the kernels that begin or end an iteration, their sizes scaled from those of the small
// job.
double scaled_kernels(const Plan& plan, const std::vector<Instruction>& piece, double scale,
                      DeviceKindId device, Prices& prices) {
  double time = 0;
  const auto scaled = [scale](std::int64_t n) {
    return n <= 1 ? n : std::max<std::int64_t>(1, std::llround(static_cast<double>(n) * scale));
  };
  for (const Instruction& i : piece) {
    if (i.kind != Kind::Kernel && i.kind != Kind::HostTask) continue;
    Call call = plan.call(i);
    if (call.op.dims[0] <= 1) continue;
    call.op.dims[0] = scaled(call.op.dims[0]);
    time += prices
                .kernel(call.op, Bytes(scaled(bytes_of(call.reads).value)),
                        Bytes(scaled(bytes_of(call.writes).value)), device)
                .value;
  }
  return time;
}

class Grid {
 public:
  Grid(const Probed& probed, const Layout& layout, const Tables& tables, Prices& prices)
      : probed_(probed), layout_(layout), tables_(tables), prices_(prices) {}

  GridCosts run() {
    out_.layers = layout_.layers_per_chunk(probed_.model.layers);
    out_.dense = dense_layers(probed_.model, out_.layers);
    for (std::int32_t s = 0; s < layout_.pp; ++s) out_.stages.push_back(stage(s));
    out_.norm = prices_.collective(OpKind::AllReduce, Bytes(4), {norm_group()}).value;
    const bool tied = probed_.model.tied_embeddings && layout_.pp > 1;
    if (tied) {
      const Group pair{gpu_of(layout_, {}), gpu_of(layout_, {.pp = layout_.pp - 1})};
      const std::int64_t elements = probed_.model.vocab / layout_.tp * probed_.model.hidden;
      out_.tied = prices_.collective(OpKind::AllReduce, gradient_bytes(elements), {pair}).value;
    }
    return std::move(out_);
  }

 private:
  // The ranks that add up the gradient norm: one copy of the model, all ranks with sharded states.
  Group norm_group() const {
    const std::int32_t copies = layout_.ep > 1      ? layout_.dp * layout_.cp
                                : layout_.zero == 0 ? 1
                                                    : layout_.shards();
    Group group;
    for (std::int32_t s = 0; s < layout_.pp; ++s) {
      for (std::int32_t c = 0; c < copies * layout_.tp; ++c) {
        const std::int32_t m = c / layout_.tp;
        group.push_back(gpu_of(
            layout_, {.tp = c % layout_.tp, .cp = m % layout_.cp, .dp = m / layout_.cp, .pp = s}));
      }
    }
    return group;
  }
  Bytes gradient_bytes(std::int64_t elements) const {
    return Bytes(elements * bits(probed_.job.precision.grads) / 8);
  }
  Bytes weight_bytes(std::int64_t elements) const {
    return Bytes(elements * bits(probed_.job.precision.params) / 8);
  }

  // Which devices the stage has: the slowest kind and the smallest memory.
  void place(std::int32_t s, StageCosts& stage) const {
    const Topology& topology = prices_.topology();
    std::set<std::uint32_t> kinds;
    if (tables_.plain.size() == 1) {
      kinds.insert(0);
    } else {
      for (std::int32_t d = 0; d < layout_.dp * layout_.cp; ++d) {
        const Coordinates c{.cp = d % layout_.cp, .dp = d / layout_.cp, .pp = s};
        kinds.insert(topology.device_kind(gpu_of(layout_, c)).value);
      }
    }
    std::vector<std::int32_t> sizes = communicators(s);
    double slowest = -1;
    for (const std::uint32_t k : kinds) {
      const ChunkFigures& layer = tables_.plain[k]->layer;
      const MemoryCost memory = prices_.costs().memory(DeviceKindId(k), sizes);
      if (layer.forward + layer.backward > slowest) {
        slowest = layer.forward + layer.backward;
        stage.device = k;
      }
      if (stage.capacity.value == 0 || memory.capacity < stage.capacity) {
        stage.capacity = memory.capacity;
        stage.outside = static_cast<double>((memory.context + memory.communicators).value);
        stage.workspace = static_cast<double>(memory.workspace.value);
      }
    }
  }

  // Sizes of a rank's communicators, as the lowering wires them.
  std::vector<std::int32_t> communicators(std::int32_t s) const {
    const Layout& l = layout_;
    std::vector<std::int32_t> sizes{l.tp, l.dp * l.cp};
    if (l.zero >= 1 && l.shards() < l.dp * l.cp) {
      sizes.push_back(l.shards());
      sizes.push_back(l.dp * l.cp / l.shards());
    }
    sizes.push_back(l.tp * l.pp * (l.ep > 1 ? l.dp * l.cp : l.shards()));
    if (probed_.model.has_experts()) {
      sizes.push_back(l.ep);
      sizes.push_back(expert_replicas(l));
    }
    const bool end = s == 0 || s == l.pp - 1;
    if (probed_.model.tied_embeddings && l.pp > 1 && end) sizes.push_back(2);
    sizes.push_back(l.cp);
    return sizes;
  }

  // Gradient buckets of the stage, and how many bytes stay for after the last backward.
  void reduction(double elements, const std::vector<Group>& groups, StageCosts& stage) {
    if (groups[0].size() == 1 || elements <= 0) return;
    const StackKernels& kernels = nearest_stack(probed_.job.stack, layout_.zero);
    const bool overlap = layout_.overlap_grad_reduce && kernels.overlap_grad_reduce;
    const OpKind kind = layout_.zero == 0 ? OpKind::AllReduce : OpKind::ReduceScatter;
    const auto all = static_cast<std::int64_t>(elements);
    const std::int64_t buckets =
        overlap ? std::max<std::int64_t>(layout_.vpp, all / bucket_elements(layout_, probed_.job))
                : 1;
    const double one = prices_.collective(kind, gradient_bytes(all / buckets), groups).value;
    const double whole = one * static_cast<double>(buckets);
    stage.reduce += whole;
    stage.reduce_late += overlap ? one : whole;
  }

  double gathering(double elements, const std::vector<Group>& groups) {
    if (layout_.zero < 1 || layout_.zero > 2) return 0;
    if (groups[0].size() == 1 || elements <= 0) return 0;
    const auto all = static_cast<std::int64_t>(elements);
    return prices_.collective(OpKind::AllGather, weight_bytes(all), groups).value;
  }

  StageCosts stage(std::int32_t s) {
    StageCosts out;
    place(s, out);
    const ChunkTable& table = *tables_.plain[out.device];
    double elements = 0, experts = 0, optimizer = 0;
    for (std::int32_t c = s; c < layout_.chunks(); c += layout_.pp) {
      const ChunkFigures f = table.of(kind_of(layout_, c), out_.layers[at(c)], out_.dense[at(c)]);
      elements += f.elements;
      experts += f.experts;
      out.persistent += f.weights + f.gradients + f.other;
      optimizer += f.optimizer;
    }
    const Precision& p = probed_.job.precision;
    const double shards = layout_.shards();
    const bool divided = layout_.zero == 1;
    const double dense = elements - experts;
    // Of the states: what one rank keeps and steps.
    const double own = divided ? dense / shards + experts / expert_replicas(layout_) : elements;
    // F32 weights need a master copy once their states are shards.
    if (divided && shards > 1 && p.master && p.params == DType::F32) optimizer += 4 * elements;
    out.persistent += optimizer * own / elements;
    const StackKernels& kernels = nearest_stack(probed_.job.stack, layout_.zero);
    if (kernels.optimizer_passes && bits(p.grads) == 16 && p.master) {
      out.step = 4 * (divided ? own : elements / shards);
    }
    const ChunkKind kind = kind_of_stage(layout_, s);
    const StageTemplates& small = table.small.stages[at(table.small_stage(kind))];
    const double small_elements = table.small_elements(kind);
    const DeviceKindId device(out.device);
    out.begin =
        scaled_kernels(table.small.plan, small.begin, elements / small_elements, device, prices_);
    const Topology& topology = prices_.topology();
    const auto copies = replicas(layout_, s, layout_.dp * layout_.cp, topology);
    const auto same_experts = expert_copies(layout_, s, topology);
    out.finish =
        scaled_kernels(table.small.plan, small.finish, own / small_elements, device, prices_) +
        gathering(dense, replicas(layout_, s, layout_.shards(), topology)) +
        gathering(experts, same_experts);
    if (layout_.zero < 2) {  // ZeRO 2 and 3 reduce in every pass
      reduction(dense, copies, out);
      reduction(experts, same_experts, out);
    }
    return out;
  }

  const Probed& probed_;
  const Layout& layout_;
  const Tables& tables_;
  Prices& prices_;
  GridCosts out_;
};

// Forward and backward of one stage, of all its chunks and of its first one.
struct StageTimes {
  double forward = 0, backward = 0;
  double forwards = 0, backwards = 0;  // where passes of a kind follow one another
  double chunk_forward = 0, chunk_backward = 0;
};

double micro_batches_in_flight(const Layout& l, std::int32_t s, std::int32_t m) {
  switch (l.schedule) {
    case Schedule::Gpipe: return m;
    case Schedule::Interleaved:
      if (l.vpp > 1) {
        const std::int32_t passes = l.pp * (l.vpp - 1) + 2 * (l.pp - s) - 1;
        const std::int32_t all = m * l.vpp;
        return static_cast<double>(m == l.pp ? all : std::min(all, passes)) / l.vpp;
      }
      [[fallthrough]];
    case Schedule::None:
    case Schedule::OneFOneB:
    case Schedule::ZbH1:
    case Schedule::ZbH2:
    case Schedule::Zb1p:
    case Schedule::Zb2p:
    case Schedule::ZbV:
    case Schedule::Hanayo:
    case Schedule::DualPipe:
    case Schedule::Chimera:
    case Schedule::PipedreamAsync:
    case Schedule::PipedreamStash: break;  // none of the space that is searched
  }
  return std::min(m, l.pp - s);
}

double pipeline_time(const Layout& l, const std::vector<StageTimes>& stages, double hop, double m) {
  double forward = 0, backward = 0, most_forward = 0, most_backward = 0;
  for (const StageTimes& s : stages) {
    forward += s.chunk_forward + hop;
    backward += s.chunk_backward + hop;
    most_forward = std::max(most_forward, s.forwards);
    most_backward = std::max(most_backward, s.backwards);
  }
  forward -= hop;
  backward -= hop;
  if (l.schedule == Schedule::Gpipe) {
    return forward + (m - 1) * most_forward + backward + (m - 1) * most_backward;
  }
  const bool all_forwards_first = l.vpp > 1 && m == l.pp;
  double longest = 0, before = 0;
  for (std::int32_t s = 0; s < l.pp; ++s) {
    const StageTimes& t = stages[at(s)];
    const double pair = all_forwards_first ? t.forwards + t.backwards : t.forward + t.backward;
    longest = std::max(longest, before + m * pair);
    if (l.vpp == 1) {
      const double warm = std::min(m, static_cast<double>(l.pp - s));
      longest =
          std::max(longest, forward + backward + (m - 1) * t.backward + (m - warm) * t.forward);
    }
    before += t.chunk_forward + t.chunk_backward + 2 * hop;
  }
  return longest;
}

// Passes with the copies of what is not there.
void add_copies(StageTimes& t, const StageCosts& stage, std::int32_t chunks) {
  const auto with = [&](double& pass, double copies) {
    pass = stage.copies_wait ? pass + copies : std::max(pass, copies);
  };
  for (double* pass : {&t.forward, &t.forwards}) with(*pass, stage.forward_copies);
  for (double* pass : {&t.backward, &t.backwards}) with(*pass, stage.backward_copies);
  with(t.chunk_forward, stage.forward_copies / chunks);
  with(t.chunk_backward, stage.backward_copies / chunks);
}

// What the last backward pass does not hide of the host's step of `buckets`, the first of which
// have their gradients first.
double host_after(const StageCosts& stage, double backward, double buckets) {
  if (!stage.host_early || stage.host_share <= 0) return stage.host;
  const double one = stage.host / std::max(1.0, buckets * stage.host_share);
  const double all_behind_first = backward / buckets + stage.host;
  const double last_behind_its_gradient = stage.host_share * backward + one;
  return std::max(0.0, std::max(all_behind_first, last_behind_its_gradient) - backward);
}

}  // namespace

ChunkKind kind_of_stage(const Layout& l, std::int32_t stage) {
  if (l.pp == 1) return ChunkKind::Only;
  if (stage == 0) return ChunkKind::First;
  return stage == l.pp - 1 ? ChunkKind::Last : ChunkKind::Middle;
}

std::vector<std::int32_t> dense_layers(const Transformer& model,
                                       const std::vector<std::int32_t>& layers_per_chunk) {
  std::vector<std::int32_t> dense;
  auto left = static_cast<std::int32_t>(model.has_experts() ? model.moe.dense_layers : 0);
  for (const std::int32_t layers : layers_per_chunk) {
    dense.push_back(std::min(layers, left));
    left -= dense.back();
  }
  return dense;
}

GridCosts grid_costs(const Probed& probed, const Layout& layout, const Tables& tables,
                     Prices& prices) {
  return Grid(probed, layout, tables, prices).run();
}

MessageCosts message_costs(const Layout& layout, Bytes message, Prices& prices) {
  MessageCosts costs;
  const Topology& topology = prices.topology();
  for (std::int32_t s = 0; s + 1 < layout.pp; ++s) {
    // Pairs of the first rank's node: they may share its adapters.
    std::vector<Group> pairs;
    const std::int32_t node = topology.node_of(gpu_of(layout, {.pp = s}));
    for (std::int32_t d = 0; d < layout.dp * layout.cp * layout.tp; ++d) {
      Coordinates c{.tp = d % layout.tp,
                    .cp = d / layout.tp % layout.cp,
                    .dp = d / layout.tp / layout.cp,
                    .pp = s};
      const GpuId from = gpu_of(layout, c);
      if (topology.node_of(from) != node) break;
      c.pp = s + 1;
      pairs.push_back({from, gpu_of(layout, c)});
    }
    const double time = prices.collective(OpKind::SendTo, message, pairs).value;
    costs.slowest = std::max(costs.slowest, time);
    costs.all += time;
  }
  return costs;
}

Estimate compose(const Probed& probed, const Layout& layout, const Tables& tables,
                 const GridCosts& grid, const MessageCosts& messages) {
  const std::int32_t p = layout.pp;
  const auto m =
      static_cast<std::int32_t>(probed.job.global_batch / (layout.micro_batch * layout.dp));
  const bool blocking = tables.plain[0]->blocking_messages;
  const double inputs =
      8.0 * static_cast<double>(m * layout.micro_batch * probed.job.sequence) / layout.cp;
  Estimate e;
  std::vector<StageTimes> times(at(p));
  ChunkReader reader(layout, tables);
  double fullest = -1e300;
  for (std::int32_t s = 0; s < p; ++s) {
    const StageCosts& stage = grid.stages[at(s)];
    StageTimes& t = times[at(s)];
    double kept = 0, peak = 0;
    for (std::int32_t c = s; c < layout.chunks(); c += p) {
      const ChunkFigures& f = reader.of(stage.device, c, grid);
      t.forward += f.forward;
      t.backward += f.backward;
      t.forwards += f.forwards;
      t.backwards += f.backwards;
      kept += f.kept;
      peak = std::max({peak, f.backward_peak, f.forward_peak - f.kept});
      if (c != s) continue;
      t.chunk_forward = f.forward;
      t.chunk_backward = f.backward;
    }
    if (blocking) {
      const double each = messages.slowest * (layout.vpp > 1 ? 0.5 : 1.0);
      const double ahead = s < p - 1 || layout.vpp > 1 ? each : 0;
      const double back = s > 0 || layout.vpp > 1 ? each : 0;
      t.forward += ahead * layout.vpp;
      t.backward += back * layout.vpp;
      t.forwards += ahead * layout.vpp;
      t.backwards += back * layout.vpp;
      t.chunk_forward += ahead;
      t.chunk_backward += back;
    }
    add_copies(t, stage, layout.vpp);
    const double used = stage.persistent + (s == 0 || s == p - 1 ? inputs : 0) +
                        std::max(micro_batches_in_flight(layout, s, m) * kept + peak, stage.step) +
                        stage.workspace + stage.outside;
    const double over = used - static_cast<double>(stage.capacity.value);
    if (over <= fullest) continue;
    fullest = over;
    e.memory = Bytes(std::llround(used));
    e.capacity = stage.capacity;
    e.stage = s;
  }
  const double hop = blocking || p == 1 ? 0 : messages.all / (p - 1);
  const double pipeline = pipeline_time(layout, times, hop, m);
  double end = pipeline, drained = 0, begin = 0, finish = 0;
  for (std::int32_t s = 0; s < p; ++s) {
    const StageCosts& stage = grid.stages[at(s)];
    const double hidden = std::min(times[at(s)].backward, stage.reduce - stage.reduce_late);
    const double tied = s == 0 || s == p - 1 ? grid.tied : 0;
    end = std::max(end, pipeline - drained + stage.reduce - hidden + tied);
    drained += times[at(s)].chunk_backward + hop;
    begin = std::max(begin, s == 0 ? stage.begin : 0);
    const double layers = static_cast<double>(probed.model.layers) / p;
    finish = std::max({finish, stage.finish, host_after(stage, times[at(s)].backward, layers)});
  }
  e.pipeline = Seconds(pipeline);
  e.reduction = Seconds(end - pipeline);
  e.optimizer = Seconds(begin + grid.norm + finish);
  e.iteration = e.pipeline + e.reduction + e.optimizer;
  return e;
}

}  // namespace gputwin
