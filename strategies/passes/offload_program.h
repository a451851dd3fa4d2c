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

/// Reads a gradient for the last time: its F32 copy goes down instead.
inline constexpr const char* kCastGradient = "cast_gradient";

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
                   const std::string& name, std::int32_t occurrence) const;
  /// Ranks of this one's node: they step, and read drives, at the same time. 0: not known.
  std::int64_t ranks_on_node() const;
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

/// Of steps of Adam, in their order, those that leave: the first ones. Gradients are complete in
/// the order of the backward pass, so that what stays are the embedding and the first layers.
std::size_t steps_that_leave(const Context& c, const std::vector<CallId>& steps);

/// Bytes of the GPU that nothing uses while all of `away` are gone; negative: too few. Without
/// costs 0.
std::int64_t free_bytes(const Context& c, const std::vector<BufferId>& away);

/// Zeroing of gradients that leave or are copied down moves to their next use, their part of the
/// norm behind their last one. Needed before add_swaps: a gradient would else come back for each.
void gather_uses(const Context& c, const std::vector<BufferId>& gradients);
/// Steps of Adam read gradients as they were reduced: no F32 copies of all of them at once.
void fuse_steps(const Context& c);
/// Steps of Adam become host tasks. False: the optimizer is no Adam.
bool move_optimizer(const Context& c, const Leaving& leaving);
/// Activations that the backward pass reads lie on the host between their last use before it and
/// their first one in it, unless that is too short for the two copies. A kept tensor that backward
/// writes stays.
void move_activations(const Context& c);
/// Slots and copies for one kind of objects, whose home is `home`. On NVMe they pass through a ring
/// of buffers of host memory, and so does what tasks of the host change.
void add_swaps(const Context& c, const std::vector<BufferId>& objects, std::int32_t slots,
               OffloadPlace home, const std::string& what);

/// Of one instruction by itself, and of one copy while `ranks` GPUs, at most those below a switch,
/// or all ranks of a drive's node copy: a share of the uplink or the drive.
Seconds duration(const Context& c, const Instruction& i);
Seconds shared_copy_time(const Context& c, CopyKind kind, Bytes bytes, std::int64_t ranks);

/// What came of an attempt: the GPU's memory suffices, and the time of the slowest program by
/// itself.
struct Trial {
  bool fits = true;
  double seconds = 0, compute = 0;  // of them computing
  std::int64_t host_short = 0;      // bytes that a node's host lacks
};
/// The plan with what `spec` says, its window and share taken as they stand.
Outcome<Plan> moved(Plan plan, const OffloadSpec& spec, const CostModel* costs,
                    const Topology* topology, Trial* trial);

/// The largest window up to that of `spec` which fits beside as many slots, else none.
Outcome<Plan> moved_with_window(const Plan& plan, OffloadSpec spec, const CostModel& costs,
                                const Topology& topology);
/// Of what fits the fastest, each program by itself: a share of the
/// states, with gradients on the GPU or not; all of the states, with a window of the first layers
/// whole and the other weights in slots, or all weights in slots.
Outcome<Plan> moved_as_needed(const Plan& plan, const OffloadSpec& spec, const CostModel& costs,
                              const Topology& topology);

/// Start of every instruction of the body if nothing stalls, in seconds; one more for the end.
std::vector<double> timeline(const Context& c);

}  // namespace gputwin::offloading
