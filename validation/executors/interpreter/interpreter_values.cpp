// Where numbers come from and where they are found again: initial values by global tensor, and the
// read-out of global gradients and weights from the shards of the ranks.
#include <algorithm>
#include <cmath>
#include <optional>

#include "validation/executors/interpreter/interpreter_state.h"

namespace gputwin {

using interpreted::mix;

namespace {

std::uint64_t hash_name(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}

double uniform(std::uint64_t hash) {  // [-1, 1)
  return static_cast<double>(mix(hash) >> 11) * 0x1p-52 - 1.0;
}

}  // namespace

double initial_value(const Parameter& parameter, std::int64_t row, std::int64_t column,
                     std::int64_t cols, const InterpretOptions& options) {
  const double noise = uniform(hash_name(parameter.name) + mix(static_cast<std::uint64_t>(row)) +
                               3 * mix(static_cast<std::uint64_t>(column)));
  double value = noise / std::sqrt(static_cast<double>(cols));
  const double constant_noise = options.generic_constants ? 0.25 * noise : 0.0;
  if (parameter.ones) value = 1.0 + constant_noise;
  if (parameter.zeros) value = constant_noise;
  for (const Nudge& nudge : options.nudges) {
    if (nudge.parameter == parameter.name && nudge.row == row && nudge.column == column) {
      value += nudge.delta;
    }
  }
  return value;
}

double seeded_value(std::uint64_t seed, std::int64_t index) {
  return uniform(mix(seed) + static_cast<std::uint64_t>(index));
}

std::int64_t token(std::int64_t sample, std::int64_t position, std::int64_t vocab) {
  const std::uint64_t hash =
      mix(mix(static_cast<std::uint64_t>(sample) + 17) + static_cast<std::uint64_t>(position));
  return static_cast<std::int64_t>(hash % static_cast<std::uint64_t>(vocab));
}

namespace interpreted {

namespace {

/// How the local tensor of a parameter on one rank is cut out of the global one.
struct Cut {
  const Parameter& parameter;
  std::int64_t members = 1, member = 0;

