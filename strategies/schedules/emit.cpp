#include "strategies/schedules/emit.h"

#include <algorithm>
#include <utility>

#include "sim/core/check.h"

namespace gputwin {
namespace {

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

// Stands for the message of post-validation where passes stand for the messages they need.
constexpr Pass kValidation{PassKind::WeightGrad, 0, 0};

class Emitter {
 public:
  Emitter(Templates templates, const std::vector<StageTable>& tables)
      : t_(std::move(templates)), tables_(tables), stages_(t_.layout.pp) {}

  Plan run() {
    order_messages();
    for (std::int32_t s = 0; s < stages_; ++s) {
      layout().schedule == Schedule::PipedreamAsync ? emit_endless_stage(s) : emit_stage(s);
    }
    return std::move(t_.plan);
  }

 private:
  // Where a message is in the sequence of those from one stage to another.
  struct Place {
    std::int32_t sender = -1;
    std::size_t index = 0;
  };

  const Layout& layout() const { return t_.layout; }
  bool is_last(const Pass& pass) const {
    return pass.micro_batch == last_micro_batch(layout(), pass.chunk, t_.micro_batches);
  }
  const PassTemplate& template_of(std::int32_t stage, const Pass& pass) const {
    return t_.stages[at(stage)].of(pass, is_last(pass));
  }
  std::size_t key(const Pass& pass) const {
    const auto kinds = static_cast<std::size_t>(pass.kind);
    return (kinds * at(layout().local_chunks()) + at(pass.chunk)) * at(t_.micro_batches) +
           at(pass.micro_batch);
  }

  // Sequence of messages on each ordered pair of stages, in the order in which the sender issues
  // them.
  void order_messages() {
    sequences_.resize(at(stages_ * stages_));
    places_.assign(at(stages_), std::vector<Place>(kPassKinds * at(layout().local_chunks()) *
                                                   at(t_.micro_batches)));
    for (std::int32_t s = 0; s < stages_; ++s) {
      bool validated = t_.stages[at(s)].validate.body.empty() || s == 0;
      for (const Pass& pass : tables_[at(s)]) {
        if (pass.kind == PassKind::Backward && !std::exchange(validated, true)) {
          add_message(s, s - 1, kValidation);
        }
        if (template_of(s, pass).send.empty()) continue;
        const bool two_ways = placement(layout().schedule) == Placement::TwoWay;
        const std::int32_t way = two_ways ? pass.chunk : 0;
        const std::int32_t to =
            layout().chunk_at(s, pass.chunk) + (pass.kind == PassKind::Forward ? 1 : -1);
        const std::int32_t receiver = layout().stage_of(to, way);
        add_message(s, receiver, {pass.kind, layout().local_of(to, way), pass.micro_batch});
      }
    }
  }
  void add_message(std::int32_t sender, std::int32_t receiver, const Pass& needs) {
    std::vector<Pass>& sequence = sequence_of(sender, receiver);
    places_[at(receiver)][key(needs)] = {sender, sequence.size()};
    sequence.push_back(needs);
  }
  std::vector<Pass>& sequence_of(std::int32_t sender, std::int32_t receiver) {
    return sequences_[at(sender * stages_ + receiver)];
  }

  void stamp_frame(std::vector<Instruction>& body, const std::vector<Instruction>& piece,
                   std::int32_t stage, std::int32_t micro_batch) const {
    const auto frame = static_cast<std::uint32_t>(micro_batch);
    stamp(body, piece, frame, frame * t_.stages[at(stage)].events);
  }

  // Tasks of a pass; those of the last micro-batch of a chunk have the last micro-batch's events.
  void stamp_pass(std::vector<Instruction>& body, const std::vector<Instruction>& piece,
                  std::int32_t stage, const Pass& pass) const {
    const auto frame = static_cast<std::uint32_t>(pass.micro_batch);
    const auto block = is_last(pass) ? static_cast<std::uint32_t>(t_.micro_batches - 1) : frame;
    stamp(body, piece, frame, block * t_.stages[at(stage)].events);
  }

