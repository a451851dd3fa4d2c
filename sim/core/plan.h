// The Plan: what every rank does, as CUDA and NCCL would see it. Strategies end in it, every
// executor starts from it. A Plan is a value: 16-byte instructions into interned tables, made by
// PlanBuilder, checked by verify(), then const.
//
// Semantics (DESIGN 2). One host thread per rank issues the instructions in vector order, each at a
// launch cost. Instructions of one stream run in order; Record and Wait order streams, and a Wait
// means the latest Record of its event that was issued before it. Collectives match by communicator
// and sequence number, Send/Recv by ordered pair of ranks and sequence number. Alloc and Free act
// at host issue. The body repeats: if no wait crosses the border (kPreviousBody), a body starts
// when the one before has ended on all ranks; if one does, nothing but the plan's own events and
// stream order separates the bodies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/ids.h"
#include "sim/core/op.h"
#include "sim/core/units.h"

namespace gputwin {

enum class Kind : std::uint8_t {
  Kernel,
  Collective,
  Send,
  Recv,
  Copy,
  HostTask,
  Alloc,
  Free,
  Record,
  Wait,
  HostWait
};

/// Kinds that count as tasks in rates.
constexpr bool is_task(Kind k) { return k <= Kind::HostTask; }
/// Kinds whose `event` is an event.
constexpr bool has_event(Kind k) {
  return k == Kind::Record || k == Kind::Wait || k == Kind::HostWait;
}

/// Instruction flags.
enum : std::uint16_t {
  kGrouped = 1,  // Send/Recv: adjacent ones with this flag start and end together (ncclGroupStart)
  kPreviousBody = 2,  // Wait/HostWait: the Record of the previous body (the prologue's at first)
  kDerived = 4,       // Record/Wait made by synchronise(), which replaces them when it runs again
};

inline constexpr std::uint32_t kNoFrame = 0xffffffffu;

struct Instruction {
  Kind kind = Kind::Kernel;
  std::uint8_t stream = 0;  // row of Program::streams; HostWait, Alloc, Free: 0
  std::uint16_t flags = 0;
  std::uint32_t call = Id<CallTag>::kNone;  // tasks: CallId; Alloc/Free: BufferId
  std::uint32_t name = Id<NameTag>::kNone;  // NameId
  /// Record, Wait, HostWait: the event. Other kinds: the frame (micro-batch) that framed buffers
  /// mean, kNoFrame outside micro-batches.
  std::uint32_t event = kNoFrame;

