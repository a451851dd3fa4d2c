#include "strategies/lowering/layer_graph.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "strategies/lowering/graph_layers.h"
#include "strategies/schedules/table.h"

namespace gputwin {
namespace {

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }
std::string text(std::int64_t n) { return std::to_string(n); }
Infeasible no(std::string reason, std::string fix) {
  return {.reason = std::move(reason), .fix = std::move(fix)};
}

// Samples of a micro-batch that one replica exchanges with replica `peer` of a neighbouring stage.
struct Piece {
  std::int32_t peer = 0;
  std::int64_t first = 0, count = 0;  // of the replica's own samples
};

std::vector<Piece> pieces_of(std::int64_t own_first, std::int64_t own, std::int64_t theirs,
                             std::int32_t peers) {
  std::vector<Piece> pieces;
  for (std::int32_t p = 0; p < peers; ++p) {
    const std::int64_t begin = std::max(own_first, p * theirs);
    const std::int64_t end = std::min(own_first + own, (p + 1) * theirs);
    if (begin < end) pieces.push_back({p, begin - own_first, end - begin});
  }
  return pieces;
}

// What all replicas of a stage that run one program have in common.
struct Role {
  std::int32_t stage = 0;
  std::int32_t first = 0, last = 0;  // layers
  std::int64_t samples = 0;
  std::vector<Piece> previous, next;
  bool same_messages(const Role& other) const {
    const auto same = [](const std::vector<Piece>& a, const std::vector<Piece>& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Piece& x, const Piece& y) {
        return x.first == y.first && x.count == y.count;
      });
    };
    return same(previous, other.previous) && same(next, other.next);
  }
};

struct GraphJob {
  const LayerGraph& graph;
  const Layout& layout;
  const Job& job;
  std::int32_t micro_batches = 0;
  std::vector<std::int32_t> replicas;
};

const char* step_name(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::Adam:
    case Optimizer::AdamW: return "adam";
    case Optimizer::Lamb: return "lamb";
    case Optimizer::Sgd: return "sgd";
  }
  return "adam";
}

OpKind step_kind(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::Adam:
    case Optimizer::AdamW: return OpKind::AdamStep;
    case Optimizer::Lamb: return OpKind::LambStep;
    case Optimizer::Sgd: return OpKind::SgdStep;
  }
  return OpKind::AdamStep;
}

// Writes the program of one role.
class RoleProgram {
 public:
  RoleProgram(PlanBuilder& plan, const GraphJob& gj, const Role& role, const std::string& name)
      : plan_(plan),
        gj_(gj),
        role_(role),
        weights_(plan, gj.graph, gj.job, gj.layout.bucket_elements, role.first, role.last,
                 name + "."),
        layers_(plan, gj.graph, gj.job, weights_, role.first, role.last, role.samples, name + ".") {
    program_.name = name;
    program_.frames = static_cast<std::uint32_t>(gj.micro_batches);
    wire();
    add_inputs();
  }

  Program run() {
    forward_ = layers_.forward();
    for (const GraphBucket& bucket : weights_.buckets()) reduced_.push_back(bucket.layer);
    std::vector<SegmentOp> plain = layers_.backward(
        [&](std::int32_t layer, const std::vector<SegmentOp>& ops) { note(layer, ops.size()); });
    backward_ = plain;
    repeating_ = plain;
    if (gj_.layout.recompute != Recompute::None) repeated_ = layers_.repeat(forward_, repeating_);
    emit();
    program_.parameters = weights_.take_parameters();
    synchronise(plan_.plan(), program_);
    place_memory(plan_.plan(), program_);
    return std::move(program_);
  }

 private:
  SlotId slot(const std::string& name, Domain domain, bool peer) {
    program_.slots.push_back({.name = name, .domain = domain, .peer = peer});
    return SlotId(static_cast<std::uint32_t>(program_.slots.size() - 1));
  }
  std::uint8_t stream(const char* name, StreamKind kind) {
    program_.streams.push_back({.name = name, .kind = kind});
    return static_cast<std::uint8_t>(program_.streams.size() - 1);
  }

