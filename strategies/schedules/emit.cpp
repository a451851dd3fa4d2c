#include "strategies/schedules/emit.h"

#include <algorithm>

#include "sim/core/check.h"

namespace gputwin {
namespace {

// What a pass sends: activations to the next chunk, or gradients to the previous one.
struct Message {
  std::int32_t to_chunk = 0, micro_batch = 0;
  bool gradient = false;
  bool operator==(const Message&) const = default;
};

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// Appends `piece` with its frame and the numbers of its events filled in.
void stamp(std::vector<Instruction>& body, const std::vector<Instruction>& piece,
           std::uint32_t frame, std::uint32_t first_event) {
  const std::size_t first = body.size();
  body.insert(body.end(), piece.begin(), piece.end());
  for (auto i = body.begin() + static_cast<std::ptrdiff_t>(first); i != body.end(); ++i) {
    const std::uint32_t framed = i->event == kNoFrame ? 0 : frame;  // templates have frame 0
    i->event += i->kind >= Kind::Record ? first_event : framed;
  }
}

class Emitter {
 public:
  Emitter(Templates templates, const std::vector<StageTable>& tables)
      : t_(std::move(templates)),
        tables_(tables),
        stages_(t_.layout.pp),
        mixed_(stages_ == 2 && t_.layout.vpp > 1) {}

  Plan run() {
    order_messages();
    for (std::int32_t s = 0; s < stages_; ++s) emit_stage(s);
    return std::move(t_.plan);
  }

 private:
  Message sent_by(std::int32_t stage, const Pass& pass) const {
    const std::int32_t c = pass.chunk * stages_ + stage;
    return {pass.backward ? c - 1 : c + 1, pass.micro_batch, pass.backward};
  }
  bool exists(const Message& m) const { return m.to_chunk >= 0 && m.to_chunk < t_.layout.chunks(); }
  const PassTemplate& pass_of(std::int32_t stage, std::int32_t chunk, const Message& m) const {
    const StageTemplates& t = t_.stages[at(stage)];
    const bool last = m.micro_batch == t_.micro_batches - 1;
    const auto& list =
        m.gradient ? (last ? t.last_backward : t.backward) : (last ? t.last_forward : t.forward);
    return list[at(chunk)];
  }

  // Sequence of messages from each stage to its neighbours, in the order in which the sender issues
  // them.
  void order_messages() {
    to_next_.resize(at(stages_));
    to_previous_.resize(at(stages_));
    for (std::int32_t s = 0; s < stages_; ++s) {
      for (const Pass& pass : tables_[at(s)]) {
        const Message m = sent_by(s, pass);
        if (exists(m)) (m.gradient && !mixed_ ? to_previous_ : to_next_)[at(s)].push_back(m);
      }
    }
  }

  // Issues the receives from the sender of `wanted` up to and including it.
  void receive(std::vector<Instruction>& body, std::int32_t stage, const Message& wanted,
               std::size_t& issued) {
    const std::int32_t step = wanted.gradient && !mixed_ ? 1 : stages_ - 1;
    const std::int32_t sender = (stage + step) % stages_;
    const auto& sequence = (wanted.gradient && !mixed_ ? to_previous_ : to_next_)[at(sender)];
    if (mixed_) {
      const auto end = sequence.begin() + static_cast<std::ptrdiff_t>(issued);
      if (std::find(sequence.begin(), end, wanted) != end) return;
    }
    while (true) {
      GPUTWIN_CHECK(issued < sequence.size(), "every message that a pass needs is sent");
      const Message& m = sequence[issued++];
      const PassTemplate& t = pass_of(stage, m.to_chunk / stages_, m);
      stamp_frame(body, t.receive, stage, m.micro_batch);
      if (m == wanted) return;
    }
  }

  void stamp_frame(std::vector<Instruction>& body, const std::vector<Instruction>& piece,
                   std::int32_t stage, std::int32_t micro_batch) const {
    const auto frame = static_cast<std::uint32_t>(micro_batch);
    stamp(body, piece, frame, frame * t_.stages[at(stage)].events);
  }

  void emit_stage(std::int32_t s) {
    const StageTemplates& t = t_.stages[at(s)];
    Program& program = t_.plan.programs[at(s)];
    std::vector<Instruction> body;
    body.reserve(size_of(t));
    const std::int32_t last = t_.micro_batches - 1;
    received_ = {};
    program.events = static_cast<std::uint32_t>(last) * t.events + t.last_events;
    stamp_frame(body, t.begin, s, last);
    const StageTable& table = tables_[at(s)];
    for (std::size_t k = 0, unsent = 0; k < table.size(); ++k) {
      receive_for(body, s, table[k]);
      stamp_frame(body, template_of(s, table[k]).body, s, table[k].micro_batch);
      if (!t_.blocking_messages) {
        stamp_frame(body, template_of(s, table[k]).send, s, table[k].micro_batch);
      } else if (!in_one_exchange(table, k)) {
        exchange(body, s, unsent, k, program.events);
        unsent = k + 1;
      }
    }
    stamp_frame(body, t.finish, s, last);
    program.body = std::move(body);
    if (t_.blocking_messages) ++program.events;
    program.buffers = t.buffers;
  }

