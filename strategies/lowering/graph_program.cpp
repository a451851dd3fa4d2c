#include "strategies/lowering/graph_program.h"

#include <algorithm>
#include <map>

#include "strategies/lowering/graph_layers.h"
#include "strategies/lowering/stack_kernels.h"
#include "strategies/passes/compress_parts.h"
#include "strategies/schedules/table.h"

namespace gputwin {
namespace {

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }
std::string text(std::int64_t n) { return std::to_string(n); }

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
        weights_(plan, gj.graph, gj.job, bucket_elements(gj.layout, gj.job), padding(), role.first,
                 role.last, name + "."),
        layers_(plan, gj.graph, gj.job, weights_, role.first, role.last, role.samples, name + ".") {
    program_.name = name;
    program_.frames = static_cast<std::uint32_t>(role.frames);
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
    program_.parameters = weights_.take_parameters();
    const bool endless = never_drains(gj_.layout.schedule);
    endless ? emit_endless() : emit();
    if (endless) {
      synchronise_endless(plan_.plan(), program_);
      place_memory_endless(plan_.plan(), program_);
    } else {
      synchronise(plan_.plan(), program_);
      place_memory(plan_.plan(), program_);
    }
    return std::move(program_);
  }

 private:
  std::int64_t replicas() const { return gj_.replicas[at(role_.stage)]; }
  bool codes_gradients() const { return gj_.layout.compression.on_gradients() && replicas() > 1; }
  // Elements that coded buckets are padded to: whole rows on every replica.
  std::int64_t padding() const {
    const bool pads = codes_gradients() && gj_.layout.compression.pads_gradients();
    return pads ? kGradientRow * replicas() : 1;
  }

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
    if (replicas() > 1) {
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
                               .frames = role_.frames,
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
    into_->push_back(
        {.kind = kind, .stream = stream, .call = call.value, .name = id.value, .event = frame});
  }

