// What the framework's allocator makes of a program: every Alloc and Free of the plan, in the order
// in which the host issues them.
#pragma once

#include <array>
#include <string>

#include "hwmodels/memory/caching_allocator.h"
#include "sim/core/plan.h"

namespace gputwin {

/// The allocator of one GPU and what it shares the device with.
struct AllocatorSite {
  AllocatorOptions options{};
  Bytes workspace{};  // of matrix libraries: allocated once, never freed
  Bytes capacity{};   // of the device; 0: unknown, the allocator never runs full
  Bytes other{};      // held on the device beside the allocator
};

struct AllocatorReplay {
  AllocatorFigures figures;
  std::array<Bytes, kMemoryClasses> at_peak{};  // split of figures.peak_allocated
  std::string out_of_memory;  // what PyTorch says where the device does not suffice, else empty
};

/// Replays persistent buffers, the prologue, and the body until an iteration reserves nothing more
/// (two to four times). Only buffers of `arena` count, all on one stream: the plan orders reuse by
/// events, as FSDP and Megatron do. Where the device is full the replay goes on without a limit, so
/// that the figures say how much is missing. O(events).
AllocatorReplay replay_allocator(const Plan& plan, const Program& program, ArenaId arena,
                                 const AllocatorSite& site);

}  // namespace gputwin