  bool operator==(const Instruction&) const = default;
  CallId call_id() const { return CallId(call); }
  BufferId buffer_id() const { return BufferId(call); }
  std::uint32_t frame() const { return event; }
};
static_assert(sizeof(Instruction) == 16);

/// An interned call: the op and where its operands lie (order by op.h).
struct Call {
  Op op;
  std::vector<View> reads, writes;
  bool operator==(const Call&) const = default;
};

enum class Phase : std::uint8_t {
  Forward,
  Recompute,
  Backward,
  WeightGrad,
  Reduce,
  Gather,
  Optimizer,
  Pipeline,
  Offload,
  Data
};

/// Name of an instruction; with the frame it is {phase, micro-batch, layer, op, occurrence}.
struct Name {
  Phase phase = Phase::Forward;
  std::int32_t layer = -1;  // global layer index; -1 embedding and others before, -2 head and loss
  std::string op;           // "fc1", "attention_scores", "tp_all_reduce"
  std::int32_t occurrence = 0;  // of the same op in the same (phase, layer)
  bool operator==(const Name&) const = default;
};

enum class MemoryClass : std::uint8_t {
  Weights,
  Gradients,
  Optimizer,
  Activations,
  Temporary,
  Communication,
  Context
};
inline constexpr std::size_t kMemoryClasses = 7;

/// Where a buffer lives.
struct Arena {
  std::string name;  // "gpu", "host", "nvme"
  Bytes capacity{};  // 0: unbounded
  bool operator==(const Arena&) const = default;
};

/// One stay of some bytes in an arena. Framed: one instance per micro-batch frame. Persistent: live
/// from the start of the run without Alloc (weights, gradients, optimizer states, inputs).
struct Buffer {
  std::string name;
  Bytes bytes{};
  MemoryClass memory = MemoryClass::Activations;
  DType dtype = DType::F32;
  ArenaId arena{0};
  std::int64_t address = -1;  // -1: placed by the allocator
  bool framed = false;
  bool persistent = false;
  bool in_place = false;  // lies inside another buffer, which is what memory figures count
  std::uint64_t seed =
      0;  // initial contents of persistent buffers that no Parameter or Input describes
  bool operator==(const Buffer&) const = default;
};

/// How a rank's local tensor is cut out of the global one. `blocks` equal row blocks (fused gate
/// and up projections: 2) are each cut along `axis` by the rank's member index in `slot`.
enum class Axis : std::uint8_t { None, Rows, Cols };
struct Sharding {
  Axis axis = Axis::None;
  SlotId slot{};
  std::int32_t blocks = 1;
  bool operator==(const Sharding&) const = default;
};

/// A trainable tensor of a program. Initial values: element (i, j) of the *global* tensor depends
/// on (seed, i, j) alone, so plans with different layouts start from the same model.
///
/// Flat shards (ZeRO 2 and 3). With `weight_shards` the buffer of `weight` is one shard of a longer
/// flat tensor: member i of that communicator holds elements [i n, (i + 1) n), n being the elements
/// of the buffer. The view's offset counts from the start of the flat tensor, so a rank holds that
/// part of the parameter, maybe none, that falls into its shard. `gradient_shards` likewise.
struct Parameter {
  std::string name;  // global: "layer3.fc1.weight"; equal names on two stages are tied
  std::int64_t rows = 0, cols = 0;  // local
  View weight, gradient;            // contiguous ranges; offsets into bucket buffers
  Sharding sharding{};
  SlotId weight_shards{}, gradient_shards{};  // none: the buffer holds the whole
  bool ones = false;                          // norm gains start at 1
  bool zeros = false;                         // biases start at 0
  /// The gradient is partial over this communicator until reduced (norm weights with sequence
  /// parallelism, every weight over data parallel ranks); informative.
  bool operator==(const Parameter&) const = default;
};

/// Token ids or targets: framed buffers filled from the global batch. Sample i of frame f on data
/// rank d is global sample (d * frames + f) * micro_batch + i; target t is token t + 1 of the same
/// sample. With a `cp_slot` the buffer holds the rank's two chunks of every sample (op.h, note 8).
struct Input {
  BufferId buffer{};
  bool targets = false;
  std::int64_t samples = 0, sequence = 0, vocab = 0;  // per frame; sequence: tokens of one here
  /// d is the rank's place among those members of this communicator that have its member index in
  /// `cp_slot`; none: d = 0.
  SlotId data_slot{};
  SlotId cp_slot{};
  std::int64_t frames = 0;
  // Replicas share every micro-batch: sample i of frame f on data rank d of n is global sample
  // (f * n + d) * samples + i.
  bool shared_frames = false;
  bool operator==(const Input&) const = default;
};

enum class StreamKind : std::uint8_t { Compute, Communication, CopyIn, CopyOut, HostCpu };

struct Stream {
  std::string name;  // "compute", "tp", "dp", "pp"
  StreamKind kind = StreamKind::Compute;
  bool operator==(const Stream&) const = default;
};

/// Which parallel dimension a communication serves; decides its place in the breakdown.
enum class Domain : std::uint8_t { Tp, Dp, Pp, Ep, Cp };

/// A place in the program that each rank fills with one of its communicators or with a peer rank.
struct Slot {
  std::string name;
  Domain domain = Domain::Tp;
  bool peer = false;
  bool operator==(const Slot&) const = default;
};

/// What one role does. `prologue` runs once before the first body.
struct Program {
  std::string name;
  std::vector<Stream> streams;
  std::vector<Slot> slots;
  std::vector<Instruction> prologue, body;
  std::vector<BufferId> buffers;  // used by this program, persistent ones included
  std::vector<Parameter> parameters;
  std::vector<Input> inputs;
  std::uint32_t events = 0;  // EventId < events
  std::uint32_t frames = 0;  // frames 0 .. frames-1
  BufferId loss{};           // F32 [1], summed over frames; none where no loss is computed
  bool operator==(const Program&) const = default;
};

struct Communicator {
  std::string name;
  std::vector<RankId> members;
  bool operator==(const Communicator&) const = default;
};

/// One rank: its program, its GPU, and what the program's slots mean for it.
struct Rank {
  ProgramId program{};
  GpuId gpu{};
  double slowdown = 1.0;             // straggler: factor on kernel durations
  std::vector<std::uint32_t> slots;  // by slot: CommunicatorId or peer RankId
  bool operator==(const Rank&) const = default;
};

/// Uneven load of one layer (experts, all-to-all): factor on work, by member of the communicator.
struct LoadTable {
  std::vector<double> factor;
  bool operator==(const LoadTable&) const = default;
};

/// Random variation of kernel durations: each is multiplied by exp(sigma z), z standard normal from
/// (seed, rank, instruction); real executors ignore it and say so.
struct Jitter {
  double sigma = 0.0;
  std::uint64_t seed = 0;
  bool operator==(const Jitter&) const = default;
};

struct Plan {
  std::vector<Program> programs;
  std::vector<Rank> ranks;
  std::vector<Communicator> communicators;
  std::vector<Call> calls;
  std::vector<Name> names;
  std::vector<Buffer> buffers;
  std::vector<Arena> arenas;
  std::vector<LoadTable> loads;
  Jitter jitter{};
  bool cuda_graph = false;  // launch costs vanish

  bool operator==(const Plan&) const = default;

  const Program& program_of(RankId r) const { return programs[ranks[r.value].program.value]; }
  const Call& call(const Instruction& i) const { return calls[i.call]; }
  CommunicatorId communicator(RankId r, SlotId s) const {
    return CommunicatorId(ranks[r.value].slots[s.value]);
  }
  RankId peer(RankId r, SlotId s) const { return RankId(ranks[r.value].slots[s.value]); }
  /// Position of a rank in a communicator. O(members).
  std::int32_t member_index(CommunicatorId c, RankId r) const;
  /// Tasks of one body over all ranks (not multiplied by folding).
  std::int64_t tasks_per_body() const;
  /// "F/mb12/L3/fc1" — phase letter, micro-batch if framed, layer, op, occurrence if not 0.
  std::string full_name(const Instruction& i) const;
  /// True if some Wait or HostWait refers to the previous body.
  bool crosses_iterations() const;
};

/// `call` with the views that `rank` means: a Gemm of one member's rows names those of all (op.h,
/// note 20). Then `own` holds the answer, else it is `call` itself.
const Call& placed(const Plan& plan, RankId rank, const Call& call, Call& own);

/// Bytes of all views together.
Bytes bytes_of(const std::vector<View>& views);

/// Buffers that a program's instructions, parameters, inputs and loss mention, ascending.
std::vector<BufferId> used_buffers(const Plan& plan, const Program& program);

}  // namespace gputwin
