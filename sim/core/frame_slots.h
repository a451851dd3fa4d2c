// The non-persistent buffers of a program as numbered slots, one for each frame of a framed buffer.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/plan.h"

namespace gputwin {

class FrameSlots {
 public:
  static constexpr std::uint32_t kNone = 0xffffffffu;

  /// Numbers those of `program.buffers`. Keeps a reference to both.
  FrameSlots(const Plan& plan, const Program& program);

  std::uint32_t size() const { return static_cast<std::uint32_t>(owner_.size()); }
  /// Of a buffer that a task of `frame` uses; kNone for what persists. A framed buffer outside a
  /// micro-batch is an error of the plan.
  std::uint32_t of(BufferId buffer, std::uint32_t frame) const;
  /// Alloc or Free of a slot.
  Instruction instruction(Kind kind, std::uint32_t slot) const;

 private:
  const Plan& plan_;
  const Program& program_;
  std::vector<std::uint32_t> first_slot_;  // by buffer
  std::vector<std::uint32_t> owner_;       // buffer, by slot
};

}  // namespace gputwin
