// A program as the stream core runs it: one list of operations per stream and one for the host,
// durations and communications interned, events resolved to slots.
//
// Compiled once for all ranks that share program, device kind and factors. Alloc and Free are gone:
// they act at host issue and take no time (memory_profile.h works out the memory).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/plan.h"
#include "sim/core/run_result.h"

namespace gputwin::engine {

enum class OpCode : std::uint8_t { Kernel, HostTask, Collective, PointToPoint, Copy, Record, Wait };

/// StreamOp flags.
enum : std::uint16_t {
  kOptimizerPhase = 1,  // a kernel or host task of the optimizer
  kMayOverlap = 2       // a collective under which a compute kernel of the same rank may run
};

inline constexpr std::uint32_t kNoRow = 0xffffffffu;

/// What `operand` means: Kernel, HostTask: row of `times`; Collective: of `collectives`;
/// PointToPoint: of `groups`; Copy: site; Record: event slot; Wait: row of `waits`.
struct StreamOp {
  std::uint32_t operand = 0;
  std::uint32_t instruction = 0;  // position in the program: prologue, then body
  std::uint32_t task = 0;         // number of the task among all of the rank; a group's last one
  OpCode code = OpCode::Kernel;
  std::uint8_t unused = 0;
  std::uint16_t flags = 0;
};
static_assert(sizeof(StreamOp) == 16);

struct StreamProgram {
  std::vector<StreamOp> ops;     // prologue, then body
  std::uint32_t body_begin = 0;  // index of the first op of the body
};

enum class HostOp : std::uint8_t { Launch, LaunchCommunication, Wait, LaunchSeveral };

struct KernelTime {
  Ps time = 0;  // with `factor`, without jitter
  Seconds base{};
  double factor = 1.0;  // straggler and load
};

/// A collective and its number among the ones of its communicator: `sequence` in the prologue and
/// the first body, `per_body` more in each later body.
struct CollectiveOp {
  std::uint32_t site = 0, sequence = 0, per_body = 0;
};

/// One Send or Recv, numbered per directed pair.
struct PairOp {
  std::uint32_t site = 0, sequence = 0, per_body = 0, task = 0, instruction = 0;
};

/// Sends and Recvs that start and end together: rows first .. first + count - 1 of `pairs`.
struct PairGroup {
  std::uint32_t first = 0, count = 0;
};

enum class WaitKind : std::uint8_t {
  Body,      // for a Record of the same prologue or body
  Previous,  // for one of the body before (the first body: of the prologue)
  Prologue,  // for one of the prologue that no body repeats
  Nothing,   // for nothing that could have happened: passes
  Never      // for an event that nobody records: blocks for ever
};

/// Which Record a Wait means: position `position` in the ops of `stream`, its time in event slot
/// `slot`.
struct EventWait {
  WaitKind kind = WaitKind::Never;
  std::uint8_t stream = 0, prologue_stream = 0;
  bool has_prologue = false;
  std::uint32_t slot = 0, position = 0, prologue_slot = 0, prologue_position = 0;
  std::uint32_t event = 0;
};

/// One way in which a program uses the links: what a rank binds to a channel and a transfer
/// pattern.
struct Site {
  Kind kind = Kind::Collective;
  OpKind op = OpKind::AllReduce;
  SlotId slot{};
  Bytes bytes{};
  CopyKind copy = CopyKind::HostToDevice;
  bool pinned = true;
  std::uint8_t stream = 0;
  Part part = Part::ExposedTp;
  bool in_group_with_itself = false;  // two of one group: they may overlap
  bool operator==(const Site&) const = default;
};

struct CompiledProgram {
  const Program* source = nullptr;
  std::vector<StreamProgram> streams;
  std::vector<HostOp> host;  // prologue, then body
  std::uint32_t host_body_begin = 0;
  std::vector<std::uint32_t> host_waits;  // rows of `waits` in host order
  std::uint32_t host_waits_body_begin = 0;
  std::vector<std::uint16_t> host_launches;  // of each LaunchSeveral in host order
  std::uint32_t host_launches_body_begin = 0;
  std::vector<KernelTime> times;
  std::vector<CollectiveOp> collectives;
  std::vector<PairGroup> groups;
  std::vector<PairOp> pairs;
  std::vector<EventWait> waits;
  std::vector<Site> sites;
  std::vector<std::uint8_t> task_stream;  // by task
  std::uint32_t prologue_tasks = 0, body_tasks = 0;
  std::uint32_t event_slots = 0;
  std::uint32_t banks = 1;                // copies of the slots: bodies in flight at the same time
  std::uint32_t compute_stream = 0;       // the first of kind Compute; the breakdown follows it
  std::uint32_t compute_streams = 0;      // mask
  std::uint32_t overlapping_streams = 0;  // mask: with collectives marked kMayOverlap
  Ps launch = 0, communication_launch = 0;  // host time per task
  Ps resume = 0;                            // more for the first one after the host waited

  const Instruction& instruction(std::uint32_t position) const {
    const std::size_t prologue = source->prologue.size();
    return position < prologue ? source->prologue[position] : source->body[position - prologue];
  }
};

/// What a compiled program depends on besides the plan.
struct CompileOptions {
  ProgramId program{};
  std::vector<std::uint32_t> slots;  // by slot: the first slot that means the same to the rank
  double slowdown = 1.0;
  std::vector<double> load_factor;  // by load table; 1 where the rank is not a member
  HostCost host{};
  bool crosses_iterations = false;
  std::function<Seconds(CallId)> kernel_time;
};

/// Throws InvariantBroken for more than 32 streams.
CompiledProgram compile(const Plan& plan, const CompileOptions& options);

}  // namespace gputwin::engine
