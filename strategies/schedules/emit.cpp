#include "strategies/schedules/emit.h"

#include <algorithm>

#include "sim/core/check.h"
#include "sim/core/plan_builder.h"

namespace gputwin {
namespace {

// One end of a message between chunks, as instructions without frame.
struct MessageEnds {
  bool exists = false;
  Instruction send, receive;
  std::int32_t from_stage = 0, to_stage = 0;
};

// The instructions of one pass without frame.
struct PassTemplate {
  std::vector<Instruction> body;
  std::vector<std::size_t> segment_end;  // instructions up to and including segment i
};

struct Message {
  std::int32_t to_chunk = 0, micro_batch = 0;
  bool gradient = false;
  bool operator==(const Message&) const = default;
};

class Emitter {
 public:
  Emitter(Lowered lowered, const std::vector<StageTable>& tables)
      : lowered_(std::move(lowered)),
        tables_(tables),
        builder_(std::move(lowered_.plan)),
        stages_(lowered_.layout.pp) {}

  Plan run() {
    make_templates();
    order_messages();
    for (std::int32_t s = 0; s < stages_; ++s) emit_stage(s);
    return std::move(builder_).take();
  }

 private:
  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }
  Chunk& chunk(std::int32_t index) {
    return lowered_.stages[at(index % stages_)].chunks[at(index / stages_)];
  }

  static PassTemplate pass_template(const std::vector<Segment>& segments) {
    PassTemplate t;
    for (const Segment& s : segments) {
      append(t.body, s);
      t.segment_end.push_back(t.body.size());
    }
    return t;
  }
  static void append(std::vector<Instruction>& body, const Segment& segment) {
    for (const SegmentOp& op : segment.ops) {
      body.push_back({.kind = op.kind, .stream = op.stream, .flags = op.flags,
                      .call = op.call.value, .name = op.name.value});
    }
  }

  // Message from one chunk to the next (activations) or to the previous (gradients).
  MessageEnds message(std::int32_t from, std::int32_t to, bool gradient) {
    MessageEnds m{.exists = true, .from_stage = from % stages_, .to_stage = to % stages_};
    const Chunk &source = chunk(from), &target = chunk(to);
    const StageSegments& sender = lowered_.stages[at(m.from_stage)];
    const StageSegments& receiver = lowered_.stages[at(m.to_stage)];
    const View out = gradient ? source.input_grad : source.output;
    const View in = gradient ? target.output_grad : target.input;
    GPUTWIN_CHECK(out.elements() == in.elements(), "a message fits its receiver");
    const std::string what = gradient ? "gradients" : "activations";
    const auto instruction = [&](Kind kind, std::uint8_t stream, OpKind op, SlotId peer,
                                 std::int32_t owner, const View& view) {
      Call call{.op = {.kind = op, .dtype = view.dtype, .out = view.dtype, .slot = peer,
                       .dims = {view.elements()}},
                .reads = {}, .writes = {}};
      (kind == Kind::Send ? call.reads : call.writes) = {view};
      const NameId name =
          builder_.name({.phase = Phase::Pipeline, .layer = kBoundary,
                         .op = (kind == Kind::Send ? "send_" : "receive_") + what,
                         .occurrence = owner / stages_});
      return Instruction{.kind = kind, .stream = stream, .call = builder_.call(std::move(call)).value,
                         .name = name.value};
    };
    m.send = instruction(Kind::Send, gradient ? sender.gradient_send_stream : sender.send_stream,
                         OpKind::SendTo, gradient ? source.to_previous : source.to_next, from, out);
    m.receive =
        instruction(Kind::Recv, gradient ? receiver.gradient_receive_stream : receiver.receive_stream,
                    OpKind::RecvFrom, gradient ? target.from_next : target.from_previous, to, in);
    return m;
  }

  void make_templates() {
    const std::int32_t n = lowered_.layout.chunks();
    activations_.resize(at(n));
    gradients_.resize(at(n));
    for (std::int32_t c = 0; c < n; ++c) {
      forward_.push_back(pass_template(chunk(c).forward));
      backward_.push_back(pass_template(chunk(c).backward));
      if (c > 0) activations_[at(c)] = message(c - 1, c, false);
      if (c + 1 < n) gradients_[at(c)] = message(c + 1, c, true);
    }
  }

  // What a pass of `stage` sends; to_chunk is -1 if nothing.
  Message sent_by(std::int32_t stage, const Pass& pass) const {
    const std::int32_t c = pass.chunk * stages_ + stage;
    const std::int32_t to = pass.backward ? c - 1 : c + 1;
    const bool inside = to >= 0 && to < lowered_.layout.chunks();
    return {inside ? to : -1, pass.micro_batch, pass.backward};
  }

