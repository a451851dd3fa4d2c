#include "strategies/passes/single_queue.h"

#include <optional>
#include <utility>

namespace gputwin {
namespace {

// Copies have engines of their own, and host tasks no queue.
bool is_queued(const Instruction& i) {
  return i.kind == Kind::Kernel || i.kind == Kind::Collective || i.kind == Kind::Send ||
         i.kind == Kind::Recv;
}

bool in_one_group(const Instruction& a, const Instruction& b) {
  return (a.flags & kGrouped) != 0 && (b.flags & kGrouped) != 0;
}

std::vector<Instruction> queued(const std::vector<Instruction>& body, std::uint32_t& events) {
  std::vector<std::size_t> tasks;
  for (std::size_t i = 0; i < body.size(); ++i) {
    if (is_queued(body[i])) tasks.push_back(i);
  }
  std::vector<Instruction> out;
  std::size_t task = 0;
  std::optional<std::uint32_t> started;  // of the task before, if on another stream
  for (std::size_t i = 0; i < body.size(); ++i) {
    if (task < tasks.size() && tasks[task] == i) {
      const std::uint8_t stream = body[i].stream;
      if (started) out.push_back({.kind = Kind::Wait, .stream = stream, .event = *started});
      started.reset();
      if (++task < tasks.size()) {
        const Instruction& next = body[tasks[task]];
        if (next.stream != stream && !in_one_group(body[i], next)) {
          started = events++;
          out.push_back({.kind = Kind::Record, .stream = stream, .event = *started});
        }
      }
    }
    out.push_back(body[i]);
  }
  return out;
}

}  // namespace

Plan single_queue(Plan plan) {
  for (Program& program : plan.programs) program.body = queued(program.body, program.events);
  return plan;
}

}  // namespace gputwin
