#include "strategies/lowering/transformer.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "strategies/lowering/feasibility.h"
#include "strategies/lowering/optimizer.h"
#include "strategies/lowering/quantize.h"
#include "strategies/lowering/sharding.h"
#include "strategies/lowering/wiring.h"

namespace gputwin {
namespace {

struct ModelJob {
  const Transformer& model;
  const Layout& layout;
  const Job& job;
  const StackKernels& kernels;
  Sizes sizes;
  std::int32_t micro_batches = 0;

  // Pipeline messages are cut over tp where the stack does so; with sequence parallelism they are
  // anyway.
  bool scatter_messages() const {
    return kernels.scatter_gather_pipeline && layout.tp > 1 && !layout.sp &&
           sizes.tokens % layout.tp == 0;
  }
  // DeepSpeed and Megatron-LM wait on the host for every message; Megatron Core overlaps them in
  // the interleaved schedule alone.
  bool blocking_messages() const {
    if (layout.pp == 1 || kernels.messages == Messages::Overlapped) return false;
    // The runtimes of the later schedules let streams wait, not the host.
    if (layout.schedule > Schedule::Interleaved) return false;
    return kernels.messages == Messages::Blocking || layout.vpp == 1 || !layout.overlap_p2p;
  }
  bool overlap_reduction() const {
    if (placement(layout.schedule) == Placement::TwoWay) return false;  // both copies at the end
    if (layout.dp * layout.cp == 1) return false;
    // A gradient that leaves the GPU is complete when it does.
    if (layout.offload.gradients != OffloadPlace::Gpu) return true;
    return layout.overlap_grad_reduce && kernels.overlap_grad_reduce;
  }
};

// Lowers the chunks of one stage.
class StageLowering {
 public:
  StageLowering(PlanBuilder& plan, const ModelJob& mj, std::int32_t stage)
      : plan_(plan),
        mj_(mj),
        stage_(stage),
        program_(new_program()),
        wiring_(wire_stage(mj.layout, stage, ties_stages(mj.model, mj.layout),
                           mj.model.has_experts(), program_)),
        parameters_(plan, stage, mj.layout, mj.job,
                    stage_tensors(mj.model, mj.layout, mj.sizes, stage),
                    {.tp = wiring_.tp,
                     .dp = wiring_.dp,
                     .shard = wiring_.shard,
                     .ep = wiring_.ep,
                     .expert_dp = wiring_.expert_dp,
                     .expert_replicas = expert_replicas(mj.layout),
                     .overlap = mj.overlap_reduction(),
                     .accumulate = mj.micro_batches > 1,
                     .apart = mj.kernels.gradients_apart}),
        b_(plan, mj.model, mj.layout, mj.job, mj.kernels, mj.sizes, wiring_, parameters_) {
    b_.expert_load = mj.job.expert_load.empty() ? 0 : 1;
  }

  StageSegments run() {
    add_inputs();
    out_.program = ProgramId(static_cast<std::uint32_t>(stage_));
    out_.compute_stream = wiring_.compute_stream;
    lower_chunks();
    add_iteration_ends();
    program_.parameters = parameters_.take_parameters();
    plan_.program(std::move(program_));
    return std::move(out_);
  }
  const StageWiring& wiring() const { return wiring_; }

 private:
  Program new_program() const {
    Program p;
    p.name = "stage" + std::to_string(stage_);
    p.frames = static_cast<std::uint32_t>(mj_.micro_batches);
    return p;
  }

  BufferId input_buffer(const char* name, bool targets) {
    const std::int64_t tokens = mj_.sizes.tokens;
    const BufferId buffer = plan_.buffer({.name = program_.name + "." + name,
                                          .bytes = Bytes(tokens * bits(DType::I64) / 8),
                                          .memory = MemoryClass::Activations,
                                          .dtype = DType::I64,
                                          .framed = true,
                                          .persistent = true});
    program_.inputs.push_back({.buffer = buffer,
                               .targets = targets,
                               .samples = mj_.layout.micro_batch,
                               .sequence = mj_.sizes.sequence,
                               .vocab = mj_.model.vocab,
                               .data_slot = wiring_.dp,
                               .cp_slot = wiring_.cp,
                               .frames = mj_.micro_batches});
    return buffer;
  }

