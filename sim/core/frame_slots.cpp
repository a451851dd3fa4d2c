#include "sim/core/frame_slots.h"

#include "sim/core/check.h"

namespace gputwin {

FrameSlots::FrameSlots(const Plan& plan, const Program& program) : plan_(plan), program_(program) {
  first_slot_.assign(plan.buffers.size(), kNone);
  for (const BufferId b : program.buffers) {
    if (plan.buffers[b.value].persistent) continue;
    first_slot_[b.value] = size();
    owner_.resize(owner_.size() + (plan.buffers[b.value].framed ? program.frames : 1), b.value);
  }
}

std::uint32_t FrameSlots::of(BufferId buffer, std::uint32_t frame) const {
  const std::uint32_t first = first_slot_[buffer.value];
  if (first == kNone || !plan_.buffers[buffer.value].framed) return first;
  GPUTWIN_CHECK(frame < program_.frames, "a framed buffer is used within a micro-batch");
  return first + frame;
}

Instruction FrameSlots::instruction(Kind kind, std::uint32_t slot) const {
  const std::uint32_t buffer = owner_[slot];
  const bool framed = plan_.buffers[buffer].framed;
  return {.kind = kind, .call = buffer, .event = framed ? slot - first_slot_[buffer] : kNoFrame};
}

}  // namespace gputwin
