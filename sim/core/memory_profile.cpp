#include "sim/core/memory_profile.h"

#include <algorithm>

namespace gputwin {

MemoryProfile memory_profile(const Plan& plan, const Program& program, ArenaId arena,
                             Bytes rounding) {
  std::array<std::int64_t, kMemoryClasses> now{};
  std::int64_t total = 0;
  const auto rounded = [&](const Buffer& b) {
    const std::int64_t block = std::max<std::int64_t>(1, rounding.value);
    return (b.bytes.value + block - 1) / block * block;
  };
  for (const BufferId id : program.buffers) {
    const Buffer& b = plan.buffers[id.value];
    if (!b.persistent || b.in_place || b.arena != arena) continue;
    const std::int64_t instances = b.framed ? program.frames : 1;
    now[static_cast<std::size_t>(b.memory)] += rounded(b) * instances;
    total += rounded(b) * instances;
  }
  MemoryProfile profile;
  const auto note = [&](std::size_t instruction) {
    if (total <= profile.peak.value) return;
    profile.peak = Bytes(total);
    profile.peak_instruction = instruction;
    for (std::size_t c = 0; c < kMemoryClasses; ++c) profile.at_peak[c] = Bytes(now[c]);
  };
  note(0);
  for (std::size_t i = 0; i < program.body.size(); ++i) {
    const Instruction& in = program.body[i];
    if (in.kind != Kind::Alloc && in.kind != Kind::Free) continue;
    const Buffer& b = plan.buffers[in.call];
    if (b.in_place || b.arena != arena) continue;
    const std::int64_t change = in.kind == Kind::Alloc ? rounded(b) : -rounded(b);
    now[static_cast<std::size_t>(b.memory)] += change;
    total += change;
    note(i);
  }
  return profile;
}

}  // namespace gputwin