  void add_inputs() {
    const std::int64_t tokens = mj_.sizes.tokens;
    const auto view = [&](BufferId buffer) {
      return View{.buffer = buffer, .rows = tokens, .cols = 1, .ld = 1, .dtype = DType::I64};
    };
    const auto holds = [&](std::int32_t chunk) {
      const bool both = placement(mj_.layout.schedule) == Placement::TwoWay;
      return mj_.layout.stage_of(chunk) == stage_ ||
             (both && mj_.layout.stage_of(chunk, 1) == stage_);
    };
    if (holds(0)) embedding_.tokens = view(input_buffer("tokens", false));
    if (!holds(mj_.layout.chunks() - 1)) return;
    head_.targets = view(input_buffer("targets", true));
    program_.loss = plan_.buffer({.name = program_.name + ".loss",
                                  .bytes = Bytes(4),
                                  .memory = MemoryClass::Temporary,
                                  .dtype = DType::F32,
                                  .persistent = true});
    head_.loss = flat(program_.loss, 1, DType::F32);
  }

  void segment(std::vector<Segment>& list, Phase phase, std::int32_t layer,
               const std::function<void()>& lower) {
    Segment s{.phase = phase, .layer = layer, .ops = {}};
    b_.into(s);
    lower();
    list.push_back(std::move(s));
  }

  // A tensor that comes from a neighbour: `message` is what arrives, the result the whole.
  View receive(std::vector<Segment>& list, std::int32_t layer, const std::string& name, bool keep,
               View& message) {
    const Sizes& s = mj_.sizes;
    Segment gather{.phase = Phase::Pipeline, .layer = layer, .ops = {}};
    b_.into(gather);
    const View whole = keep ? b_.activation(name, s.shard_tokens, s.hidden)
                            : b_.temporary(name, s.shard_tokens, s.hidden);
    message = whole;
    if (!mj_.scatter_messages()) return whole;
    message = b_.temporary(name + "_received", s.tokens / mj_.layout.tp, s.hidden);
    b_.all_gather(name + "_all_gather", message, whole);
    list.push_back(std::move(gather));
    return whole;
  }

  // What is sent of `whole`.
  View send(std::vector<Segment>& list, std::int32_t layer, const char* name, const View& whole) {
    if (!mj_.scatter_messages()) return whole;
    View message;
    segment(list, Phase::Pipeline, layer, [&] {
      message = b_.temporary(std::string(name) + "_sent", whole.rows / mj_.layout.tp, whole.cols);
      b_.own_shard(std::string(name) + "_shard", whole, message);
    });
    return message;
  }

  // The chunks of this stage. Where two follow one another, forward hands the first's output to the
  // second, and backward the second's input gradient to the first.
  void lower_chunks() {
    const Layout& l = mj_.layout;
    const bool snake = placement(l.schedule) == Placement::Snake;
    const auto n = static_cast<std::size_t>(l.local_chunks());
    std::vector<std::vector<LayerState>> states(n);
    out_.chunks.resize(n);
    for (std::size_t v = 0; v < n; ++v) {
      begin_chunk(v, states[v]);
      forward(out_.chunks[v], first_layer_, states[v]);
      if (!snake) backward(out_.chunks[v], first_layer_, states[v]);
    }
    for (std::size_t v = n; snake && v-- > 0;) {
      begin_chunk(v, states[v]);
      backward(out_.chunks[v], first_layer_, states[v]);
    }
    for (std::size_t v = 0; v < n; ++v) {
      for (const Bucket& bucket : parameters_.buckets()) {
        if (parameters_.level() < 3 || bucket.chunk != static_cast<std::int32_t>(v)) continue;
        if (bucket.layer < 0) continue;
        out_.chunks[v].regathered.push_back({bucket.layer, bucket.weight, bucket.weight_again});
      }
    }
  }

  // Makes local chunk v the one being lowered.
  void begin_chunk(std::size_t v, std::vector<LayerState>& states) {
    local_chunk_ = static_cast<std::int32_t>(v);
    Chunk& chunk = out_.chunks[v];
    chunk.index = mj_.layout.chunk_at(stage_, local_chunk_);
    const std::vector<std::int32_t> layers = mj_.layout.layers_per_chunk(mj_.model.layers);
    const auto at = layers.begin() + chunk.index;
    first_layer_ = std::accumulate(layers.begin(), at, 0);
    states.resize(static_cast<std::size_t>(*at));
    connect(mj_.layout, wiring_, stage_, chunk);
  }