  void order_messages() {
    channels_.assign(at(stages_ * stages_), {});
    received_.assign(at(stages_ * stages_), 0);
    for (std::int32_t s = 0; s < stages_; ++s) {
      for (const Pass& pass : tables_[at(s)]) {
        const Message m = sent_by(s, pass);
        if (m.to_chunk >= 0) channels_[at(s * stages_ + m.to_chunk % stages_)].push_back(m);
      }
    }
  }

  const MessageEnds& ends(const Message& m) const {
    return m.gradient ? gradients_[at(m.to_chunk)] : activations_[at(m.to_chunk)];
  }

  static void stamp(std::vector<Instruction>& body, Instruction i, std::int32_t frame) {
    i.event = static_cast<std::uint32_t>(frame);
    body.push_back(i);
  }

  // Issues the receives of a channel up to and including `wanted`.
  void receive(std::vector<Instruction>& body, const Message& wanted) {
    const MessageEnds& e = ends(wanted);
    if (!e.exists) return;
    const std::size_t channel = at(e.from_stage * stages_ + e.to_stage);
    const std::vector<Message>& sequence = channels_[channel];
    if (is_received(wanted, channel)) return;
    while (true) {
      GPUTWIN_CHECK(received_[channel] < sequence.size(), "every message needed is sent");
      const Message& m = sequence[received_[channel]++];
      stamp(body, ends(m).receive, m.micro_batch);
      if (m == wanted) return;
    }
  }
  bool is_received(const Message& wanted, std::size_t channel) const {
    // Only the mixed channel of two stages runs ahead, and never by more than a few messages.
    const auto begin = channels_[channel].begin();
    const auto end = begin + static_cast<std::ptrdiff_t>(received_[channel]);
    const bool mixed = stages_ == 2 && lowered_.layout.vpp > 1;
    return mixed && std::find(begin, end, wanted) != end;
  }

  void emit_stage(std::int32_t s) {
    const StageSegments& stage = lowered_.stages[at(s)];
    std::vector<Instruction> body;
    body.reserve(size_of(s));
    for (const Segment& segment : stage.begin) append(body, segment);
    for (const Pass& pass : tables_[at(s)]) {
      const std::int32_t c = pass.chunk * stages_ + s;
      receive(body, {c, pass.micro_batch, pass.backward});
      const PassTemplate& t = pass.backward ? backward_[at(c)] : forward_[at(c)];
      const bool last = pass.backward && pass.micro_batch == lowered_.micro_batches - 1;
      if (last && !stage.reductions.empty()) {
        emit_last_backward(body, stage, pass, t);
      } else {
        stamp_all(body, t.body, 0, t.body.size(), pass.micro_batch);
      }
      const Message m = sent_by(s, pass);
      if (m.to_chunk >= 0) stamp(body, ends(m).send, m.micro_batch);
    }
    for (const Segment& segment : stage.finish) append(body, segment);
    builder_.plan().programs[stage.program.value].body = std::move(body);
  }

  static void stamp_all(std::vector<Instruction>& body, const std::vector<Instruction>& from,
                        std::size_t begin, std::size_t end, std::int32_t frame) {
    const std::size_t first = body.size();
    body.insert(body.end(), from.begin() + static_cast<std::ptrdiff_t>(begin),
                from.begin() + static_cast<std::ptrdiff_t>(end));
    for (std::size_t i = first; i < body.size(); ++i) body[i].event = static_cast<std::uint32_t>(frame);
  }

  static void emit_last_backward(std::vector<Instruction>& body, const StageSegments& stage,
                                 const Pass& pass, const PassTemplate& t) {
    std::size_t begin = 0;
    for (std::size_t segment = 0; segment < t.segment_end.size(); ++segment) {
      stamp_all(body, t.body, begin, t.segment_end[segment], pass.micro_batch);
      begin = t.segment_end[segment];
      for (const Reduction& r : stage.reductions) {
        if (r.chunk == pass.chunk && at(r.segment) == segment) append(body, r.operations);
      }
    }
  }

  std::size_t size_of(std::int32_t s) const {
    std::size_t n = 1024;
    for (const Pass& pass : tables_[at(s)]) {
      const std::size_t c = at(pass.chunk * stages_ + s);
      n += 2 + (pass.backward ? backward_[c] : forward_[c]).body.size();
    }
    return n;
  }

  static constexpr std::int32_t kBoundary = -1;

  Lowered lowered_;
  const std::vector<StageTable>& tables_;
  PlanBuilder builder_;
  std::int32_t stages_;
  std::vector<PassTemplate> forward_, backward_;       // by chunk
  std::vector<MessageEnds> activations_, gradients_;   // by receiving chunk
  std::vector<std::vector<Message>> channels_;         // by from x stages + to, in the sender's order
  std::vector<std::size_t> received_;                  // by channel: messages the receiver has issued
};

}  // namespace

Plan emit(Lowered lowered, const std::vector<StageTable>& tables) {
  return Emitter(std::move(lowered), tables).run();
}

}  // namespace gputwin
