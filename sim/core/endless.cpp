// Record/Wait and Alloc/Free of bodies that follow one another without a flush.
#include <algorithm>
#include <array>
#include <utility>

#include "sim/core/check.h"
#include "sim/core/frame_slots.h"
#include "sim/core/hazards.h"
#include "sim/core/plan_builder.h"

namespace gputwin {
namespace {

constexpr std::uint32_t kNone = FrameSlots::kNone;

Instruction derived(Kind kind, std::uint8_t stream, std::uint32_t event, bool previous = false) {
  const auto flags = static_cast<std::uint16_t>(kDerived | (previous ? kPreviousBody : 0));
  return {.kind = kind, .stream = stream, .flags = flags, .event = event};
}

/// A task of a body must wait for an earlier one, of this body or of the one before.
struct BodyWait {
  std::uint32_t later = 0, earlier = 0;
  bool previous = false;
  bool operator==(const BodyWait&) const = default;
};

/// What the views of bodies that repeat demand, in the order of the tasks that wait.
std::vector<BodyWait> waits_of_bodies(const Plan& plan, const Program& program) {
  constexpr std::uint32_t kCopies = 4;  // after the prologue; the last two must agree
  std::vector<Instruction> all = program.prologue;
  const auto first = static_cast<std::uint32_t>(all.size());
  const auto n = static_cast<std::uint32_t>(program.body.size());
  for (std::uint32_t c = 0; c < kCopies; ++c) {
    all.insert(all.end(), program.body.begin(), program.body.end());
  }
  HazardTracker tracker(plan, program, all);
  std::vector<BodyWait> last, waits;
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    const std::uint32_t begin = i < first ? 0 : i - (i - first) % n;
    if (i >= first && i == begin) last = std::exchange(waits, {});
    if (!is_task(all[i].kind)) continue;
    for (const std::uint32_t earlier : tracker.before(i)) {
      tracker.order(all[i].stream, earlier);
      if (i < first + n) continue;
      GPUTWIN_CHECK(earlier + n >= begin, "a body repeats what the one before touched");
      const bool previous = earlier < begin;
      waits.push_back({i - begin, earlier - (previous ? begin - n : begin), previous});
    }
    tracker.add(i);
  }
  GPUTWIN_CHECK(waits == last, "what bodies wait for repeats with them");
  return waits;
}

/// Every stream waits for all the others: what the first body waits for is over.
void join_streams(Program& program) {
  const auto streams = static_cast<std::uint8_t>(program.streams.size());
  for (std::uint8_t s = 1; s < streams; ++s) {
    program.prologue.push_back(derived(Kind::Record, s, program.events));
    program.prologue.push_back(derived(Kind::Wait, 0, program.events++));
  }
  program.prologue.push_back(derived(Kind::Record, 0, program.events));
  for (std::uint8_t s = 1; s < streams; ++s) {
    program.prologue.push_back(derived(Kind::Wait, s, program.events));
  }
  ++program.events;
}

/// Stays of the non-persistent (buffer, frame) of a program whose frames overlap bodies.
class EndlessStays {
 public:
  EndlessStays(const Plan& plan, const Program& program)
      : plan_(plan), program_(program), slots_(plan, program) {
    find_starts();
    stays_[0] = uses(program.prologue, [](std::uint32_t, std::uint32_t) { return true; });
    const auto fresh = [&](std::uint32_t frame, std::uint32_t i) {
      return frame < start_.size() && i >= start_[frame];
    };
    stays_[1] = uses(program.body, [&](std::uint32_t f, std::uint32_t i) { return !fresh(f, i); });
    stays_[2] = uses(program.body, fresh);
  }

  std::vector<Instruction> prologue() const {
    Edits edits(program_.prologue.size());
    for (std::uint32_t s = 0; s < slots_.size(); ++s) add(edits, s, stays_[0][s], !carried(s));
    return edited(program_.prologue, edits);
  }
  std::vector<Instruction> body() const {
    Edits edits(program_.body.size());
    for (std::uint32_t s = 0; s < slots_.size(); ++s) {
      if (carried(s)) {
        edits.frees[stays_[1][s].last].push_back(s);
      } else {
        add(edits, s, stays_[1][s], true);
      }
      add(edits, s, stays_[2][s], !carried(s));
    }
    return edited(program_.body, edits);
  }

 private:
  struct Stay {
    std::uint32_t first = kNone, last = kNone;
  };
  struct Edits {
    explicit Edits(std::size_t n) : allocs(n), frees(n) {}
    std::vector<std::vector<std::uint32_t>> allocs, frees;  // slots, by instruction
  };