  void emit_stage(std::int32_t s) {
    const StageTemplates& t = t_.stages[at(s)];
    Program& program = t_.plan.programs[at(s)];
    std::vector<Instruction> body;
    body.reserve(size_of(t));
    const std::int32_t last = t_.micro_batches - 1;
    issued_.assign(at(stages_), 0);
    program.events = static_cast<std::uint32_t>(last) * t.events + t.last_events;
    stamp_frame(body, t.begin, s, last);
    const StageTable& table = tables_[at(s)];
    bool validated = false;
    for (std::size_t k = 0, unsent = 0; k < table.size(); ++k) {
      if (table[k].kind == PassKind::Backward && !std::exchange(validated, true)) {
        receive_for(body, s, kValidation);
        stamp_frame(body, t.validate.body, s, last);
      }
      receive_for(body, s, table[k]);
      stamp_pass(body, template_of(s, table[k]).body, s, table[k]);
      if (table[k].joined) continue;
      if (!t_.blocking_messages) {
        for (; unsent <= k; ++unsent) {
          stamp_pass(body, template_of(s, table[unsent]).send, s, table[unsent]);
        }
      } else if (!in_one_exchange(table, k)) {
        exchange(body, s, unsent, k, program.events);
        unsent = k + 1;
      }
    }
    stamp_frame(body, t.finish, s, last);
    program.body = std::move(body);
    if (t_.blocking_messages) ++program.events;
    program.buffers = t.buffers;
    if (derives_bodies(layout().schedule)) {
      synchronise(t_.plan, program);
      place_memory(t_.plan, program);
    }
    if (validates_later(layout().schedule) && stages_ > 1) cross_bodies(program, t.compute_stream);
  }

  // PipeDream's order never drains: the prologue warms up, and each pair of the body takes one
  // micro-batch backward and another, maybe of the next body, forward. An activation is received
  // one pair before it is needed, so that prologue and body each send what they receive.
  void emit_endless_stage(std::int32_t s) {
    const StageTemplates& t = t_.stages[at(s)];
    Program& program = t_.plan.programs[at(s)];
    const std::int32_t m = t_.micro_batches, ahead = stages_ - 1 - s;
    const auto forward = [m](std::int32_t i) { return Pass{PassKind::Forward, 0, i % m}; };
    const auto run = [&](std::vector<Instruction>& out, const Pass& pass) {
      stamp_pass(out, template_of(s, pass).body, s, pass);
      stamp_pass(out, template_of(s, pass).send, s, pass);
    };
    stamp_received(program.prologue, s, forward(0));
    for (std::int32_t i = 0; i < ahead; ++i) {
      run(program.prologue, forward(i));
      stamp_received(program.prologue, s, forward(i + 1));
    }
    std::vector<Instruction> body;
    body.reserve(size_of(t));
    stamp_frame(body, t.begin, s, m - 1);
    for (std::int32_t i = 0; i < m; ++i) {
      const Pass backward{PassKind::Backward, 0, i};
      run(body, forward(ahead + i));
      stamp_received(body, s, forward(ahead + i + 1));
      stamp_received(body, s, backward);
      run(body, backward);
    }
    stamp_frame(body, t.finish, s, m - 1);
    program.body = std::move(body);
    synchronise_endless(t_.plan, program);
    place_memory_endless(t_.plan, program);
    keep_older_weights(program);
  }

  // Micro-batches in flight when weights change go backward with those they went forward with: a
  // second version of the weights (double buffering; Narayanan et al. 2021, section 3.1).
  void keep_older_weights(Program& program) {
    Buffer older{.name = program.name + ".older_weights", .memory = MemoryClass::Weights};
    older.persistent = true;
    for (const BufferId id : program.buffers) {
      const Buffer& b = t_.plan.buffers[id.value];
      if (!b.persistent || b.in_place || b.memory != MemoryClass::Weights) continue;
      older.bytes += b.bytes;
      older.dtype = b.dtype;
    }
    program.buffers.push_back(BufferId(static_cast<std::uint32_t>(t_.plan.buffers.size())));
    t_.plan.buffers.push_back(std::move(older));
  }

  // A body starts on each stream when the compute stream has ended the one before, which ends last.
  static void cross_bodies(Program& program, std::uint8_t compute) {
    const std::uint32_t ended = program.events++;
    std::vector<Instruction> start;
    program.prologue.push_back({.kind = Kind::Record, .stream = compute, .event = ended});
    for (std::uint8_t s = 0; s < program.streams.size(); ++s) {
      if (s == compute) continue;
      start.push_back({.kind = Kind::Wait, .stream = s, .flags = kPreviousBody, .event = ended});
      const std::uint32_t event = program.events++;
      program.body.push_back({.kind = Kind::Record, .stream = s, .event = event});
      program.body.push_back({.kind = Kind::Wait, .stream = compute, .event = event});
    }
    program.body.push_back({.kind = Kind::Record, .stream = compute, .event = ended});
    program.body.insert(program.body.begin(), start.begin(), start.end());
  }