  // Calls `act` with every unit (ZeRO 2, 3) of this chunk that is `wanted`.
  void units(const std::function<bool(const Bucket&)>& wanted,
             const std::function<void(std::int32_t)>& act) {
    const std::vector<Bucket>& buckets = parameters_.buckets();
    for (std::size_t i = 0; parameters_.level() >= 2 && i < buckets.size(); ++i) {
      if (buckets[i].chunk == local_chunk_ && wanted(buckets[i])) act(static_cast<std::int32_t>(i));
    }
  }

  // Weights that are not there all the time: those of the ends of the model at the head of a pass,
  // those of a layer one layer ahead.
  void gather(std::vector<Segment>& list, bool again,
              const std::function<bool(const Bucket&)>& wanted) {
    if (parameters_.level() < 3) return;
    units(wanted, [&](std::int32_t i) {
      const std::int32_t layer = parameters_.buckets()[static_cast<std::size_t>(i)].layer;
      segment(list, Phase::Gather, layer, [&] { gather_unit(b_, i, again); });
    });
  }
  void gather_ends(std::vector<Segment>& list, bool again) {
    gather(list, again, [&](const Bucket& u) {
      // Backward needs the head's weights, not the embedding's.
      return u.layer < 0 && (!again || (u.weight_again != u.weight && u.layer == kHeadLayer));
    });
  }
  void gather_layer(std::vector<Segment>& list, bool again, std::int32_t layer) {
    gather(list, again, [&](const Bucket& u) { return u.layer == layer && layer >= 0; });
  }
  // Calls for the weights of layers[at] right before its pass: they are there already, and what is
  // issued is the gather of the next, unless gathers are not to run ahead.
  void gather_next(std::vector<Segment>& list, bool again, const std::vector<std::int32_t>& layers,
                   std::size_t at) {
    const bool ahead = mj_.layout.overlap_param_gather;
    if (!ahead) return gather_layer(list, again, layers[at]);
    if (at + 1 < layers.size()) gather_layer(list, again, layers[at + 1]);
  }
  void gather_first(std::vector<Segment>& list, bool again,
                    const std::vector<std::int32_t>& layers) {
    gather_ends(list, again);
    if (mj_.layout.overlap_param_gather && !layers.empty()) gather_layer(list, again, layers[0]);
  }

  void zero_units(std::int32_t layer) {
    units([&](const Bucket& u) { return u.first_layer == layer; },
          [&](std::int32_t i) { zero_unit(b_, i); });
  }
  void reduce_units(std::vector<Segment>& list, std::int32_t layer) {
    units(
        [&](const Bucket& u) { return u.layer == layer; },
        [&](std::int32_t i) { segment(list, Phase::Reduce, layer, [&] { reduce_unit(b_, i); }); });
  }
  // A segment of backward: `lower` with the gradients of the units that begin and end in it.
  void backward_segment(std::vector<Segment>& list, std::int32_t layer,
                        const std::function<void()>& lower) {
    segment(list, Phase::Backward, layer, [&] {
      zero_units(layer);
      lower();
    });
    reduce_units(list, layer);
  }

  bool is_first(const Chunk& chunk) const { return chunk.index == 0; }
  bool is_last(const Chunk& chunk) const { return chunk.index == mj_.layout.chunks() - 1; }
  Chunk& local(const Chunk& chunk, std::int32_t step) {
    return out_.chunks[static_cast<std::size_t>(&chunk - out_.chunks.data() + step)];
  }