  // The order of slots is the one in which slots_of() fills them.
  void wire() {
    stream("compute", StreamKind::Compute);
    const auto communication = [&](const char* name) {
      return stream(name, StreamKind::Communication);
    };
    if (gj_.replicas[at(role_.stage)] > 1) {
      data_ = slot("dp", Domain::Dp, false);
      reduce_ = communication("dp");
    }
    for (const Piece& p : role_.previous) {
      from_.push_back(slot("previous" + text(p.peer), Domain::Pp, true));
    }
    for (const Piece& p : role_.next) to_.push_back(slot("next" + text(p.peer), Domain::Pp, true));
    if (!from_.empty()) {
      receive_ = communication("pp_receive");
      send_grad_ = communication("pp_send_grad");
    }
    if (!to_.empty()) {
      send_ = communication("pp_send");
      receive_grad_ = communication("pp_receive_grad");
    }
  }

  BufferId input(const char* name, bool targets, std::int64_t sequence, std::int64_t vocab,
                 DType dtype) {
    const BufferId buffer =
        plan_.buffer({.name = program_.name + "." + name,
                      .bytes = Bytes(stored_bytes(dtype, role_.samples * sequence)),
                      .memory = MemoryClass::Activations,
                      .dtype = dtype,
                      .framed = true,
                      .persistent = true});
    program_.inputs.push_back({.buffer = buffer,
                               .targets = targets,
                               .samples = role_.samples,
                               .sequence = sequence,
                               .vocab = vocab,
                               .data_slot = data_,
                               .frames = gj_.micro_batches,
                               .shared_frames = true});
    return buffer;
  }

  void add_inputs() {
    constexpr std::int64_t kShades = 4;  // values of a pixel where plans run on real numbers
    const LayerGraph& graph = gj_.graph;
    bool reads = false;
    for (std::int32_t l = role_.first; l < role_.last; ++l) {
      reads |= graph.layers[at(l)].inputs.empty();
    }
    if (reads && graph.layers[at(role_.first)].kind != LayerKind::Stated) {
      const DType dtype = graph.tokens ? DType::I64 : graph_activation(gj_.job);
      std::int64_t vocab = kShades;
      if (graph.tokens) vocab = graph.layers[at(role_.first)].vocab;
      const std::int64_t n = graph.input.elements();
      const BufferId buffer = input("samples", false, n, vocab, dtype);
      const std::int64_t cols = graph.tokens ? 1 : n;
      layers_.input = {.buffer = buffer,
                       .rows = role_.samples * n / cols,
                       .cols = cols,
                       .ld = cols,
                       .dtype = dtype};
    }
    const GraphLayer& end = graph.layers[at(role_.last - 1)];
    if (end.kind != LayerKind::Loss) return;
    const Extent& e = input_of(graph, end);
    const BufferId targets = input("targets", true, e.positions(), e.channels, DType::I64);
    layers_.targets = {.buffer = targets,
                       .rows = role_.samples * e.positions(),
                       .cols = 1,
                       .ld = 1,
                       .dtype = DType::I64};
    program_.loss = plan_.buffer({.name = program_.name + ".loss",
                                  .bytes = Bytes(4),
                                  .memory = MemoryClass::Temporary,
                                  .dtype = DType::F32,
                                  .persistent = true});
    layers_.loss = flat_view(program_.loss, 0, 1, DType::F32);
  }

  // Buckets are complete after so many operations of a backward pass.
  void note(std::int32_t layer, std::size_t operations) {
    for (std::size_t b = 0; b < reduced_.size(); ++b) {
      if (reduced_[b] == layer) complete_.push_back({operations, b});
    }
  }

