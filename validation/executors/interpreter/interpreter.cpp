// Hosts, streams, events, matching and memory of the interpreted machine.
#include "validation/executors/interpreter/interpreter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "validation/executors/interpreter/interpreter_state.h"

namespace gputwin {
namespace interpreted {

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

std::int64_t element_bytes(DType dtype) {
  if (bits(dtype) < 8) throw Fault("formats smaller than a byte are not interpreted");
  return bits(dtype) / 8;
}

std::int64_t element_index(const View& view, std::int64_t index) {
  return view.offset + (index / view.cols) * view.ld + index % view.cols;
}

std::int64_t Block::cells(DType dtype) const {
  if (bits(dtype) < cell_bits_) throw Fault("a view of less than bytes of the buffer " + label_);
  return bits(dtype) / cell_bits_;
}

std::size_t Block::at(const View& view, std::int64_t index) const {
  const std::int64_t cell = element_index(view, index) * cells(view.dtype);
  if (cell < 0 || cell + cells(view.dtype) > static_cast<std::int64_t>(cells_.size())) {
    throw Fault("a view leaves its buffer " + label_);
  }
  return static_cast<std::size_t>(cell);
}

void Block::set_element(const View& view, std::int64_t index, double value) {
  const std::size_t first = at(view, index);
  cells_[first] = value;
  for (std::int64_t k = 1; k < cells(view.dtype); ++k) {
    cells_[first + static_cast<std::size_t>(k)] = std::numeric_limits<double>::quiet_NaN();
  }
}

std::vector<double> Block::load(const View& view) const {
  std::vector<double> values(static_cast<std::size_t>(view.elements()));
  for (std::int64_t k = 0; k < view.elements(); ++k) values[k] = element(view, k);
  return values;
}

void Block::store(const View& view, const std::vector<double>& values) {
  for (std::int64_t k = 0; k < view.elements(); ++k) set_element(view, k, values[k]);
}

double Block::at_byte(std::int64_t address) const {
  const double now = cells_.at(static_cast<std::size_t>(address));
  return std::isnan(now) && !given_back_.empty() ? given_back_[static_cast<std::size_t>(address)]
                                                 : now;
}

void Block::give_back() {
  given_back_ = cells_;
  std::fill(cells_.begin(), cells_.end(), std::numeric_limits<double>::quiet_NaN());
}

std::int32_t World::member(const RankState& rank, SlotId slot) const {
  if (!slot.valid()) return 0;
  const auto& group = plan.communicators.at(plan.communicator(rank.id, slot).value).members;
  const auto found = std::find(group.begin(), group.end(), rank.id);
  if (found == group.end()) throw Fault("a rank is no member of its communicator");
  return static_cast<std::int32_t>(found - group.begin());
}

std::int64_t World::members(const RankState& rank, SlotId slot) const {
  if (!slot.valid()) return 1;
  return static_cast<std::int64_t>(
      plan.communicators.at(plan.communicator(rank.id, slot).value).members.size());
}

std::int64_t World::data_index(const RankState& rank, const Input& input) const {
  if (!input.data_slot.valid()) return 0;
  const std::int64_t mine = member(rank, input.cp_slot);
  std::int64_t index = 0;
  for (const RankId id :
       plan.communicators[plan.communicator(rank.id, input.data_slot).value].members) {
    if (id == rank.id) return index;
    if (member(ranks[id.value], input.cp_slot) == mine) ++index;
  }
  throw Fault("a rank is no member of its data communicator");
}

std::string World::describe(const RankState& rank, const Instruction& instruction) const {
  std::string text =
      "rank " + std::to_string(rank.id.value) + " (" + plan.program_of(rank.id).name + ")";
  if (instruction.name < plan.names.size()) {
    const Name& name = plan.names[instruction.name];
    text += " phase " + std::to_string(static_cast<int>(name.phase)) + " layer " +
            std::to_string(name.layer) + " " + name.op;
    if (name.occurrence != 0) text += "#" + std::to_string(name.occurrence);
  }
  if (instruction.event != kNoFrame) text += " @" + std::to_string(instruction.event);
  return text;
}

namespace {

class Machine {
 public:
  explicit Machine(World& world) : world_(world), random_{mix(world.options.seed + 1)} {
    for (RankState& rank : world_.ranks) {
      const Program& program = world_.plan.program_of(rank.id);
      rank.streams.resize(program.streams.size());
      weights_.emplace_back(program.streams.size() + 1);
      settle_host(rank);
    }
  }
  void run() {
    for (std::uint64_t step = 0;; ++step) {
      if (step % kReweigh == 0) redraw_weights();
      if (!move_one()) break;
    }
    for (const RankState& rank : world_.ranks) {
      const bool idle = std::all_of(rank.streams.begin(), rank.streams.end(),
                                    [](const auto& queue) { return queue.empty(); });
      if (!idle || rank.body < world_.options.bodies) throw Fault("deadlock: " + waiting());
    }
  }