  void stamp(const std::vector<SegmentOp>& ops, std::size_t begin, std::size_t end,
             std::uint32_t frame) {
    for (std::size_t i = begin; i < end; ++i) {
      into_->push_back({.kind = ops[i].kind,
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

  // With every replica of `pieces`, or with the one whose turn it is.
  void exchange(bool sends, std::uint8_t stream, const char* name, const View& tensor,
                const std::vector<Piece>& pieces, const std::vector<std::size_t>& turns,
                const std::vector<SlotId>& peers, std::uint32_t frame, std::int32_t& occurrence) {
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      if (!turns.empty() && turns[frame] != p) continue;
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

  void receive_activations(std::uint32_t frame) {
    std::int32_t n = 0;
    for (const std::int32_t l : layers_.received()) {
      exchange(false, receive_, "receive_activations", layers_.value(l), role_.previous,
               role_.previous_of, from_, frame, n);
    }
  }

  void forward_pass(std::uint32_t frame, const std::vector<SegmentOp>& ops) {
    stamp(ops, 0, ops.size(), frame);
    std::int32_t n = 0;
    for (const std::int32_t l : layers_.sent()) {
      exchange(true, send_, "send_activations", layers_.value(l), role_.next, role_.next_of, to_,
               frame, n);
    }
  }

  // `reduces`: the last micro-batch before a step; `reduced_in` is the frame of the reductions.
  void backward_pass(std::uint32_t frame, bool reduces, std::uint32_t reduced_in = kNoFrame) {
    const bool spared =
        gj_.layout.recompute == Recompute::AllButLast && frame + 1 == program_.frames;
    const bool repeats = gj_.layout.recompute != Recompute::None && !spared;
    std::int32_t n = 0;
    // torch's checkpoint repeats the forward pass when the gradient has arrived.
    for (const std::int32_t l : layers_.sent()) {
      exchange(false, receive_grad_, "receive_gradients", layers_.arriving(l), role_.next,
               role_.next_of, to_, frame, n);
    }
    if (repeats) stamp(repeated_, 0, repeated_.size(), frame);
    const std::vector<SegmentOp>& ops = repeats ? repeating_ : backward_;
    std::size_t done = 0;
    for (const auto& [operations, bucket] : complete_) {
      if (!reduces || !overlaps()) break;
      stamp(ops, done, operations, frame);
      done = operations;
      reduce(bucket, reduced_in);
    }
    stamp(ops, done, ops.size(), frame);
    n = 0;
    for (const std::int32_t l : layers_.received()) {
      exchange(true, send_grad_, "send_gradients", layers_.leaving(l), role_.previous,
               role_.previous_of, from_, frame, n);
    }
  }

  bool overlaps() const { return data_.valid() && gj_.layout.overlap_grad_reduce; }

  View gradient_of(std::size_t bucket) const {
    const GraphBucket& b = weights_.buckets()[bucket];
    return flat_view(b.gradient, 0, b.elements, gj_.job.precision.grads);
  }

  void reduce(std::size_t bucket, std::uint32_t frame) {
    const View gradient = gradient_of(bucket);
    add(Kind::Collective, reduce_, Phase::Reduce, "grad_all_reduce",
        {.kind = OpKind::AllReduce, .slot = data_, .dims = {gradient.elements()}}, {gradient},
        {gradient}, frame, static_cast<std::int32_t>(bucket));
    if (!codes_gradients()) return;
    const Instruction whole = into_->back();
    into_->pop_back();
    CodedSum steps = coded_sum(plan_, gj_.layout.compression, replicas(), program_.parameters, 0,
                               {.kind = whole.kind,
                                .stream = whole.stream,
                                .call = CallId(whole.call),
                                .name = NameId(whole.name)});
    stamp(steps[0], 0, steps[0].size(), frame);
    between_exchanges(frame);
    if (steps.size() > 2) between_ = std::move(steps[1]);
    ends_.insert(ends_.end(), steps.back().begin(), steps.back().end());
  }

  // What the last coded bucket has left to do between its exchanges.
  void between_exchanges(std::uint32_t frame) {
    stamp(between_, 0, between_.size(), frame);
    between_.clear();
  }

  void zero_gradients(std::uint32_t frame) {
    for (std::size_t b = 0; b < weights_.buckets().size(); ++b) {
      add(Kind::Kernel, 0, Phase::Optimizer, "zero_gradients",
          {.kind = OpKind::Zero, .dims = {weights_.buckets()[b].elements}}, {}, {gradient_of(b)},
          frame, static_cast<std::int32_t>(b));
    }
  }

  // Weights in the compute format, where that is not theirs.
  void cast_weights(std::uint32_t frame) {
    for (std::size_t b = 0; b < weights_.buckets().size(); ++b) {
      const GraphBucket& bucket = weights_.buckets()[b];
      if (!bucket.computed.valid()) continue;
      add(Kind::Kernel, 0, Phase::Forward, "cast_weights",
          {.kind = OpKind::CastCopy, .dims = {bucket.elements}},
          {flat_view(bucket.weight, 0, bucket.elements, gj_.job.precision.params)},
          {flat_view(bucket.computed, 0, bucket.elements, graph_activation(gj_.job))}, frame,
          static_cast<std::int32_t>(b));
    }
  }

  void zero_loss() {
    if (!layers_.loss.buffer.valid()) return;
    add(Kind::Kernel, 0, Phase::Optimizer, "zero_loss", {.kind = OpKind::Zero, .dims = {1}}, {},
        {layers_.loss}, kNoFrame);
  }

  void update(std::size_t index, std::uint32_t frame) {
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
        std::move(writes), frame, static_cast<std::int32_t>(index));
  }

  // Sums what the backward passes have not, and updates the weights.
  void step(std::uint32_t frame) {
    const std::size_t buckets = weights_.buckets().size();
    for (std::size_t b = 0; b < buckets; ++b) {
      if (data_.valid() && !overlaps()) reduce(b, frame);
    }
    between_exchanges(frame);
    stamp(ends_, 0, ends_.size(), frame);
    ends_.clear();
    for (std::size_t b = 0; b < buckets; ++b) update(b, frame);
  }

  void emit() {
    zero_gradients(kNoFrame);
    cast_weights(kNoFrame);
    zero_loss();
    const auto passes = table();
    for (std::size_t k = 0; k < passes.size(); ++k) {
      const auto frame = static_cast<std::uint32_t>(passes[k].micro_batch);
      if (passes[k].kind == PassKind::Backward) {
        backward_pass(frame, k + 1 == passes.size());
      } else {
        receive_activations(frame);
        forward_pass(frame, forward_);
      }
    }
    step(kNoFrame);
  }

  // ---- without a flush

  // What kernels read of a bucket.
  BufferId used(const GraphBucket& b) const { return b.computed.valid() ? b.computed : b.weight; }

  // A second place for the weights of each bucket; framed: one for each frame in flight.
  void make_older(bool framed) {
    for (const GraphBucket& b : weights_.buckets()) {
      Buffer older = plan_.plan().buffers[used(b).value];
      older.name += framed ? ".stashed" : ".older";
      older.framed = framed;
      older.persistent = !framed;
      older_[used(b)] = plan_.buffer(std::move(older));
    }
  }

  // `ops` with the weights in older_.
  std::vector<SegmentOp> with_older(std::vector<SegmentOp> ops) {
    for (SegmentOp& op : ops) {
      Call call = plan_.plan().calls[op.call.value];
      for (View& v : call.reads) {
        if (const auto found = older_.find(v.buffer); found != older_.end()) {
          v.buffer = found->second;
        }
      }
      op.call = plan_.call(std::move(call));
    }
    return ops;
  }

  void keep_weights(std::uint32_t frame) {
    for (std::size_t b = 0; b < weights_.buckets().size(); ++b) {
      const GraphBucket& bucket = weights_.buckets()[b];
      const DType dtype = plan_.plan().buffers[used(bucket).value].dtype;
      add(Kind::Kernel, 0, Phase::Optimizer, "keep_weights",
          {.kind = OpKind::CastCopy, .dims = {bucket.elements}},
          {flat_view(used(bucket), 0, bucket.elements, dtype)},
          {flat_view(older_.at(used(bucket)), 0, bucket.elements, dtype)}, frame,
          static_cast<std::int32_t>(b));
    }
  }

  // The order never drains: the prologue sends `ahead` frames forward, then each pair takes one
  // frame forward, maybe of the next iteration, and one backward.
  //
  // Stashing (PipeDream, Narayanan et al. 2019): a step after every frame; frame i goes forward
  // after step i - ahead and backward with the same weights, which are kept for it. 2BW (Narayanan
  // et al. 2021): one step an iteration; its frames use what the step before the last one left.
  void emit_endless() {
    const bool stashes = gj_.layout.schedule == Schedule::PipedreamStash;
    const auto frames = program_.frames, ahead = static_cast<std::uint32_t>(role_.ahead);
    const auto received = static_cast<std::uint32_t>(role_.received);
    const bool keeps = !stashes || ahead > 0;
    if (keeps) make_older(stashes);
    backward_ = with_older(std::move(backward_));
    repeated_ = with_older(std::move(repeated_));
    repeating_ = with_older(std::move(repeating_));
    const std::vector<SegmentOp> older = stashes ? forward_ : with_older(forward_);
    into_ = &program_.prologue;
    cast_weights(kNoFrame);
    if (!stashes) keep_weights(kNoFrame);
    for (std::uint32_t i = 0; i < received; ++i) {
      receive_activations(i);
      if (i < ahead) forward_pass(i, older);
      if (i < ahead && stashes) keep_weights(i);
    }
    into_ = &program_.body;
    zero_loss();
    if (!stashes) zero_gradients(kNoFrame);
    for (std::uint32_t i = 0; i < frames; ++i) {
      const std::uint32_t next = (ahead + i) % frames;
      receive_activations((received + i) % frames);
      forward_pass(next, ahead + i < frames ? older : forward_);
      if (stashes) zero_gradients(i);
      backward_pass(i, stashes || i + 1 == frames, stashes ? i : kNoFrame);
      if (!stashes) continue;
      if (keeps) keep_weights(next);
      step(i);
      cast_weights(i);
    }
    if (stashes) return;
    keep_weights(kNoFrame);
    step(kNoFrame);
    cast_weights(kNoFrame);
  }

  StageTable table() const {
    const std::int32_t m = role_.frames;
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
  std::vector<SegmentOp> between_, ends_;  // of coded sums
  std::vector<Instruction>* into_ = &program_.body;
  std::map<BufferId, BufferId> older_;                         // by buffer of weights
  std::vector<std::int32_t> reduced_;                          // by bucket: completing layer
  std::vector<std::pair<std::size_t, std::size_t>> complete_;  // operations, bucket
};

}  // namespace

bool Role::same_messages(const Role& other) const {
  const auto same = [](const std::vector<Piece>& a, const std::vector<Piece>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Piece& x, const Piece& y) {
      return x.first == y.first && x.count == y.count;
    });
  };
  return same(previous, other.previous) && same(next, other.next) &&
         previous_of == other.previous_of && next_of == other.next_of && received == other.received;
}

Program graph_program(PlanBuilder& plan, const GraphJob& job, const Role& role,
                      const std::string& name) {
  return RoleProgram(plan, job, role, name).run();
}

}  // namespace gputwin
