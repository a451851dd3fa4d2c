// Memory of a program over its issue order. Alloc and Free act at host issue, so the peak follows
// from the program alone, without simulating time.
#pragma once

#include <array>
#include <vector>

#include "sim/core/plan.h"

namespace gputwin {

struct MemoryProfile {
  Bytes peak{};  // allocated at the highest moment, of one arena
  std::array<Bytes, kMemoryClasses> at_peak{};
  std::size_t peak_instruction = 0;  // index into the body (first moment of the peak)
};

/// Highest allocated bytes in `arena` while one body runs. `rounding`: the allocator's block size.
MemoryProfile memory_profile(const Plan& plan, const Program& program, ArenaId arena,
                             Bytes rounding);

}  // namespace gputwin