 private:
  static constexpr std::uint64_t kReweigh = 48;  // steps between new speeds of hosts and streams
  static constexpr std::uint32_t kHost = 0xffffffffu;

  // ---- choice ----
  void redraw_weights() {
    for (auto& of_rank : weights_) {
      for (auto& weight : of_rank) weight = std::uint64_t{1} << (3 * random_.below(5));
    }
  }
  std::uint64_t& weight(std::uint32_t rank, std::uint32_t stream) {
    auto& of_rank = weights_[rank];
    return stream == kHost ? of_rank.back() : of_rank[stream];
  }
  bool move_one() {
    candidates_.clear();
    std::uint64_t total = 0;
    const auto offer = [&](const RankState& rank, std::uint32_t stream) {
      total += weight(rank.id.value, stream);
      candidates_.push_back({rank.id.value, stream});
    };
    for (const RankState& rank : world_.ranks) {
      if (host_ready(rank)) offer(rank, kHost);
      for (std::uint32_t s = 0; s < rank.streams.size(); ++s) {
        if (!rank.streams[s].empty() && head_ready(rank, s)) offer(rank, s);
      }
    }
    if (candidates_.empty()) return false;
    std::uint64_t draw = random_.below(total);
    for (const auto& [rank, stream] : candidates_) {
      if (draw < weight(rank, stream)) {
        if (stream == kHost)
          issue(world_.ranks[rank]);
        else
          run_head(world_.ranks[rank], stream);
        return true;
      }
      draw -= weight(rank, stream);
    }
    return false;
  }