  Cut(const World& world, const RankState& rank, const Parameter& p) : parameter(p) {
    if (p.sharding.axis == Axis::None) return;
    members = world.members(rank, p.sharding.slot);
    member = world.member(rank, p.sharding.slot);
  }
  bool by_rows() const { return parameter.sharding.axis == Axis::Rows; }
  bool by_cols() const { return parameter.sharding.axis == Axis::Cols; }
  std::int64_t rows() const { return parameter.rows * (by_rows() ? members : 1); }
  std::int64_t cols() const { return parameter.cols * (by_cols() ? members : 1); }
  /// Global index of a local one along the cut axis of local extent `extent` in `blocks` blocks.
  std::int64_t cut(std::int64_t index, std::int64_t extent, std::int64_t blocks) const {
    const std::int64_t block = extent / blocks;
    return (index / block) * block * members + member * block + index % block;
  }
  std::int64_t row(std::int64_t local) const {
    return by_rows() ? cut(local, parameter.rows, parameter.sharding.blocks) : local;
  }
  std::int64_t column(std::int64_t local) const {
    // A bias stored as one row is cut along its columns in the same blocks as the rows of its
    // weight.
    const std::int64_t blocks = parameter.rows == 1 ? parameter.sharding.blocks : 1;
    return by_cols() ? cut(local, parameter.cols, blocks) : local;
  }
};

/// The element of its buffer that element `index` of a parameter's view is, if the buffer is a flat
/// shard; nothing where another member holds it.
std::optional<std::int64_t> in_shard(const World& world, const RankState& rank, const View& view,
                                     std::int64_t index, SlotId shards) {
  const std::int64_t element = element_index(view, index);
  if (!shards.valid()) return element;
  const std::int64_t bytes = world.plan.buffers.at(view.buffer.value).bytes.value;
  const std::int64_t shard = bytes / element_bytes(view.dtype);
  if (element < 0 || element >= shard * world.members(rank, shards)) {
    throw Fault("a parameter leaves the flat tensor that its shards make");
  }
  if (element / shard != world.member(rank, shards)) return std::nullopt;
  return element % shard;
}

/// One element of a buffer.
View single(const View& view, std::int64_t element) {
  return {view.buffer, element, 1, 1, 1, view.dtype};
}

std::shared_ptr<Block> block_of(const RankState& rank, const World& world, BufferId buffer,
                                std::uint32_t frame = kNoFrame) {
  const bool framed = world.plan.buffers.at(buffer.value).framed;
  const auto found = rank.memory.find({buffer.value, framed ? frame : kNoFrame});
  return found == rank.memory.end() ? nullptr : found->second;
}

/// Initial values of unframed buffers of one rank by element; also of buffers that are allocated
/// later (a weight shard that is only written by the optimizer links its master to the weights).
class Known {
 public:
  void set(const View& view, std::int64_t index, double value) {
    values_[key(view, index)] = value;
  }
  std::optional<double> get(const View& view, std::int64_t index) const {
    const auto found = values_.find(key(view, index));
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  static std::pair<std::uint32_t, std::int64_t> key(const View& view, std::int64_t index) {
    return {view.buffer.value, element_index(view, index) * bits(view.dtype)};
  }
  std::map<std::pair<std::uint32_t, std::int64_t>, double> values_;
};

void fill_inputs(World& world, RankState& rank) {
  for (const Input& input : world.plan.program_of(rank.id).inputs) {
    const std::int64_t data = world.data_index(rank, input);
    const std::int64_t part = world.member(rank, input.cp_slot);
    const std::int64_t parts = world.members(rank, input.cp_slot);
    for (std::int64_t frame = 0; frame < input.frames; ++frame) {
      const auto block = block_of(rank, world, input.buffer, static_cast<std::uint32_t>(frame));
      if (!block) throw Fault("the input buffer of a frame is not persistent");
      const DType dtype = world.plan.buffers[input.buffer.value].dtype;
      const View view{input.buffer, 0, input.samples, input.sequence, input.sequence, dtype};
      for (std::int64_t k = 0; k < view.elements(); ++k) {
        const std::int64_t first = input.shared_frames
                                       ? frame * world.members(rank, input.data_slot) + data
                                       : data * input.frames + frame;
        const std::int64_t sample = first * input.samples + k / input.sequence;
        const std::int64_t at = sequence_position(k % input.sequence, input.sequence, part, parts) +
                                (input.targets ? 1 : 0);
        block->set_element(view, k, static_cast<double>(token(sample, at, input.vocab)));
      }
    }
  }
}

void fill_parameters(World& world, RankState& rank, Known& known) {
  for (const Parameter& parameter : world.plan.program_of(rank.id).parameters) {
    const Cut cut(world, rank, parameter);
    const auto block = block_of(rank, world, parameter.weight.buffer);
    if (!block) throw Fault("the weight of " + parameter.name + " is not persistent");
    if (parameter.weight.elements() != parameter.rows * parameter.cols) {
      throw Fault("the weight view of " + parameter.name +
                  " does not have its rows x cols elements");
    }
    for (std::int64_t k = 0; k < parameter.rows * parameter.cols; ++k) {
      const std::int64_t row = cut.row(k / parameter.cols), column = cut.column(k % parameter.cols);
      const double value = initial_value(parameter, row, column, cut.cols(), world.options);
      const auto here = in_shard(world, rank, parameter.weight, k, parameter.weight_shards);
      if (!here) continue;
      block->set_element(single(parameter.weight, *here), 0, value);
      known.set(single(parameter.weight, *here), 0, value);
    }
  }
}

/// Gives `to` the value of `from`, unless it has one or `from` has none.
void inherit(World& world, RankState& rank, Known& known, const View& to, std::int64_t to_index,
             const View& from, std::int64_t from_index) {
  const Buffer& target = world.plan.buffers.at(to.buffer.value);
  const auto value = known.get(from, from_index);
  if (target.framed || target.seed != 0 || !value || known.get(to, to_index)) return;
  known.set(to, to_index, *value);
  if (target.persistent) block_of(rank, world, to.buffer)->set_element(to, to_index, *value);
}

/// Passes initial values on along one call: master = weight for optimizers, a weight shard is its
/// part of the weights it is gathered into, a copied or cast weight equals its copy.
void inherit_along(World& world, RankState& rank, Known& known, const Call& call) {
  const OpKind kind = call.op.kind;
  const bool adam = kind == OpKind::AdamStep || kind == OpKind::LambStep || kind == OpKind::CpuAdam;
  if ((adam && call.writes.size() > 3) || (kind == OpKind::SgdStep && call.writes.size() > 2)) {
    const View &master = call.writes.front(), &weight = call.writes.back();
    for (std::int64_t k = 0; k < master.elements(); ++k) {
      inherit(world, rank, known, master, k, weight, k);
      inherit(world, rank, known, weight, k, master, k);
    }
  } else if (kind == OpKind::AllGather && !call.reads.empty() && !call.writes.empty()) {
    const View &shard = call.reads[0], &whole = call.writes[0];
    const std::int64_t first = world.member(rank, call.op.slot) * shard.elements();
    for (std::int64_t k = 0; k < shard.elements(); ++k) {
      inherit(world, rank, known, shard, k, whole, first + k);
      inherit(world, rank, known, whole, first + k, shard, k);
    }
  } else if ((kind == OpKind::CopyBytes || kind == OpKind::CastCopy) && call.reads.size() == 1) {
    const View &from = call.reads.at(0), &to = call.writes.at(0);
    const std::int64_t first = world.member(rank, call.op.slot) * to.elements();
    for (std::int64_t k = 0; k < to.elements(); ++k)
      inherit(world, rank, known, from, first + k, to, k);
  }
}

std::vector<CallId> calls_of(const Program& program) {
  std::vector<bool> seen;
  std::vector<CallId> calls;
  for (const auto* list : {&program.prologue, &program.body}) {
    for (const Instruction& instruction : *list) {
      if (!is_task(instruction.kind)) continue;
      if (seen.size() <= instruction.call) seen.resize(instruction.call + 1);
      if (!seen[instruction.call]) calls.push_back(instruction.call_id());
      seen[instruction.call] = true;
    }
  }
  return calls;
}

void create_persistent(World& world, RankState& rank) {
  const Program& program = world.plan.program_of(rank.id);
  for (BufferId id : program.buffers) {
    const Buffer& buffer = world.plan.buffers.at(id.value);
    if (!buffer.persistent) continue;
    for (std::uint32_t frame = 0; frame < (buffer.framed ? program.frames : 1); ++frame) {
      const auto block = std::make_shared<Block>(buffer, 0.0);
      const InstanceKey key{id.value, buffer.framed ? frame : kNoFrame};
      rank.memory[key] = block;
      rank.live[key] = std::make_shared<Stay>(Stay{block});
      const std::int64_t elements = buffer.bytes.value * 8 / bits(buffer.dtype);
      const View view{id, 0, 1, elements, elements, buffer.dtype};
      for (std::int64_t k = 0; buffer.seed != 0 && k < elements; ++k) {
        block->set_element(view, k, seeded_value(buffer.seed, frame * elements + k));
      }
    }
  }
}

/// A collective between a whole tensor (spread over all members) and the shard a member owns.
struct Spread {
  View whole, shard;
  SlotId slot{};
};

/// Where `place` is owned after a reduce-scatter into (or before an all-gather from) a shard:
/// nothing if it lies in another member's part.
std::optional<Place> owned(const World& world, const RankState& rank, Place place,
                           const std::vector<Spread>& spreads) {
  for (const Spread& spread : spreads) {
    const View& whole = spread.whole;
    if (whole.buffer != place.buffer || (whole.rows > 1 && whole.ld != whole.cols)) continue;
    const std::int64_t size = element_bytes(whole.dtype);
    const std::int64_t index = place.byte / size - whole.offset;
    if (index < 0 || index >= whole.elements()) continue;
    const std::int64_t shard = spread.shard.elements();
    if (index / shard != world.member(rank, spread.slot)) return std::nullopt;
    const std::int64_t element = element_index(spread.shard, index % shard);
    return Place{spread.shard.buffer, element * element_bytes(spread.shard.dtype)};
  }
  return place;
}

/// Where a rank keeps element `index` of a parameter's view; nothing if another rank does.
std::optional<Place> home(const World& world, const RankState& rank, const View& view,
                          std::int64_t index, SlotId shards, const std::vector<Spread>& spreads) {
  const auto element = in_shard(world, rank, view, index, shards);
  if (!element) return std::nullopt;
  return owned(world, rank, {view.buffer, *element * element_bytes(view.dtype)}, spreads);
}

/// The call of `kind` that writes `buffer`.
const Call* writer(const World& world, const std::vector<CallId>& calls, OpKind kind,
                   BufferId buffer) {
  for (const CallId id : calls) {
    const Call& call = world.plan.calls[id.value];
    if (call.op.kind == kind && call.writes.at(0).buffer == buffer) return &call;
  }
  return nullptr;
}

/// A reduce-scatter of payloads: what is encoded, exchanged, and decoded to a part of its own.
std::vector<Spread> coded_scatters(const World& world, const std::vector<CallId>& calls) {
  std::vector<Spread> spreads;
  for (const CallId id : calls) {
    const Call& decode = world.plan.calls[id.value];
    if (decode.op.kind != OpKind::Decode) continue;
    const Call* sent = writer(world, calls, OpKind::AllToAll, decode.reads[0].buffer);
    if (sent == nullptr) continue;
    const Call* encode = writer(world, calls, OpKind::Encode, sent->reads[0].buffer);
    if (encode == nullptr) continue;
    const View& whole = encode->reads[0];
    // An all-reduce of two steps ends in the whole.
    if (writer(world, calls, OpKind::Decode, whole.buffer) != nullptr) continue;
    spreads.push_back({whole, decode.writes[0], sent->op.slot});
  }
  return spreads;
}

std::vector<Spread> spreads_of(const World& world, const RankState& rank, OpKind kind) {
  const std::vector<CallId> calls = calls_of(world.plan.program_of(rank.id));
  std::vector<Spread> spreads;
  if (kind == OpKind::ReduceScatter) spreads = coded_scatters(world, calls);
  for (CallId id : calls) {
    const Call& call = world.plan.calls[id.value];
    if (call.op.kind != kind || call.reads.empty() || call.writes.empty()) continue;
    const bool scatter = kind == OpKind::ReduceScatter;
    spreads.push_back({scatter ? call.reads[0] : call.writes[0],
                       scatter ? call.writes[0] : call.reads[0], call.op.slot});
  }
  return spreads;
}

/// The communicator over which a rank's sums of squares are added; none if they are not.
CommunicatorId norm_group(const World& world, const RankState& rank) {
  const auto calls = calls_of(world.plan.program_of(rank.id));
  for (CallId sum : calls) {
    const Call& squares = world.plan.calls[sum.value];
    if (squares.op.kind != OpKind::SumOfSquares) continue;
    for (CallId id : calls) {
      const Call& call = world.plan.calls[id.value];
      if (call.op.kind == OpKind::AllReduce &&
          call.reads.at(0).buffer == squares.writes.at(0).buffer) {
        return world.plan.communicator(rank.id, call.op.slot);
      }
    }
  }
  return {};
}

/// Writes a rank's copy of an element into the global tensor; copies of several ranks must agree.
void place_element(Tensor& tensor, std::vector<bool>& filled, std::int64_t at, double value,
                   const std::string& what) {
  if (std::isnan(value)) throw Fault(what + " ends as a value that was never written");
  if (!filled[at]) {
    tensor.values[at] = value;
    filled[at] = true;
    return;
  }
  const double other = tensor.values[at];
  if (std::abs(value - other) > 1e-9 * (1.0 + std::max(std::abs(value), std::abs(other)))) {
    throw Fault("replicas of " + what + " disagree at element " + std::to_string(at) + ": " +
                std::to_string(other) + " and " + std::to_string(value));
  }
}

/// Collects the global tensors of one kind (gradients or weights) over all ranks.
class Assembly {
 public:
  void add(const World& world, const RankState& rank, const Parameter& parameter, const View& view,
           SlotId shards, const std::vector<Spread>& spreads, const std::string& what) {
    const Cut cut(world, rank, parameter);
    Tensor& tensor = tensors[parameter.name];
    std::vector<bool>& filled = filled_[parameter.name];
    if (tensor.values.empty()) {
      tensor = {cut.rows(), cut.cols(), {}};
      tensor.values.resize(static_cast<std::size_t>(cut.rows() * cut.cols()));
      filled.resize(tensor.values.size());
    }
    if (tensor.rows != cut.rows() || tensor.cols != cut.cols()) {
      throw Fault("ranks differ on the shape of " + parameter.name);
    }
    for (std::int64_t k = 0; k < view.elements(); ++k) {
      const auto place = home(world, rank, view, k, shards, spreads);
      if (!place) continue;
      const auto block = block_of(rank, world, place->buffer);
      if (!block) throw Fault(what + parameter.name + " lies in a buffer that never lived");
      const std::int64_t row = cut.row(k / parameter.cols), column = cut.column(k % parameter.cols);
      place_element(tensor, filled, row * tensor.cols + column, block->at_byte(place->byte),
                    what + parameter.name);
    }
  }
  void check_complete(const std::string& what) const {
    for (const auto& [name, filled] : filled_) {
      if (std::find(filled.begin(), filled.end(), false) != filled.end()) {
        throw Fault("no rank holds some elements of " + what + name);
      }
    }
  }

