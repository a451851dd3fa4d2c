// The parts of the pass `offload` on one program.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/core/plan_builder.h"
#include "strategies/passes/offload.h"

namespace gputwin::offloading {

/// The streams of copies and of the host.
struct Streams {
  std::uint8_t in = 0, out = 0, cpu = 0, nvme_in = 0, nvme_out = 0;
};

/// What every part needs.
struct Context {
  PlanBuilder& builder;
  const OffloadSpec& spec;
  const CostModel* costs = nullptr;
  const Topology* topology = nullptr;
  ProgramId program{};
  RankId rank{};  // one of those that run it
  ArenaId host{}, nvme{};
  Streams streams{};

  Plan& plan() const { return builder.plan(); }
  Program& target() const { return builder.plan().programs[program.value]; }
  const Call& call(const Instruction& i) const { return builder.plan().calls[i.call]; }
  Instruction copy(CopyKind kind, std::uint8_t stream, const View& from, const View& to,
                   const char* name, std::int32_t occurrence) const;
};

/// Persistent GPU buffers that hold parameters or their gradients, in order of first use.
std::vector<BufferId> objects_of(const Context& c, MemoryClass memory);

/// Buffers that leave, and slots of GPU memory for them.
struct Leaving {
  std::vector<BufferId> weights, gradients;
  std::vector<BufferId> states;  // of the optimizer, where the step is taken on the GPU
  std::int32_t weight_slots = 0, gradient_slots = 0, state_slots = 0;
  bool holds(BufferId b) const;
};
/// Decides by how much memory is left beside everything that stays.
Leaving choose_leaving(const Context& c);

/// Zeroing of gradients that leave moves to their next use, their part of the norm behind their
/// last one. Needed before add_swaps: a gradient would else come back for each.
void gather_uses(const Context& c, const std::vector<BufferId>& gradients);
/// Steps of Adam read gradients as they were reduced: no F32 copies of all of them at once.
void fuse_steps(const Context& c);
/// Steps of Adam become host tasks. False: the optimizer is no Adam.
bool move_optimizer(const Context& c, const Leaving& leaving);
/// Slots and copies for one kind of objects.
void add_swaps(const Context& c, const std::vector<BufferId>& objects, std::int32_t slots,
               const char* what);

/// Start of every instruction of the body if nothing stalls, in seconds; one more for the end.
std::vector<double> timeline(const Context& c);

}  // namespace gputwin::offloading
