#include "strategies/schedules/pass_templates.h"

#include <utility>

namespace gputwin {
namespace {

constexpr std::int32_t kBoundary = -1;  // layer in the names of messages

// A program of one micro-batch that remembers which of its tasks belong to which piece.
class OneMicroBatch {
 public:
  OneMicroBatch(PlanBuilder& builder, ProgramId id) : builder_(builder) {
    program_ = builder.plan().programs[id.value];
    program_.frames = 1;
  }

  void add(std::vector<Instruction>& piece, const Segment& segment, std::uint32_t frame) {
    for (const SegmentOp& op : segment.ops) {
      add(piece, {.kind = op.kind,
                  .stream = op.stream,
                  .flags = op.flags,
                  .call = op.call.value,
                  .name = op.name.value,
                  .event = frame});
    }
  }
  void add(std::vector<Instruction>& piece, const Instruction& task) {
    program_.body.push_back(task);
    owners_.push_back(&piece);
  }

  // Hands every task to its piece, without events and memory.
  void distribute_tasks() {
    program_.buffers = used_buffers(builder_.plan(), program_);
    for (std::size_t i = 0; i < program_.body.size(); ++i) {
      owners_[i]->push_back(program_.body[i]);
    }
  }

  // Derives events and memory and hands every instruction to the piece of its task: what comes
  // before a task (Wait, Alloc) goes with it, and so does what comes after (Record, Free).
  std::uint32_t distribute() {
    program_.buffers = used_buffers(builder_.plan(), program_);
    synchronise(builder_.plan(), program_);
    place_memory(builder_.plan(), program_);
    std::size_t next = 0;
    for (const Instruction& i : program_.body) {
      const bool after = i.kind == Kind::Record || i.kind == Kind::Free;
      owners_[after ? next - 1 : next]->push_back(i);
      if (is_task(i.kind)) ++next;
    }
    return program_.events;
  }
  std::vector<BufferId> take_buffers() { return std::move(program_.buffers); }

 private:
  PlanBuilder& builder_;
  Program program_;
  std::vector<std::vector<Instruction>*> owners_;  // by task
};

class StageAssembly {
 public:
  StageAssembly(PlanBuilder& builder, const Lowered& lowered, std::int32_t stage,
                const StageTable& table)
      : builder_(builder),
        layout_(lowered.layout),
        micro_batches_(lowered.micro_batches),
        stage_(lowered.stages[static_cast<std::size_t>(stage)]),
        table_(table) {}

  StageTemplates run() {
    for (auto* by_kind : {&t_.any, &t_.last}) {
      for (auto& list : *by_kind) list.resize(stage_.chunks.size());
    }
    OneMicroBatch any(builder_, stage_.program), last(builder_, stage_.program);
    for (const Pass& pass : one_of_each()) add(any, pass, false);
    for (const Segment& s : stage_.begin) last.add(t_.begin, s, kNoFrame);
    bool validated = false;
    for (const Pass& pass : table_) {
      if (pass.kind == PassKind::Backward && !std::exchange(validated, true)) {
        add_validation(last);
      }
      if (pass.micro_batch == last_micro_batch(layout_, pass.chunk, micro_batches_)) {
        add(last, pass, true);
      }
    }
    for (const Segment& s : stage_.finish) last.add(t_.finish, s, kNoFrame);
    if (derives_bodies(layout_.schedule)) {
      any.distribute_tasks();
      last.distribute_tasks();
    } else {
      t_.events = any.distribute();
      t_.last_events = last.distribute();
    }
    t_.buffers = last.take_buffers();
    t_.compute_stream = stage_.compute_stream;
    return std::move(t_);
  }

 private:
  void add_validation(OneMicroBatch& program) {
    for (Segment one : stage_.validate) {
      for (const SegmentOp& op : std::exchange(one.ops, {})) {
        one.ops.assign(1, op);
        program.add(op.kind == Kind::Recv ? t_.validate.receive : t_.validate.body, one, kNoFrame);
      }
    }
  }