  void add(Kind kind, std::uint8_t stream, Phase phase, const std::string& name, Op op,
           std::vector<View> reads, std::vector<View> writes, std::uint32_t frame,
           std::int32_t occurrence = 0) {
    const View& any = reads.empty() ? writes[0] : reads[0];
    op.dtype = any.dtype;
    op.out = writes.empty() ? any.dtype : writes[0].dtype;
    const NameId id =
        plan_.name({.phase = phase, .layer = -1, .op = name, .occurrence = occurrence});
    const CallId call =
        plan_.call({.op = op, .reads = std::move(reads), .writes = std::move(writes)});
    program_.body.push_back(
        {.kind = kind, .stream = stream, .call = call.value, .name = id.value, .event = frame});
  }

  void stamp(const std::vector<SegmentOp>& ops, std::size_t begin, std::size_t end,
             std::uint32_t frame) {
    for (std::size_t i = begin; i < end; ++i) {
      program_.body.push_back({.kind = ops[i].kind,
                               .stream = ops[i].stream,
                               .flags = ops[i].flags,
                               .call = ops[i].call.value,
                               .name = ops[i].name.value,
                               .event = frame});
    }
  }

  // Rows of a tensor that hold the samples of a piece.
  View rows_of(View view, const Piece& piece) const {
    const std::int64_t each = view.rows / role_.samples;
    view.offset += piece.first * each * view.ld;
    view.rows = piece.count * each;
    return view;
  }