  void forward(Chunk& chunk, std::int32_t first, std::vector<LayerState>& states) {
    const auto count = static_cast<std::int32_t>(states.size());
    auto& list = chunk.forward;
    std::vector<std::int32_t> layers(states.size());
    std::iota(layers.begin(), layers.end(), first);
    View x;
    gather_first(list, false, layers);
    if (is_first(chunk)) {
      segment(list, Phase::Forward, kEmbeddingLayer,
              [&] { x = embedding_forward(b_, embedding_); });
    } else if (!chunk.from_previous.peer.valid()) {
      x = chunk.input = local(chunk, -1).output;
    } else {
      x = receive(list, count > 0 ? first : kHeadLayer, "input", true, chunk.input);
    }
    for (std::int32_t l = 0; l < count; ++l) {
      gather_next(list, false, layers, static_cast<std::size_t>(l));
      segment(list, Phase::Forward, first + l,
              [&] { x = layer_forward(b_, x, states[static_cast<std::size_t>(l)]); });
    }
    if (is_last(chunk)) {
      segment(list, Phase::Forward, kHeadLayer, [&] { head_forward(b_, x, head_); });
    } else if (!chunk.to_next.peer.valid()) {
      chunk.output = x;
    } else {
      const std::int32_t last = count > 0 ? first + count - 1 : kEmbeddingLayer;
      chunk.output = send(list, last, "output", x);
    }
  }

  void backward(Chunk& chunk, std::int32_t first, const std::vector<LayerState>& states) {
    const auto count = static_cast<std::int32_t>(states.size());
    auto& list = chunk.backward;
    std::vector<std::int32_t> layers(states.size());
    std::iota(layers.rbegin(), layers.rend(), first);
    View dy;
    gather_first(list, true, layers);
    if (is_last(chunk)) {
      backward_segment(list, kHeadLayer, [&] { dy = head_backward(b_, head_); });
    } else if (!chunk.from_next.peer.valid()) {
      dy = chunk.output_grad = local(chunk, 1).input_grad;
    } else {
      const std::int32_t last = count > 0 ? first + count - 1 : kEmbeddingLayer;
      dy = receive(list, last, "output_grad", false, chunk.output_grad);
    }
    for (std::int32_t l = count; l-- > 0;) {
      // Below the first layer nothing is trained if only adapters are.
      const bool to_input = mj_.job.lora_rank == 0 || !is_first(chunk) || l > 0;
      gather_next(list, true, layers, static_cast<std::size_t>(count - 1 - l));
      backward_segment(list, first + l, [&] {
        dy = layer_backward(b_, dy, states[static_cast<std::size_t>(l)], to_input);
      });
    }
    if (is_first(chunk)) {
      backward_segment(list, kEmbeddingLayer, [&] { embedding_backward(b_, dy, embedding_); });
    } else if (!chunk.to_previous.peer.valid()) {
      chunk.input_grad = dy;
    } else {
      chunk.input_grad = send(list, count > 0 ? first : kHeadLayer, "input_grad", dy);
    }
    if (mj_.kernels.gradients_apart) {
      segment(list, Phase::Reduce, kHeadLayer, [&] { accumulate_fresh(b_, local_chunk_); });
    }
  }

  void add_iteration_ends() {
    segment(out_.begin, Phase::Optimizer, kHeadLayer, [&] { zero_gradients(b_, head_.loss); });
    for (std::int32_t layer = 0; layer < mj_.model.layers; ++layer) {
      const auto first = b_.narrow_weights.lower_bound({layer, Role{}});
      if (first == b_.narrow_weights.end() || first->first.first != layer) continue;
      segment(out_.begin, Phase::Forward, layer, [&] { quantize_weights(b_); });
    }
    const std::vector<Bucket>& buckets = parameters_.buckets();
    for (const std::size_t i : buckets_to_reduce()) {
      std::vector<Segment> one;
      segment(one, Phase::Reduce, kHeadLayer,
              [&] { reduce_bucket(b_, static_cast<std::int32_t>(i)); });
      if (one[0].ops.empty()) continue;
      // The other stage's half of a tied gradient comes late: waiting for it would stall later
      // buckets.
      const bool waits = buckets[i].tied && buckets[i].gradient_shard.valid();
      if (mj_.overlap_reduction() && !waits) {
        out_.reductions.push_back(
            {buckets[i].chunk, completing_segment(buckets[i]), std::move(one[0])});
      } else {
        out_.finish.push_back(std::move(one[0]));
      }
    }
    order_reductions();
    const View sum = scalar("grad_norm", validates_later(mj_.layout.schedule));
    if (validates_later(mj_.layout.schedule) && mj_.layout.pp > 1) {
      const View total = scalar("validated_norm", false);
      segment(out_.validate, Phase::Optimizer, kHeadLayer, [&] { validate_step(b_, sum, total); });
    }
    std::vector<Segment> late;
    segment(late, Phase::Reduce, kHeadLayer, [&] { sum_copies(b_); });
    if (!late[0].ops.empty()) out_.finish.push_back(std::move(late[0]));
    segment(out_.finish, Phase::Optimizer, kHeadLayer,
            [&] { update_weights(b_, sum, scalar("arriving_norm", false)); });
    if (wiring_.loss.valid()) {
      segment(out_.finish, Phase::Optimizer, kHeadLayer, [&] {
        b_.collective(wiring_.dp_stream, wiring_.loss, OpKind::AllReduce, "loss_all_reduce",
                      head_.loss, head_.loss);
      });
    }
  }