  // ---- host ----
  const std::vector<Instruction>& list(const RankState& rank) const {
    const Program& program = world_.plan.program_of(rank.id);
    return rank.body < 0 ? program.prologue : program.body;
  }
  /// Steps over ends of prologue and bodies until an instruction is next or all bodies are issued.
  void settle_host(RankState& rank) {
    while (rank.body < world_.options.bodies && rank.next == list(rank).size()) {
      rank.next = 0;
      ++rank.body;
      rank.previous_events = rank.events;
    }
  }
  bool host_ready(const RankState& rank) {
    if (rank.body >= world_.options.bodies) return false;
    if (rank.next == 0 && !crosses_ && !ended_before(rank.body)) return false;
    const Instruction& next = list(rank)[rank.next];
    return next.kind != Kind::HostWait || awaited(rank, next)->done;
  }
  /// True if every rank has issued and finished all that comes before a body.
  bool ended_before(int body) const {
    for (const RankState& rank : world_.ranks) {
      if (rank.body < body) return false;
      for (const auto& queue : rank.streams) {
        if (!queue.empty() && queue.front().body < body) return false;
      }
    }
    return true;
  }
  std::shared_ptr<Token> awaited(const RankState& rank, const Instruction& instruction) const {
    const auto& events = instruction.flags & kPreviousBody ? rank.previous_events : rank.events;
    const auto found = events.find(instruction.event);
    if (found == events.end()) {
      throw Fault(world_.describe(rank, instruction) + ": a Wait without an earlier Record");
    }
    return found->second;
  }
  void issue(RankState& rank) {
    const Instruction instruction = list(rank)[rank.next];
    Item item;
    item.instruction = instruction;
    item.body = rank.body;
    switch (instruction.kind) {
      case Kind::Kernel:
      case Kind::Copy:
      case Kind::HostTask: resolve(rank, item); break;
      case Kind::Collective: issue_collective(rank, item); break;
      case Kind::Send:
      case Kind::Recv: issue_transfers(rank, item); break;
      case Kind::Alloc: allocate(rank, instruction); break;
      case Kind::Free: release(rank, instruction); break;
      case Kind::Record:
        item.kind = Item::Kind::Record;
        item.token = rank.events[instruction.event] = std::make_shared<Token>();
        break;
      case Kind::Wait:
        item.kind = Item::Kind::Wait;
        item.token = awaited(rank, instruction);
        break;
      case Kind::HostWait: break;
    }
    const bool queued = is_task(instruction.kind) || item.token;
    if (queued) push(rank, instruction.stream, std::move(item));
    ++rank.next;
    settle_host(rank);
  }
  Operand operand(RankState& rank, const Instruction& instruction, const View& view) {
    const Buffer& buffer = world_.plan.buffers.at(view.buffer.value);
    const InstanceKey key{view.buffer.value, buffer.framed ? instruction.event : kNoFrame};
    const auto found = rank.live.find(key);
    if (found == rank.live.end()) {
      throw Fault(world_.describe(rank, instruction) + " uses " + buffer.name +
                  ", which is not allocated");
    }
    ++found->second->pending;
    return {found->second, view};
  }
  void resolve(RankState& rank, Item& item) {
    Call own;
    const Call& call = placed(world_.plan, rank.id, world_.plan.call(item.instruction), own);
    for (const View& view : call.reads) item.reads.push_back(operand(rank, item.instruction, view));
    for (const View& view : call.writes)
      item.writes.push_back(operand(rank, item.instruction, view));
  }
  void issue_collective(RankState& rank, Item& item) {
    resolve(rank, item);
    item.kind = Item::Kind::Collective;
    item.communicator =
        world_.plan.communicator(rank.id, world_.plan.call(item.instruction).op.slot);
    item.sequence = rank.collective_count[item.communicator.value]++;
    if (item.reads.size() != 1 || item.writes.size() != 1) {
      throw Fault(world_.describe(rank, item.instruction) +
                  ": a collective has one read, one write");
    }
  }
  /// Takes a Send or Recv and, if it is grouped, the grouped ones that follow on the same stream.
  void issue_transfers(RankState& rank, Item& item) {
    item.kind = Item::Kind::Transfers;
    const auto& instructions = list(rank);
    for (;; ++rank.next) {
      const Instruction& one = instructions[rank.next];
      const Call& call = world_.plan.call(one);
      const RankId peer = world_.plan.peer(rank.id, call.op.slot);
      Transfer transfer;
      transfer.send = one.kind == Kind::Send;
      transfer.from = transfer.send ? rank.id : peer;
      transfer.to = transfer.send ? peer : rank.id;
      auto& counts = transfer.send ? rank.sent_count : rank.received_count;
      transfer.sequence = counts[peer.value]++;
      transfer.operand = operand(rank, one, transfer.send ? call.reads.at(0) : call.writes.at(0));
      item.transfers.push_back(transfer);
      if (rank.next + 1 == instructions.size()) break;
      const Instruction& following = instructions[rank.next + 1];
      const bool joins = (one.flags & kGrouped) && (following.flags & kGrouped) &&
                         (following.kind == Kind::Send || following.kind == Kind::Recv) &&
                         following.stream == one.stream;
      if (!joins) break;
    }
  }
  InstanceKey instance(const Instruction& instruction) const {
    const Buffer& buffer = world_.plan.buffers.at(instruction.call);
    return {instruction.call, buffer.framed ? instruction.event : kNoFrame};
  }
  void allocate(RankState& rank, const Instruction& instruction) {
    const Buffer& buffer = world_.plan.buffers.at(instruction.call);
    const InstanceKey key = instance(instruction);
    if (rank.live.count(key)) {
      throw Fault(world_.describe(rank, instruction) + " allocates " + buffer.name + " twice");
    }
    auto& memory = rank.memory[key];
    if (!memory) memory = std::make_shared<Block>(buffer, std::nan(""));
    rank.live[key] = std::make_shared<Stay>(Stay{memory});
  }
  void release(RankState& rank, const Instruction& instruction) {
    const auto found = rank.live.find(instance(instruction));
    if (found == rank.live.end()) {
      throw Fault(world_.describe(rank, instruction) + " frees " +
                  world_.plan.buffers.at(instruction.call).name + ", which is not allocated");
    }
    const auto stay = found->second;
    rank.live.erase(found);
    stay->freed = true;
    if (stay->pending == 0) stay->block->give_back();
  }
  static void let_go(const Operand& operand) {
    Stay& stay = *operand.stay;
    if (--stay.pending == 0 && stay.freed) stay.block->give_back();
  }

