// The state of the interpreted machine: memory blocks, streams of queued items, one host per rank.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "validation/executors/interpreter/interpreter.h"

namespace gputwin::interpreted {

/// splitmix64: a good 64-bit mix and, iterated, a generator that is ours on every platform.
std::uint64_t mix(std::uint64_t x);

struct Random {
  std::uint64_t state = 0;
  std::uint64_t next() { return mix(state += 0x9e3779b97f4a7c15ull); }
  std::uint64_t below(std::uint64_t n) { return next() % n; }
};

/// Memory of one buffer instance, addressed by byte (that of a 4-bit buffer by half a byte): the
/// double of an element lies at its first byte, so views of different dtypes see each other's bytes
/// as garbage (NaN), as on a machine.
class Block {
 public:
  Block(const Buffer& buffer, double fill)
      : label_(buffer.name),
        cell_bits_(bits(buffer.dtype) < 8 ? 4 : 8),
        cells_(static_cast<std::size_t>(buffer.bytes.value * 8 / cell_bits_), fill) {}

  double element(const View& view, std::int64_t index) const { return cells_[at(view, index)]; }
  void set_element(const View& view, std::int64_t index, double value);
  std::vector<double> load(const View& view) const;
  void store(const View& view, const std::vector<double>& values);
  void give_back();  // fills it with NaN
  /// For the read-out: what lies there, or lay there when the memory was last given back.
  double at_byte(std::int64_t address) const;
  const std::string& label() const { return label_; }

 private:
  std::size_t at(const View& view, std::int64_t index) const;
  std::int64_t cells(DType dtype) const;  // of one element

  std::string label_;
  std::int64_t cell_bits_;
  std::vector<double> cells_, given_back_;
};

/// Bytes of one element; Fault for formats smaller than a byte.
std::int64_t element_bytes(DType dtype);
/// Element index of the `index`-th element (row by row) of a view within its buffer.
std::int64_t element_index(const View& view, std::int64_t index);

/// From one Alloc to the Free: the stays of one (buffer, frame) follow each other in the same
/// memory.
struct Stay {
  std::shared_ptr<Block> block;
  bool freed = false;  // by the host; takes effect when `pending` is 0
  int pending = 0;     // operands of issued tasks that have not finished
};

struct Operand {
  std::shared_ptr<Stay> stay;
  View view;
};

struct Token {
  bool done = false;
};

struct Transfer {
  bool send = false;
  RankId from{}, to{};
  std::uint64_t sequence = 0;
  Operand operand;
  bool done = false;
};

/// What a host has queued on a stream.
struct Item {
  enum class Kind : std::uint8_t { Compute, Collective, Transfers, Record, Wait };
  Kind kind = Kind::Compute;
  Instruction instruction{};
  int body = 0;  // -1: prologue
  std::vector<Operand> reads, writes;
  CommunicatorId communicator{};
  std::uint64_t sequence = 0;
  std::vector<Transfer> transfers;
  std::shared_ptr<Token> token;
};

using InstanceKey =
    std::pair<std::uint32_t, std::uint32_t>;  // buffer, frame (kNoFrame: not framed)

/// A byte of a buffer.
struct Place {
  BufferId buffer{};
  std::int64_t byte = 0;
  auto operator<=>(const Place&) const = default;
};

struct RankState {
  RankId id{};
  int body = -1;         // the host is in the prologue
  std::size_t next = 0;  // instruction the host issues next
  std::vector<std::deque<Item>> streams;
  std::map<InstanceKey, std::shared_ptr<Stay>> live;
  std::map<InstanceKey, std::shared_ptr<Block>>
      memory;                         // of all stays there were, for reuse and read-out
  std::set<Place> counted_elsewhere;  // gradient elements that another rank counts in the norm
  std::map<std::uint32_t, std::shared_ptr<Token>> events, previous_events;
  std::map<std::uint32_t, std::uint64_t> collective_count, sent_count, received_count;
};

struct At {
  std::uint32_t rank = 0;
  std::uint32_t stream = 0;
  std::size_t transfer = 0;
};

struct Pairing {
  std::vector<At> senders, receivers;
};

struct World {
  const Plan& plan;
  const InterpretOptions& options;
  std::vector<RankState> ranks;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<At>>
      arrived;  // (communicator, sequence)
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>, Pairing> pairs;

  std::int32_t member(const RankState& rank, SlotId slot) const;   // 0 without slot
  std::int64_t members(const RankState& rank, SlotId slot) const;  // 1 without slot
  std::int64_t data_index(const RankState& rank, const Input& input) const;
  std::string describe(const RankState& rank, const Instruction& instruction) const;
};

/// Every rank of `plan` before its prologue, its persistent buffers filled. Both must outlive it.
World initial_world(const Plan& plan, const InterpretOptions& options);
/// Creates persistent buffers and fills them: seeds, inputs, parameters, then the optimizer's
/// copies.
void set_initial_values(World& world);
/// Fills `counted_elsewhere`: of the ranks whose sums of squares are added, the first member that
/// holds an element of a gradient counts it (tensor-parallel replicas and tied copies count once).
void share_out_norm(World& world);
/// Loss of the global batch: summed over data- and context-parallel ranks.
double total_loss(const World& world);
/// Loss, gradients, weights and persistent buffers at the end.
Results read_out(const World& world);

/// The operands of a kernel as dense row-major arrays, and what its meaning needs besides the Op.
struct Work {
  const Op& op;
  std::vector<std::vector<double>> reads, writes;
  std::int64_t member = 0;   // index in op.slot: vocabulary shards, token shards, heads
  std::int64_t members = 1;  // of op.slot
  int step = 1;              // of Adam
  const InterpretOptions& options;
  std::int64_t cp_member = 0, cp_members = 1;  // in op.cp_slot
  double log_sum_tolerance = 1e-9;             // of the sums that FlashBackward is given
};

/// `op` as a task of `rank` in a body (-1: the prologue), without its operands.
Work work_of(const World& world, const RankState& rank, const Op& op, int body);

/// Where row `row` of a sample stands in its sequence, on member `member` of `members`
/// context-parallel ranks that hold `rows` tokens of every sample each.
inline std::int64_t sequence_position(std::int64_t row, std::int64_t rows, std::int64_t member,
                                      std::int64_t members) {
  const std::int64_t chunk = rows / 2;
  return row < chunk ? member * chunk + row : (2 * members - 1 - member) * chunk + row - chunk;
}

/// True if a kernel needs what its output `index` of `outputs` held before.
bool reads_output(const Op& op, std::size_t index, std::size_t outputs);
/// Fills `work.writes`. Throws Fault where operands do not fit the dims.
void compute(Work& work);

/// Runs a collective on the reads of all members, in member order; returns their writes.
std::vector<std::vector<double>> collect(const Op& op,
                                         const std::vector<std::vector<double>>& reads,
                                         const std::vector<std::int64_t>& write_elements);

}  // namespace gputwin::interpreted