  void exchange(bool sends, std::uint8_t stream, const char* name, const View& tensor,
                const std::vector<Piece>& pieces, const std::vector<SlotId>& peers,
                std::uint32_t frame, std::int32_t& occurrence) {
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      const View view = rows_of(tensor, pieces[p]);
      const Op op{.kind = sends ? OpKind::SendTo : OpKind::RecvFrom,
                  .slot = peers[p],
                  .dims = {view.elements()}};
      std::vector<View> reads, writes;
      (sends ? reads : writes).push_back(view);
      add(sends ? Kind::Send : Kind::Recv, stream, Phase::Pipeline, name, op, reads, writes, frame,
          occurrence++);
    }
  }

  void forward_pass(std::uint32_t frame) {
    std::int32_t n = 0;
    for (const std::int32_t l : layers_.received()) {
      exchange(false, receive_, "receive_activations", layers_.value(l), role_.previous, from_,
               frame, n);
    }
    stamp(forward_, 0, forward_.size(), frame);
    n = 0;
    for (const std::int32_t l : layers_.sent()) {
      exchange(true, send_, "send_activations", layers_.value(l), role_.next, to_, frame, n);
    }
  }

  void backward_pass(std::uint32_t frame, bool last) {
    const bool spared =
        gj_.layout.recompute == Recompute::AllButLast && frame + 1 == program_.frames;
    const bool repeats = gj_.layout.recompute != Recompute::None && !spared;
    std::int32_t n = 0;
    // torch's checkpoint repeats the forward pass when the gradient has arrived.
    for (const std::int32_t l : layers_.sent()) {
      exchange(false, receive_grad_, "receive_gradients", layers_.arriving(l), role_.next, to_,
               frame, n);
    }
    if (repeats) stamp(repeated_, 0, repeated_.size(), frame);
    const std::vector<SegmentOp>& ops = repeats ? repeating_ : backward_;
    std::size_t done = 0;
    for (const auto& [operations, bucket] : complete_) {
      if (!last || !overlaps()) break;
      stamp(ops, done, operations, frame);
      done = operations;
      reduce(bucket);
    }
    stamp(ops, done, ops.size(), frame);
    n = 0;
    for (const std::int32_t l : layers_.received()) {
      exchange(true, send_grad_, "send_gradients", layers_.leaving(l), role_.previous, from_, frame,
               n);
    }
  }

  bool overlaps() const { return data_.valid() && gj_.layout.overlap_grad_reduce; }

  View gradient_of(std::size_t bucket) const {
    const GraphBucket& b = weights_.buckets()[bucket];
    return flat_view(b.gradient, 0, b.elements, gj_.job.precision.grads);
  }

  void reduce(std::size_t bucket) {
    const View gradient = gradient_of(bucket);
    add(Kind::Collective, reduce_, Phase::Reduce, "grad_all_reduce",
        {.kind = OpKind::AllReduce, .slot = data_, .dims = {gradient.elements()}}, {gradient},
        {gradient}, kNoFrame, static_cast<std::int32_t>(bucket));
  }

  void begin() {
    for (std::size_t b = 0; b < weights_.buckets().size(); ++b) {
      const auto n = static_cast<std::int32_t>(b);
      const GraphBucket& bucket = weights_.buckets()[b];
      const View gradient = gradient_of(b);
      add(Kind::Kernel, 0, Phase::Optimizer, "zero_gradients",
          {.kind = OpKind::Zero, .dims = {bucket.elements}}, {}, {gradient}, kNoFrame, n);
      if (!bucket.computed.valid()) continue;
      add(Kind::Kernel, 0, Phase::Forward, "cast_weights",
          {.kind = OpKind::CastCopy, .dims = {bucket.elements}},
          {flat_view(bucket.weight, 0, bucket.elements, gj_.job.precision.params)},
          {flat_view(bucket.computed, 0, bucket.elements, graph_activation(gj_.job))}, kNoFrame, n);
    }
    if (layers_.loss.buffer.valid()) {
      add(Kind::Kernel, 0, Phase::Optimizer, "zero_loss", {.kind = OpKind::Zero, .dims = {1}}, {},
          {layers_.loss}, kNoFrame);
    }
  }

  void update(std::size_t index) {
    const GraphBucket& b = weights_.buckets()[index];
    const Precision& p = gj_.job.precision;
    const DType state = p.master ? DType::F32 : p.params;
    std::vector<View> writes;
    if (b.master.valid()) writes.push_back(flat_view(b.master, 0, b.elements, DType::F32));
    writes.push_back(flat_view(b.m, 0, b.elements, state));
    if (b.v.valid()) writes.push_back(flat_view(b.v, 0, b.elements, state));
    writes.push_back(flat_view(b.weight, 0, b.elements, p.params));
    add(Kind::Kernel, 0, Phase::Optimizer, step_name(gj_.job.optimizer),
        {.kind = step_kind(gj_.job.optimizer), .dims = {b.elements}}, {gradient_of(index)},
        std::move(writes), kNoFrame, static_cast<std::int32_t>(index));
  }

  void emit() {
    begin();
    const auto passes = table();
    for (std::size_t k = 0; k < passes.size(); ++k) {
      const auto frame = static_cast<std::uint32_t>(passes[k].micro_batch);
      if (passes[k].kind == PassKind::Backward) {
        backward_pass(frame, k + 1 == passes.size());
      } else {
        forward_pass(frame);
      }
    }
    const std::size_t buckets = weights_.buckets().size();
    for (std::size_t b = 0; b < buckets; ++b) {
      if (data_.valid() && !overlaps()) reduce(b);
    }
    for (std::size_t b = 0; b < buckets; ++b) update(b);
  }

  StageTable table() const {
    const std::int32_t m = gj_.micro_batches;
    if (gj_.layout.schedule != Schedule::Gpipe) {
      return one_f_one_b_table(gj_.layout.pp, role_.stage, m);
    }
    StageTable passes = gpipe_table(m);
    std::reverse(passes.begin() + m, passes.end());
    return passes;
  }

  PlanBuilder& plan_;
  const GraphJob& gj_;
  const Role& role_;
  GraphWeights weights_;
  GraphLayers layers_;
  Program program_;
  SlotId data_{};
  std::vector<SlotId> from_, to_;
  std::uint8_t reduce_ = 0, receive_ = 0, send_ = 0, receive_grad_ = 0, send_grad_ = 0;
  std::vector<SegmentOp> forward_, backward_, repeated_, repeating_;
  std::vector<std::int32_t> reduced_;                          // by bucket: completing layer
  std::vector<std::pair<std::size_t, std::size_t>> complete_;  // operations, bucket
};