  View scalar(const char* name, bool persistent) {
    return flat(plan_.buffer({.name = program_.name + "." + name,
                              .bytes = Bytes(4),
                              .memory = MemoryClass::Temporary,
                              .dtype = DType::F32,
                              .persistent = persistent}),
                1, DType::F32);
  }

  // A tied tensor's bucket is closed alone, so it may come before one that is complete earlier.
  void order_reductions() {
    auto& list = out_.reductions;
    for (auto begin = list.begin(); begin != list.end();) {
      const auto end =
          std::find_if(begin, list.end(), [&](const auto& r) { return r.chunk != begin->chunk; });
      std::stable_sort(begin, end,
                       [](const auto& a, const auto& b) { return a.segment < b.segment; });
      begin = end;
    }
  }

  // In the order of reduction. Stages that hold the same two chunks, in reverse, take them in the
  // same order.
  std::vector<std::size_t> buckets_to_reduce() const {
    std::vector<std::size_t> order;
    if (parameters_.level() >= 2) return order;
    const std::vector<Bucket>& buckets = parameters_.buckets();
    order.resize(buckets.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (placement(mj_.layout.schedule) != Placement::TwoWay) return order;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return mj_.layout.chunk_at(stage_, buckets[a].chunk) >
             mj_.layout.chunk_at(stage_, buckets[b].chunk);
    });
    return order;
  }

  std::int32_t completing_segment(const Bucket& bucket) const {
    const auto& list = out_.chunks[static_cast<std::size_t>(bucket.chunk)].backward;
    std::int32_t found = 0;
    for (std::size_t s = 0; s < list.size(); ++s) {
      if (list[s].phase == Phase::Backward && list[s].layer == bucket.layer) {
        found = static_cast<std::int32_t>(s);
      }
    }
    return found;
  }

  PlanBuilder& plan_;
  const ModelJob& mj_;
  std::int32_t stage_;
  std::int32_t local_chunk_ = 0, first_layer_ = 0;  // being lowered
  Program program_;
  StageWiring wiring_;
  StageParameters parameters_;
  StageBuilder b_;
  StageSegments out_;
  EmbeddingState embedding_;
  HeadState head_;
};

}  // namespace

Outcome<Lowered> lower(const Transformer& model, const Cluster& cluster, const Layout& layout,
                       const Job& job) {
  if (auto refused = refusal(model, cluster, layout, job)) return *std::move(refused);
  const ModelJob mj{.model = model,
                    .layout = layout,
                    .job = job,
                    .kernels = nearest_stack(job.stack, layout.zero),
                    .sizes = local_sizes(model, layout, job),
                    .micro_batches = static_cast<std::int32_t>(job.global_batch /
                                                               (layout.micro_batch * layout.dp))};
  PlanBuilder builder;
  builder.arena({.name = "gpu"});
  if (!job.expert_load.empty()) builder.plan().loads.push_back({.factor = job.expert_load});
  Lowered lowered{.plan = {},
                  .layout = layout,
                  .blocking_messages = mj.blocking_messages(),
                  .recompute_stops_early = mj.kernels.recompute_stops_early,
                  .micro_batches = mj.micro_batches,
                  .stages = {}};
  std::vector<StageWiring> wiring;
  for (std::int32_t stage = 0; stage < layout.pp; ++stage) {
    StageLowering lowering(builder, mj, stage);
    lowered.stages.push_back(lowering.run());
    wiring.push_back(lowering.wiring());
  }
  add_ranks(builder, layout, wiring);
  lowered.plan = std::move(builder).take();
  lowered.plan.cuda_graph = job.cuda_graph;
  return lowered;
}

}  // namespace gputwin
