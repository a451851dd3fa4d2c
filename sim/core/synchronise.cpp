// Derives Record/Wait from views, and Alloc/Free from first and last use.
#include <algorithm>

#include "sim/core/frame_slots.h"
#include "sim/core/hazards.h"
#include "sim/core/plan_builder.h"

namespace gputwin {
namespace {

constexpr std::uint32_t kNone = FrameSlots::kNone;

bool is_derived(const Instruction& i) {
  return (i.kind == Kind::Record || i.kind == Kind::Wait) && (i.flags & kDerived) != 0;
}

Instruction sync(Kind kind, std::uint8_t stream, std::uint32_t event) {
  return {.kind = kind, .stream = stream, .flags = kDerived, .event = event};
}

/// The waits that the views of `body` demand: pairs (instruction, must wait for), in instruction
/// order.
std::vector<std::pair<std::uint32_t, std::uint32_t>> needed_waits(const Plan& plan,
                                                                  const Program& program) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> waits;
  const std::vector<Instruction>& body = program.body;
  HazardTracker tracker(plan, program, body);
  for (std::uint32_t i = 0; i < body.size(); ++i) {
    switch (body[i].kind) {
      case Kind::Kernel:
      case Kind::Collective:
      case Kind::Send:
      case Kind::Recv:
      case Kind::Copy:
      case Kind::HostTask:
        for (const std::uint32_t earlier : tracker.before(i)) {
          waits.emplace_back(i, earlier);
          tracker.order(body[i].stream, earlier);
        }
        tracker.add(i);
        break;
      case Kind::Record: tracker.record(body[i]); break;
      case Kind::Wait: tracker.wait(body[i]); break;
      case Kind::HostWait: tracker.host_wait(body[i]); break;
      case Kind::Alloc:
      case Kind::Free: break;
    }
  }
  return waits;
}

/// First and last use of every non-persistent (buffer, frame) of a program.
class Lifetimes {
 public:
  Lifetimes(const Plan& plan, const Program& program) : program_(program), slots_(plan, program) {
    first_.assign(slots_.size(), kNone);
    last_.assign(slots_.size(), kNone);
    for (std::uint32_t i = 0; i < program.body.size(); ++i) {
      if (!is_task(program.body[i].kind)) continue;
      for (const View& v : plan.calls[program.body[i].call].reads) use(v.buffer, i);
      for (const View& v : plan.calls[program.body[i].call].writes) use(v.buffer, i);
    }
  }

  /// Body with Alloc before the first and Free after the last use.
  std::vector<Instruction> placed() const {
    const std::size_t n = program_.body.size();
    std::vector<std::uint32_t> alloc_count(n + 1, 0), free_count(n + 1, 0);
    for (std::size_t s = 0; s < first_.size(); ++s) {
      if (first_[s] == kNone) continue;
      ++alloc_count[first_[s] + 1];
      ++free_count[last_[s] + 1];
    }
    for (std::size_t i = 0; i < n; ++i) {
      alloc_count[i + 1] += alloc_count[i];
      free_count[i + 1] += free_count[i];
    }
    std::vector<std::uint32_t> allocs(alloc_count[n]), frees(free_count[n]);
    std::vector<std::uint32_t> a(alloc_count), f(free_count);
    for (std::uint32_t s = 0; s < first_.size(); ++s) {
      if (first_[s] == kNone) continue;
      allocs[a[first_[s]]++] = s;
      frees[f[last_[s]]++] = s;
    }
    std::vector<Instruction> body;
    body.reserve(n + allocs.size() + frees.size());
    for (std::size_t i = 0; i < n; ++i) {
      for (std::uint32_t k = alloc_count[i]; k < alloc_count[i + 1]; ++k) {
        body.push_back(slots_.instruction(Kind::Alloc, allocs[k]));
      }
      body.push_back(program_.body[i]);
      for (std::uint32_t k = free_count[i]; k < free_count[i + 1]; ++k) {
        body.push_back(slots_.instruction(Kind::Free, frees[k]));
      }
    }
    return body;
  }

 private:
  void use(BufferId b, std::uint32_t i) {
    const std::uint32_t slot = slots_.of(b, program_.body[i].frame());
    if (slot == kNone) return;
    if (first_[slot] == kNone) first_[slot] = i;
    last_[slot] = i;
  }

  const Program& program_;
  FrameSlots slots_;
  std::vector<std::uint32_t> first_, last_;  // by slot
};

}  // namespace

void synchronise(const Plan& plan, Program& program) {
  std::erase_if(program.body, is_derived);
  std::uint32_t explicit_events = 0;
  for (const auto* list : {&program.prologue, &program.body}) {
    for (const Instruction& i : *list) {
      if (has_event(i.kind)) explicit_events = std::max(explicit_events, i.event + 1);
    }
  }
  const auto waits = needed_waits(plan, program);
  std::vector<std::uint32_t> event_after(program.body.size(), kNone);
  program.events = explicit_events;
  for (const auto& [later, earlier] : waits) {
    if (event_after[earlier] == kNone) event_after[earlier] = program.events++;
  }
  std::vector<Instruction> body;
  body.reserve(program.body.size() + 2 * waits.size());
  std::size_t w = 0;
  for (std::uint32_t i = 0; i < program.body.size(); ++i) {
    for (; w < waits.size() && waits[w].first == i; ++w) {
      body.push_back(sync(Kind::Wait, program.body[i].stream, event_after[waits[w].second]));
    }
    body.push_back(program.body[i]);
    if (event_after[i] != kNone) {
      body.push_back(sync(Kind::Record, program.body[i].stream, event_after[i]));
    }
  }
  program.body = std::move(body);
}

void place_memory(const Plan& plan, Program& program) {
  std::erase_if(program.body,
                [](const Instruction& i) { return i.kind == Kind::Alloc || i.kind == Kind::Free; });
  program.buffers = used_buffers(plan, program);
  program.body = Lifetimes(plan, program).placed();
}

}  // namespace gputwin
