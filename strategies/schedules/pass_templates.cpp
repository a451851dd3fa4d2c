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
  StageAssembly(PlanBuilder& builder, const Lowered& lowered, std::int32_t stage)
      : builder_(builder), stage_(lowered.stages[static_cast<std::size_t>(stage)]) {}

  StageTemplates run() {
    StageTemplates t;
    const std::size_t chunks = stage_.chunks.size();
    for (auto* list : {&t.forward, &t.backward, &t.last_forward, &t.last_backward}) {
      list->resize(chunks);
    }
    OneMicroBatch any(builder_, stage_.program), last(builder_, stage_.program);
    for (const Segment& s : stage_.begin) last.add(t.begin, s, kNoFrame);
    for (std::size_t v = 0; v < chunks; ++v) {
      forward(any, v, t.forward[v]);
      forward(last, v, t.last_forward[v]);
    }
    for (std::size_t v = chunks; v-- > 0;) {
      backward(any, v, t.backward[v], false);
      backward(last, v, t.last_backward[v], true);
    }
    for (const Segment& s : stage_.finish) last.add(t.finish, s, kNoFrame);
    t.events = any.distribute();
    t.last_events = last.distribute();
    t.buffers = last.take_buffers();
    t.compute_stream = stage_.compute_stream;
    return t;
  }

 private:
  void forward(OneMicroBatch& program, std::size_t v, PassTemplate& t) {
    const Chunk& chunk = stage_.chunks[v];
    if (chunk.input.buffer.valid()) {
      program.add(t.receive, message(Kind::Recv, stage_.receive_stream, chunk.from_previous,
                                     "receive_activations", v, chunk.input));
    }
    for (const Segment& s : chunk.forward) program.add(t.body, s, 0);
    if (chunk.output.buffer.valid()) {
      program.add(t.send, message(Kind::Send, stage_.send_stream, chunk.to_next, "send_activations",
                                  v, chunk.output));
    }
  }

  void backward(OneMicroBatch& program, std::size_t v, PassTemplate& t, bool last) {
    const Chunk& chunk = stage_.chunks[v];
    if (chunk.output_grad.buffer.valid()) {
      program.add(t.receive, message(Kind::Recv, stage_.gradient_receive_stream, chunk.from_next,
                                     "receive_gradients", v, chunk.output_grad));
    }
    for (std::size_t s = 0; s < chunk.backward.size(); ++s) {
      program.add(t.body, chunk.backward[s], 0);
      if (!last) continue;
      for (const Reduction& r : stage_.reductions) {
        if (static_cast<std::size_t>(r.chunk) != v || static_cast<std::size_t>(r.segment) != s)
          continue;
        program.add(t.body, r.operations, kNoFrame);
      }
    }
    if (chunk.input_grad.buffer.valid()) {
      program.add(t.send, message(Kind::Send, stage_.gradient_send_stream, chunk.to_previous,
                                  "send_gradients", v, chunk.input_grad));
    }
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
  const StageSegments& stage_;
};

}  // namespace

StageTemplates stage_templates(PlanBuilder& builder, const Lowered& lowered, std::int32_t stage) {
  return StageAssembly(builder, lowered, stage).run();
}

}  // namespace gputwin