  // The passes of one micro-batch, as data demands.
  StageTable one_of_each() const {
    StageTable passes;
    const auto chunks = static_cast<std::int32_t>(stage_.chunks.size());
    for (std::int32_t v = 0; v < chunks; ++v) passes.push_back({PassKind::Forward, v, 0});
    for (std::int32_t v = chunks; v-- > 0;) {
      passes.push_back({PassKind::Backward, v, 0});
      if (split()) passes.push_back({PassKind::WeightGrad, v, 0});
    }
    return passes;
  }
  bool split() const { return !stage_.chunks[0].weight_grad.empty(); }

  void add(OneMicroBatch& program, const Pass& pass, bool last) {
    const auto v = static_cast<std::size_t>(pass.chunk);
    PassTemplate& t = (last ? t_.last : t_.any)[static_cast<std::size_t>(pass.kind)][v];
    const Chunk& chunk = stage_.chunks[v];
    switch (pass.kind) {
      case PassKind::Forward: forward(program, v, t); break;
      case PassKind::Backward:
        receive(program, t, chunk.from_next, "receive_gradients", v, chunk.output_grad);
        segments(program, v, t, chunk.backward, last && !split());
        send(program, t, chunk.to_previous, "send_gradients", v, chunk.input_grad);
        break;
      case PassKind::WeightGrad: segments(program, v, t, chunk.weight_grad, last); break;
    }
  }

  void forward(OneMicroBatch& program, std::size_t v, PassTemplate& t) {
    const Chunk& chunk = stage_.chunks[v];
    receive(program, t, chunk.from_previous, "receive_activations", v, chunk.input);
    for (const Segment& s : chunk.forward) program.add(t.body, s, 0);
    send(program, t, chunk.to_next, "send_activations", v, chunk.output);
  }

  // `reduces`: each is followed by the reduction of the buckets that it completes.
  void segments(OneMicroBatch& program, std::size_t v, PassTemplate& t,
                const std::vector<Segment>& list, bool reduces) {
    for (std::size_t s = 0; s < list.size(); ++s) {
      program.add(t.body, list[s], 0);
      if (!reduces) continue;
      for (const Reduction& r : stage_.reductions) {
        if (static_cast<std::size_t>(r.chunk) != v || static_cast<std::size_t>(r.segment) != s)
          continue;
        program.add(t.body, r.operations, kNoFrame);
      }
    }
  }

  void receive(OneMicroBatch& program, PassTemplate& t, const Channel& from, const char* what,
               std::size_t chunk, const View& view) {
    if (!from.peer.valid()) return;
    program.add(t.receive, message(Kind::Recv, from.stream, from.peer, what, chunk, view));
  }
  void send(OneMicroBatch& program, PassTemplate& t, const Channel& to, const char* what,
            std::size_t chunk, const View& view) {
    if (!to.peer.valid()) return;
    program.add(t.send, message(Kind::Send, to.stream, to.peer, what, chunk, view));
  }

  Instruction message(Kind kind, std::uint8_t stream, SlotId peer, const char* what,
                      std::size_t chunk, const View& view) {
    const bool send = kind == Kind::Send;
    Call call{.op = {.kind = send ? OpKind::SendTo : OpKind::RecvFrom,
                     .dtype = view.dtype,
                     .out = view.dtype,
                     .slot = peer,
                     .dims = {view.elements()}},
              .reads = {},
              .writes = {}};
    (send ? call.reads : call.writes).push_back(view);
    const NameId name = builder_.name({.phase = Phase::Pipeline,
                                       .layer = kBoundary,
                                       .op = what,
                                       .occurrence = static_cast<std::int32_t>(chunk)});
    return {.kind = kind,
            .stream = stream,
            .call = builder_.call(std::move(call)).value,
            .name = name.value,
            .event = 0};
  }

  PlanBuilder& builder_;
  const Layout& layout_;
  std::int32_t micro_batches_;
  const StageSegments& stage_;
  const StageTable& table_;
  StageTemplates t_;
};

}  // namespace

std::int32_t last_micro_batch(const Layout& layout, std::int32_t local,
                              std::int32_t micro_batches) {
  const bool down = placement(layout.schedule) == Placement::TwoWay && local == 0;
  return (down ? micro_batches / 2 : micro_batches) - 1;
}

StageTemplates stage_templates(PlanBuilder& builder, const Lowered& lowered, std::int32_t stage,
                               const StageTable& table) {
  return StageAssembly(builder, lowered, stage, table).run();
}

}  // namespace gputwin