std::optional<Infeasible> refusal(const LayerGraph& graph, const Cluster& cluster,
                                  const Layout& layout, const Job& job) {
  if (layout.tp > 1 || layout.cp > 1 || layout.ep > 1 || layout.vpp > 1 || layout.sp) {
    return no("layer graphs are cut into stages and replicas only",
              "set layout.tp, cp, ep and vpp to 1");
  }
  if (layout.zero > 0 || job.lora_rank > 0) {
    return no("layer graphs keep whole optimizer states and train all weights",
              "set layout.zero to 0");
  }
  switch (layout.schedule) {
    case Schedule::None:
    case Schedule::Gpipe:
    case Schedule::OneFOneB: break;
    default:
      return no("layer graphs run the schedules gpipe and 1f1b", "set layout.schedule to 1f1b");
  }
  const bool repeats =
      layout.recompute == Recompute::Full || layout.recompute == Recompute::AllButLast;
  if (!repeats && layout.recompute != Recompute::None) {
    return no("layer graphs repeat whole stages or nothing", "set layout.recompute to full");
  }
  const std::vector<std::int32_t> replicas = replicas_of(layout), units = units_of(graph, layout);
  if (static_cast<std::int32_t>(replicas.size()) != layout.pp) {
    return no("layout.stage_replicas must list " + text(layout.pp) + " stages",
              "one count of replicas for each stage");
  }
  if (!layout.stage_replicas.empty() && layout.dp > 1) {
    return no("layout.stage_replicas says the replicas of each stage", "set layout.dp to 1");
  }
  const bool any_empty = std::any_of(units.begin(), units.end(), [](auto u) { return u < 1; });
  if (any_empty || static_cast<std::int32_t>(units.size()) != layout.pp ||
      std::accumulate(units.begin(), units.end(), 0) != graph.units()) {
    return no("the stages must share the " + text(graph.units()) + " units of " + graph.name +
                  ", one at least each",
              "lower layout.pp, or change layout.stage_layers");
  }
  if (layout.ranks() > cluster.gpus()) {
    return no("the layout needs " + text(layout.ranks()) + " GPUs, the cluster has " +
                  text(cluster.gpus()),
              "fewer replicas, or a larger cluster");
  }
  const std::int64_t wide = layout.micro_batch * layout.dp;
  if (wide < 1 || job.global_batch % wide != 0) {
    return no("micro_batch x dp (" + text(wide) + ") does not divide the global batch (" +
                  text(job.global_batch) + ")",
              "use a multiple of " + text(wide));
  }
  for (const std::int32_t r : replicas) {
    if (r >= 1 && wide % r == 0) continue;
    return no(text(r) + " replicas do not divide a micro-batch of " + text(wide) + " samples",
              "change layout.micro_batch");
  }
  constexpr double kMost = 5e7;
  const double size =
      8.0 * static_cast<double>(graph.layers.size()) * static_cast<double>(job.global_batch / wide);
  if (size > kMost) {
    return no("the plan would have about " + text(static_cast<std::int64_t>(size / 1e6)) +
                  " million instructions",
              "raise layout.micro_batch, or lower job.global_batch");
  }
  return std::nullopt;
}

// What replica `replica` of a stage takes of the `wide` samples of a micro-batch, and whom it
// exchanges them with; its layers are not set yet.
Role role_of(const GraphJob& gj, std::int32_t stage, std::int32_t replica, std::int64_t wide) {
  Role role;
  role.stage = stage;
  role.samples = wide / gj.replicas[at(stage)];
  const auto pieces = [&](std::int32_t neighbour) {
    const std::int32_t replicas = gj.replicas[at(neighbour)];
    return pieces_of(replica * role.samples, role.samples, wide / replicas, replicas);
  };
  if (stage > 0) role.previous = pieces(stage - 1);
  if (stage + 1 < gj.layout.pp) role.next = pieces(stage + 1);
  return role;
}