  const PassTemplate& receive_of(std::int32_t s, const Pass& pass) const {
    return pass == kValidation ? t_.stages[at(s)].validate : template_of(s, pass);
  }
  void stamp_received(std::vector<Instruction>& body, std::int32_t s, const Pass& pass) const {
    const std::vector<Instruction>& receive = receive_of(s, pass).receive;
    if (pass == kValidation) return stamp_frame(body, receive, s, t_.micro_batches - 1);
    stamp_pass(body, receive, s, pass);
  }

  // Issues what must arrive before `pass`, after all that its sender sends before, unless it was
  // issued before.
  void receive_for(std::vector<Instruction>& body, std::int32_t s, const Pass& pass) {
    if (receive_of(s, pass).receive.empty()) return;
    const Place& place = places_[at(s)][key(pass)];
    GPUTWIN_CHECK(place.sender >= 0, "every message that a pass needs is sent");
    const std::vector<Pass>& sequence = sequence_of(place.sender, s);
    for (std::size_t& next = issued_[at(place.sender)]; next <= place.index; ++next) {
      stamp_received(body, s, sequence[next]);
    }
  }

  // True if the messages of passes k and k + 1, a forward and a backward, are exchanged together.
  // With one group of micro-batches all forwards warm up, and none is paired: the first backward
  // needs what the last forward sends.
  bool in_one_exchange(const StageTable& table, std::size_t k) const {
    return t_.layout.vpp > 1 && t_.micro_batches > stages_ && k + 1 < table.size() &&
           table[k].kind == PassKind::Forward && table[k + 1].kind == PassKind::Backward;
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
      const std::uint8_t stream = communication_stream(send, Kind::Send);
      body.push_back({.kind = Kind::Record, .stream = compute, .event = event});
      body.push_back({.kind = Kind::Wait, .stream = stream, .event = event});
      stamp_pass(body, send, s, table[k]);
    }
    for (std::size_t k = last + 1; k < table.size(); ++k) {
      receive_for(body, s, table[k]);
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

  static std::uint8_t communication_stream(const std::vector<Instruction>& piece, Kind kind) {
    const auto message = std::find_if(piece.begin(), piece.end(),
                                      [kind](const Instruction& i) { return i.kind == kind; });
    return message->stream;
  }

  std::size_t size_of(const StageTemplates& t) const {
    const auto size = [](const std::array<StageTemplates::ByChunk, kPassKinds>& by_kind) {
      std::size_t n = 0;
      for (const auto& list : by_kind) {
        for (const PassTemplate& p : list) n += p.receive.size() + p.body.size() + p.send.size();
      }
      return n;
    };
    return size(t.any) * at(t_.micro_batches - 1) + size(t.last) + t.begin.size() +
           t.validate.body.size() + t.finish.size();
  }

  Templates t_;
  const std::vector<StageTable>& tables_;
  std::int32_t stages_;
  std::vector<std::vector<Pass>> sequences_;  // by sender x stages + receiver
  std::vector<std::vector<Place>> places_;    // by receiving stage and pass
  std::vector<std::size_t> issued_;  // of the stage being emitted: receives issued, by sender
};

}  // namespace

Templates derive_templates(Lowered lowered, const std::vector<StageTable>& tables) {
  PlanBuilder builder(std::move(lowered.plan));
  Templates t{.plan = {},
              .layout = lowered.layout,
              .blocking_messages = lowered.blocking_messages,
              .micro_batches = lowered.micro_batches,
              .stages = {}};
  for (std::int32_t s = 0; s < t.layout.pp; ++s) {
    t.stages.push_back(stage_templates(builder, lowered, s, tables[at(s)]));
  }
  t.plan = std::move(builder).take();
  return t;
}

Plan emit(Templates templates, const std::vector<StageTable>& tables) {
  return Emitter(std::move(templates), tables).run();
}

}  // namespace gputwin