  std::map<std::string, Tensor> tensors;

 private:
  std::map<std::string, std::vector<bool>> filled_;
};

}  // namespace

void set_initial_values(World& world) {
  constexpr int kRounds =
      3;  // gathered weight <- weight shard <- master, in any order of the calls
  for (RankState& rank : world.ranks) {
    create_persistent(world, rank);
    fill_inputs(world, rank);
    Known known;
    fill_parameters(world, rank, known);
    const auto calls = calls_of(world.plan.program_of(rank.id));
    for (int round = 0; round < kRounds; ++round) {
      for (CallId id : calls) inherit_along(world, rank, known, world.plan.calls[id.value]);
    }
  }
}

void share_out_norm(World& world) {
  using Element = std::tuple<std::uint32_t, std::string, std::int64_t, std::int64_t>;
  std::set<Element> counted;  // communicator, parameter, global row and column
  for (const Communicator& group : world.plan.communicators) {
    for (const RankId id : group.members) {
      RankState& rank = world.ranks.at(id.value);
      const CommunicatorId own = norm_group(world, rank);
      if (!own.valid() || &world.plan.communicators[own.value] != &group) continue;
      const auto scatters = spreads_of(world, rank, OpKind::ReduceScatter);
      for (const Parameter& parameter : world.plan.program_of(rank.id).parameters) {
        const Cut cut(world, rank, parameter);
        const View& view = parameter.gradient;
        for (std::int64_t k = 0; view.buffer.valid() && k < view.elements(); ++k) {
          const auto place = home(world, rank, view, k, parameter.gradient_shards, scatters);
          const Element element{own.value, parameter.name, cut.row(k / parameter.cols),
                                cut.column(k % parameter.cols)};
          if (place && !counted.insert(element).second) rank.counted_elsewhere.insert(*place);
        }
      }
    }
  }
}

/// Sum over data- and context-parallel ranks; ranks that share their tokens hold copies of one
/// loss.
double total_loss(const World& world) {
  std::map<std::pair<std::int64_t, std::int64_t>, double> by_data;
  for (const RankState& rank : world.ranks) {
    const Program& program = world.plan.program_of(rank.id);
    if (!program.loss.valid()) continue;
    std::pair<std::int64_t, std::int64_t> data{0, 0};
    for (const Input& input : program.inputs) {
      if (!input.targets) continue;
      data = {world.data_index(rank, input), world.member(rank, input.cp_slot)};
    }
    const double loss = block_of(rank, world, program.loss)->at_byte(0);
    const auto [found, added] = by_data.try_emplace(data, loss);
    if (!added && std::abs(found->second - loss) > 1e-9 * (1.0 + std::abs(loss))) {
      throw Fault("ranks that share their data disagree on the loss");
    }
  }
  double total = 0.0;
  for (const auto& [data, loss] : by_data) total += loss;
  return total;
}

Results read_out(const World& world) {
  Results results;
  results.loss = total_loss(world);
  Assembly gradients, weights;
  for (const RankState& rank : world.ranks) {
    const auto scatters = spreads_of(world, rank, OpKind::ReduceScatter);
    const auto gathers = spreads_of(world, rank, OpKind::AllGather);
    for (const Parameter& parameter : world.plan.program_of(rank.id).parameters) {
      if (parameter.gradient.buffer.valid() && world.options.gradients) {
        gradients.add(world, rank, parameter, parameter.gradient, parameter.gradient_shards,
                      scatters, "the gradient of ");
      }
      weights.add(world, rank, parameter, parameter.weight, parameter.weight_shards, gathers,
                  "the weight ");
    }
    for (const auto& [key, stay] : rank.live) {
      const Buffer& buffer = world.plan.buffers[key.first];
      if (!buffer.persistent) continue;
      const std::int64_t elements = buffer.bytes.value * 8 / bits(buffer.dtype);
      const View view{BufferId(key.first), 0, 1, elements, elements, buffer.dtype};
      auto& values = results.buffers[{rank.id.value, buffer.name, buffer.framed ? key.second : 0}];
      for (std::int64_t k = 0; k < elements; ++k) values.push_back(stay->block->element(view, k));
    }
  }
  gradients.check_complete("the gradient of ");
  weights.check_complete("the weight ");
  results.gradients = std::move(gradients.tensors);
  results.weights = std::move(weights.tensors);
  return results;
}

World initial_world(const Plan& plan, const InterpretOptions& options) {
  World world{plan, options, {}, {}, {}};
  for (std::uint32_t r = 0; r < plan.ranks.size(); ++r) {
    RankState rank;
    rank.id = RankId(r);
    world.ranks.push_back(std::move(rank));
  }
  set_initial_values(world);
  share_out_norm(world);
  return world;
}

Work work_of(const World& world, const RankState& rank, const Op& op, int body) {
  return {.op = op,
          .reads = {},
          .writes = {},
          .member = world.member(rank, op.slot),
          .members = world.members(rank, op.slot),
          .step = body + 1,
          .options = world.options,
          .cp_member = world.member(rank, op.cp_slot),
          .cp_members = world.members(rank, op.cp_slot)};
}

}  // namespace interpreted
}  // namespace gputwin