// Ranks of a stage: the grid's, or one stage after the other.
RankId rank_of(const Layout& layout, const std::vector<std::int32_t>& replicas, std::int32_t stage,
               std::int32_t replica) {
  if (layout.stage_replicas.empty()) return layout.rank({.dp = replica, .pp = stage});
  const std::int32_t before = std::accumulate(replicas.begin(), replicas.begin() + stage, 0);
  return RankId(static_cast<std::uint32_t>(before + replica));
}

}  // namespace

std::vector<std::int32_t> replicas_of(const Layout& layout) {
  if (!layout.stage_replicas.empty()) return layout.stage_replicas;
  return std::vector<std::int32_t>(at(layout.pp), layout.dp);
}

std::vector<std::int32_t> units_of(const LayerGraph& graph, const Layout& layout) {
  if (!layout.stage_layers.empty()) return layout.stage_layers;
  std::vector<std::int32_t> units(at(layout.pp), graph.units() / layout.pp);
  for (std::int32_t s = 0; s < graph.units() % layout.pp; ++s) ++units[at(s)];
  return units;
}

Outcome<Plan> lower_graph(const LayerGraph& graph, const Cluster& cluster, const Layout& layout,
                          const Job& job) {
  if (auto refused = refusal(graph, cluster, layout, job)) return *std::move(refused);
  const std::int64_t wide = layout.micro_batch * layout.dp;
  const GraphJob gj{graph, layout, job, static_cast<std::int32_t>(job.global_batch / wide),
                    replicas_of(layout)};
  const std::vector<std::int32_t> units = units_of(graph, layout);
  PlanBuilder builder;
  builder.arena({.name = "gpu"});
  struct Placed {
    Rank rank;
    RankId id;
  };
  std::vector<Placed> ranks;
  std::int32_t unit = 0, layer = 0;
  const auto count = static_cast<std::int32_t>(graph.layers.size());
  for (std::int32_t s = 0; s < layout.pp; ++s) {
    unit += units[at(s)];
    std::int32_t last = layer;
    while (last < count && graph.layers[at(last)].unit < unit) ++last;
    const std::int32_t replicas = gj.replicas[at(s)];
    CommunicatorId data{};
    if (replicas > 1) data = builder.communicator({.name = "dp" + text(s), .members = {}});
    std::vector<Role> roles;
    std::vector<ProgramId> programs;
    for (std::int32_t r = 0; r < replicas; ++r) {
      Role role = role_of(gj, s, r, wide);
      role.first = layer, role.last = last;
      const RankId id = rank_of(layout, gj.replicas, s, r);
      if (data.valid()) builder.plan().communicators[data.value].members.push_back(id);
      std::size_t known = 0;
      while (known < roles.size() && !roles[known].same_messages(role)) ++known;
      if (known == roles.size()) {
        const std::string name = "stage" + text(s) + (known > 0 ? "." + text(known) : "");
        Program program = RoleProgram(builder, gj, role, name).run();
        programs.push_back(builder.program(std::move(program)));
        roles.push_back(role);
      }
      Rank rank{.program = programs[known],
                .gpu = layout.devices.empty() ? GpuId(id.value) : layout.devices[id.value],
                .slots = {}};
      if (data.valid()) rank.slots.push_back(data.value);
      for (const Piece& p : role.previous) {
        rank.slots.push_back(rank_of(layout, gj.replicas, s - 1, p.peer).value);
      }
      for (const Piece& p : role.next) {
        rank.slots.push_back(rank_of(layout, gj.replicas, s + 1, p.peer).value);
      }
      ranks.push_back({std::move(rank), id});
    }
    layer = last;
  }
  std::sort(ranks.begin(), ranks.end(),
            [](const Placed& a, const Placed& b) { return a.id.value < b.id.value; });
  for (Placed& placed : ranks) builder.rank(std::move(placed.rank));
  for (Communicator& c : builder.plan().communicators) {
    std::sort(c.members.begin(), c.members.end());
  }
  Plan plan = std::move(builder).take();
  plan.cuda_graph = job.cuda_graph;
  return plan;
}

}  // namespace gputwin