  const PassTemplate& template_of(std::int32_t stage, const Pass& pass) const {
    return pass_of(stage, pass.chunk,
                   {pass.chunk * stages_ + stage, pass.micro_batch, pass.backward});
  }

  // Issues what must arrive before `pass`, unless it was issued before.
  void receive_for(std::vector<Instruction>& body, std::int32_t s, const Pass& pass) {
    const Message m{pass.chunk * stages_ + s, pass.micro_batch, pass.backward};
    if (template_of(s, pass).receive.empty()) return;
    const bool gradients = pass.backward && !mixed_;
    std::vector<Message>& got = gradients ? received_.gradients : received_.activations;
    if (std::find(got.begin(), got.end(), m) != got.end()) {
      std::erase(got, m);
      return;
    }
    receive(body, s, m, gradients ? received_.gradients_issued : received_.activations_issued);
  }

  // True if the messages of passes k and k + 1, a forward and a backward, are exchanged together.
  // With one group of micro-batches all forwards warm up, and none is paired: the first backward
  // needs what the last forward sends.
  bool in_one_exchange(const StageTable& table, std::size_t k) const {
    return t_.layout.vpp > 1 && t_.micro_batches > stages_ && k + 1 < table.size() &&
           !table[k].backward && table[k + 1].backward;
  }

  // Sends of the passes [first, last], receives for the passes up to the next exchange; the host
  // waits.
  void exchange(std::vector<Instruction>& body, std::int32_t s, std::size_t first, std::size_t last,
                std::uint32_t event) {
    const StageTable& table = tables_[at(s)];
    const std::size_t begin = body.size();
    const std::uint8_t compute = t_.stages[at(s)].compute_stream;
    for (std::size_t k = first; k <= last; ++k) {
      const std::vector<Instruction>& send = template_of(s, table[k]).send;
      if (send.empty()) continue;
      const std::uint8_t stream = communication_stream(send);
      body.push_back({.kind = Kind::Record, .stream = compute, .event = event});
      body.push_back({.kind = Kind::Wait, .stream = stream, .event = event});
      stamp_frame(body, send, s, table[k].micro_batch);
    }
    for (std::size_t k = last + 1; k < table.size(); ++k) {
      const std::size_t before = body.size();
      receive_for(body, s, table[k]);
      if (body.size() > before) {
        auto& got = table[k].backward && !mixed_ ? received_.gradients : received_.activations;
        got.push_back({table[k].chunk * stages_ + s, table[k].micro_batch, table[k].backward});
      }
      if (!in_one_exchange(table, k)) break;
    }
    std::vector<std::uint8_t> streams;
    for (std::size_t i = begin; i < body.size(); ++i) {
      const bool message = body[i].kind == Kind::Send || body[i].kind == Kind::Recv;
      if (!message) continue;
      if (std::find(streams.begin(), streams.end(), body[i].stream) == streams.end()) {
        streams.push_back(body[i].stream);
      }
    }
    for (const std::uint8_t stream : streams) {
      // The compute stream waits too, so that its idle time is the message's and not the host's.
      body.push_back({.kind = Kind::Record, .stream = stream, .event = event});
      body.push_back({.kind = Kind::Wait, .stream = compute, .event = event});
      body.push_back({.kind = Kind::HostWait, .event = event});
    }
  }

  static std::uint8_t communication_stream(const std::vector<Instruction>& send) {
    const auto message = std::find_if(send.begin(), send.end(),
                                      [](const Instruction& i) { return i.kind == Kind::Send; });
    return message->stream;
  }

  std::size_t size_of(const StageTemplates& t) const {
    std::size_t any = 0, last = t.begin.size() + t.finish.size();
    for (std::size_t v = 0; v < t.forward.size(); ++v) {
      for (const PassTemplate* p : {&t.forward[v], &t.backward[v]}) {
        any += p->receive.size() + p->body.size() + p->send.size();
      }
      for (const PassTemplate* p : {&t.last_forward[v], &t.last_backward[v]}) {
        last += p->receive.size() + p->body.size() + p->send.size();
      }
    }
    return any * at(t_.micro_batches - 1) + last;
  }

  Templates t_;
  const std::vector<StageTable>& tables_;
  std::int32_t stages_;
  bool mixed_;  // one channel each way carries activations and gradients
  std::vector<std::vector<Message>> to_next_,
      to_previous_;  // by sending stage; mixed: all in to_next_
  // Of the stage being emitted: how far each sender's sequence is received, and what was received
  // ahead of its pass.
  struct Received {
    std::size_t activations_issued = 0, gradients_issued = 0;
    std::vector<Message> activations, gradients;
  };
  Received received_;
};

}  // namespace

Templates derive_templates(Lowered lowered) {
  PlanBuilder builder(std::move(lowered.plan));
  Templates t{.plan = {},
              .layout = lowered.layout,
              .blocking_messages = lowered.blocking_messages,
              .micro_batches = lowered.micro_batches,
              .stages = {}};
  for (std::int32_t s = 0; s < t.layout.pp; ++s) {
    t.stages.push_back(stage_templates(builder, lowered, s));
  }
  t.plan = std::move(builder).take();
  return t;
}

Plan emit(Templates templates, const std::vector<StageTable>& tables) {
  return Emitter(std::move(templates), tables).run();
}

}  // namespace gputwin