  // The stay that a body begins with a frame goes on in the next body.
  bool carried(std::uint32_t slot) const {
    return stays_[1][slot].first != kNone && stays_[2][slot].first != kNone;
  }

  // A frame that the prologue begins is begun again in the body, by the same task.
  void find_starts() {
    start_.assign(program_.frames, kNone);
    std::vector<std::uint32_t> begun_by(program_.frames, kNone);
    for (const Instruction& i : program_.prologue) {
      if (!is_task(i.kind) || i.frame() >= program_.frames) continue;
      if (begun_by[i.frame()] == kNone) begun_by[i.frame()] = i.name;
    }
    for (std::uint32_t i = 0; i < program_.body.size(); ++i) {
      const Instruction& in = program_.body[i];
      if (!is_task(in.kind) || in.frame() >= program_.frames) continue;
      if (in.name == begun_by[in.frame()] && start_[in.frame()] == kNone) start_[in.frame()] = i;
    }
  }

  template <class Counts>
  std::vector<Stay> uses(const std::vector<Instruction>& list, Counts counts) const {
    std::vector<Stay> stays(slots_.size());
    for (std::uint32_t i = 0; i < list.size(); ++i) {
      if (!is_task(list[i].kind) || !counts(list[i].frame(), i)) continue;
      const Call& call = plan_.calls[list[i].call];
      for (const auto* views : {&call.reads, &call.writes}) {
        for (const View& v : *views) {
          const std::uint32_t slot = slots_.of(v.buffer, list[i].frame());
          if (slot == kNone) continue;
          if (stays[slot].first == kNone) stays[slot].first = i;
          stays[slot].last = i;
        }
      }
    }
    return stays;
  }

  static void add(Edits& edits, std::uint32_t slot, const Stay& stay, bool ends) {
    if (stay.first == kNone) return;
    edits.allocs[stay.first].push_back(slot);
    if (ends) edits.frees[stay.last].push_back(slot);
  }

  std::vector<Instruction> edited(const std::vector<Instruction>& list, const Edits& edits) const {
    std::vector<Instruction> out;
    for (std::size_t i = 0; i < list.size(); ++i) {
      for (const std::uint32_t s : edits.allocs[i])
        out.push_back(slots_.instruction(Kind::Alloc, s));
      out.push_back(list[i]);
      for (const std::uint32_t s : edits.frees[i]) out.push_back(slots_.instruction(Kind::Free, s));
    }
    return out;
  }

  const Plan& plan_;
  const Program& program_;
  FrameSlots slots_;
  std::vector<std::uint32_t> start_;        // by frame: where the body begins the next
  std::array<std::vector<Stay>, 3> stays_;  // prologue; body before and from start_
};

}  // namespace

void synchronise_endless(const Plan& plan, Program& program) {
  for (const auto* list : {&program.prologue, &program.body}) {
    GPUTWIN_CHECK(std::none_of(list->begin(), list->end(),
                               [](const Instruction& i) { return has_event(i.kind); }),
                  "endless bodies have derived events alone");
  }
  const std::vector<BodyWait> waits = waits_of_bodies(plan, program);
  Program once = program;
  once.body = std::move(program.prologue);
  once.prologue.clear();
  synchronise(plan, once);
  program.prologue = std::move(once.body);
  program.events = once.events;
  join_streams(program);

  std::vector<std::uint32_t> event_after(program.body.size(), kNone);
  for (const BodyWait& w : waits) {
    if (event_after[w.earlier] == kNone) event_after[w.earlier] = program.events++;
  }
  std::vector<char> awaited(program.events, 0);
  std::vector<Instruction> body;
  body.reserve(program.body.size() + 2 * waits.size());
  std::size_t w = 0;
  for (std::uint32_t i = 0; i < program.body.size(); ++i) {
    const std::uint8_t stream = program.body[i].stream;
    for (; w < waits.size() && waits[w].later == i; ++w) {
      const std::uint32_t event = event_after[waits[w].earlier];
      body.push_back(derived(Kind::Wait, stream, event, waits[w].previous));
      if (waits[w].previous && std::exchange(awaited[event], 1) == 0) {
        program.prologue.push_back(
            derived(Kind::Record, program.body[waits[w].earlier].stream, event));
      }
    }
    body.push_back(program.body[i]);
    if (event_after[i] != kNone) body.push_back(derived(Kind::Record, stream, event_after[i]));
  }
  program.body = std::move(body);
}

void place_memory_endless(const Plan& plan, Program& program) {
  program.buffers = used_buffers(plan, program);
  const EndlessStays stays(plan, program);
  std::vector<Instruction> prologue = stays.prologue(), body = stays.body();
  program.prologue = std::move(prologue);
  program.body = std::move(body);
}

}  // namespace gputwin