  // ---- streams ----
  void push(RankState& rank, std::uint32_t stream, Item item) {
    auto& queue = rank.streams.at(stream);
    queue.push_back(std::move(item));
    if (queue.size() == 1) arrive(rank, stream);
  }
  /// The head of a stream announces itself to those it must meet.
  void arrive(RankState& rank, std::uint32_t stream) {
    const Item& head = rank.streams[stream].front();
    if (head.kind == Item::Kind::Collective) {
      world_.arrived[{head.communicator.value, head.sequence}].push_back({rank.id.value, stream});
    }
    for (std::size_t k = 0; k < head.transfers.size(); ++k) {
      const Transfer& transfer = head.transfers[k];
      Pairing& pairing = world_.pairs[{transfer.from.value, transfer.to.value, transfer.sequence}];
      (transfer.send ? pairing.senders : pairing.receivers).push_back({rank.id.value, stream, k});
    }
  }
  bool head_ready(const RankState& rank, std::uint32_t stream) {
    const Item& head = rank.streams[stream].front();
    switch (head.kind) {
      case Item::Kind::Compute:
      case Item::Kind::Record: return true;
      case Item::Kind::Wait: return head.token->done;
      case Item::Kind::Collective: {
        const auto& here = world_.arrived[{head.communicator.value, head.sequence}];
        return here.size() == world_.plan.communicators[head.communicator.value].members.size() &&
               here.front().rank == rank.id.value;
      }
      case Item::Kind::Transfers: return ready_transfer(head) != nullptr;
    }
    return false;
  }
  const Pairing* ready_transfer(const Item& item) {
    for (const Transfer& transfer : item.transfers) {
      if (transfer.done) continue;
      const Pairing& pairing =
          world_.pairs[{transfer.from.value, transfer.to.value, transfer.sequence}];
      if (!pairing.senders.empty() && !pairing.receivers.empty()) return &pairing;
    }
    return nullptr;
  }
  void finish(RankState& rank, std::uint32_t stream) {
    auto& queue = rank.streams[stream];
    for (const Operand& o : queue.front().reads) let_go(o);
    for (const Operand& o : queue.front().writes) let_go(o);
    queue.pop_front();
    if (!queue.empty()) arrive(rank, stream);
  }
  void run_head(RankState& rank, std::uint32_t stream) {
    Item& head = rank.streams[stream].front();
    switch (head.kind) {
      case Item::Kind::Compute: run_kernel(rank, head); break;
      case Item::Kind::Record: head.token->done = true; break;
      case Item::Kind::Wait: break;
      case Item::Kind::Collective: return run_collective(head);
      case Item::Kind::Transfers: return run_transfer(head);
    }
    finish(rank, stream);
  }
  std::vector<double> load(const RankState& rank, const Instruction& instruction,
                           const Operand& from) const {
    auto values = from.stay->block->load(from.view);
    if (std::any_of(values.begin(), values.end(), [](double v) { return std::isnan(v); })) {
      throw Fault(world_.describe(rank, instruction) + " reads " + from.stay->block->label() +
                  " where nothing was written since its Alloc or before its Free");
    }
    return values;
  }
  void store(const RankState& rank, const Instruction& instruction, const Operand& to,
             const std::vector<double>& values) const {
    if (static_cast<std::int64_t>(values.size()) != to.view.elements()) {
      throw Fault(world_.describe(rank, instruction) + ": sizes of the two sides differ");
    }
    to.stay->block->store(to.view, values);
  }
  static void drop_counted_elsewhere(const RankState& rank, const View& view,
                                     std::vector<double>& values) {
    if (rank.counted_elsewhere.empty()) return;
    for (std::size_t k = 0; k < values.size(); ++k) {
      const std::int64_t index = element_index(view, static_cast<std::int64_t>(k));
      const Place place{view.buffer, index * element_bytes(view.dtype)};
      if (rank.counted_elsewhere.contains(place)) values[k] = 0.0;
    }
  }
  void run_kernel(const RankState& rank, const Item& item) const {
    const Op& op = world_.plan.call(item.instruction).op;
    Work work = work_of(world_, rank, op, item.body);
    for (const Operand& read : item.reads) work.reads.push_back(load(rank, item.instruction, read));
    for (std::size_t k = 0; k < item.writes.size(); ++k) {
      const Operand& write = item.writes[k];
      work.writes.push_back(
          reads_output(op, k, item.writes.size())
              ? load(rank, item.instruction, write)
              : std::vector<double>(static_cast<std::size_t>(write.view.elements())));
    }
    if (op.kind == OpKind::SumOfSquares)
      drop_counted_elsewhere(rank, item.reads[0].view, work.reads[0]);
    try {
      compute(work);
    } catch (const Fault& fault) {
      throw Fault(world_.describe(rank, item.instruction) + ": " + fault.what());
    }
    for (std::size_t k = 0; k < item.writes.size(); ++k) {
      store(rank, item.instruction, item.writes[k], work.writes[k]);
    }
  }
  void run_collective(const Item& one) {
    const auto here = world_.arrived.extract({one.communicator.value, one.sequence}).mapped();
    const auto& members = world_.plan.communicators[one.communicator.value].members;
    std::vector<At> places;
    std::vector<std::vector<double>> reads;
    std::vector<std::int64_t> write_elements;
    const Op& op = world_.plan.call(one.instruction).op;
    for (RankId member : members) {
      const auto at = std::find_if(here.begin(), here.end(),
                                   [&](const At& a) { return a.rank == member.value; });
      if (at == here.end()) throw Fault("a collective is met by ranks that are no members");
      const RankState& rank = world_.ranks[member.value];
      const Item& item = rank.streams[at->stream].front();
      const Op& mine = world_.plan.call(item.instruction).op;
      if (mine.kind != op.kind || mine.dims != op.dims || mine.reduce_max != op.reduce_max) {
        throw Fault(world_.describe(rank, item.instruction) +
                    ": members run different collectives");
      }
      const bool unread = op.kind == OpKind::Broadcast && reads.size() != op.root;
      const auto elements = static_cast<std::size_t>(item.reads[0].view.elements());
      reads.push_back(unread ? std::vector<double>(elements)
                             : load(rank, item.instruction, item.reads[0]));
      write_elements.push_back(item.writes[0].view.elements());
      places.push_back(*at);
    }
    const std::string what = world_.describe(world_.ranks[members[0].value], one.instruction);
    std::vector<std::vector<double>> writes;
    try {
      writes = collect(op, reads, write_elements);
    } catch (const Fault& fault) {
      throw Fault(what + ": " + fault.what());
    }
    for (std::size_t m = 0; m < places.size(); ++m) {
      RankState& rank = world_.ranks[places[m].rank];
      const Item& item = rank.streams[places[m].stream].front();
      store(rank, item.instruction, item.writes[0], writes[m]);
      finish(rank, places[m].stream);
    }
  }
  void run_transfer(const Item& one) {
    const Pairing pairing = *ready_transfer(one);
    const At from = pairing.senders.front(), to = pairing.receivers.front();
    RankState &sender = world_.ranks[from.rank], &receiver = world_.ranks[to.rank];
    Item& send = sender.streams[from.stream].front();
    Item& receive = receiver.streams[to.stream].front();
    Transfer& out = send.transfers[from.transfer];
    Transfer& in = receive.transfers[to.transfer];
    store(receiver, receive.instruction, in.operand, load(sender, send.instruction, out.operand));
    for (Transfer* transfer : {&out, &in}) {
      transfer->done = true;
      let_go(transfer->operand);
    }
    finish_group(sender, from.stream);
    if (from.rank != to.rank || from.stream != to.stream) finish_group(receiver, to.stream);
  }
  void finish_group(RankState& rank, std::uint32_t stream) {
    const auto& transfers = rank.streams[stream].front().transfers;
    const bool all =
        std::all_of(transfers.begin(), transfers.end(), [](const Transfer& t) { return t.done; });
    if (all) finish(rank, stream);
  }
  std::string waiting() const {
    std::string text;
    for (const RankState& rank : world_.ranks) {
      for (const auto& queue : rank.streams) {
        if (!queue.empty()) text += world_.describe(rank, queue.front().instruction) + "; ";
      }
    }
    return text;
  }

  World& world_;
  Random random_;
  bool crosses_ = world_.plan.crosses_iterations();
  std::vector<std::vector<std::uint64_t>> weights_;  // by rank: its streams, then its host
  std::vector<std::pair<std::uint32_t, std::uint32_t>> candidates_;
};

}  // namespace
}  // namespace interpreted

Results interpret(const Plan& plan, const InterpretOptions& options) {
  interpreted::World world = interpreted::initial_world(plan, options);
  interpreted::Machine(world).run();
  return interpreted::read_out(world);
}

Results interpret(const Plan& plan, int bodies, std::uint64_t seed) {
  InterpretOptions options;
  options.bodies = bodies;
  options.seed = seed;
  return interpret(plan, options);
}

}  // namespace gputwin
