#include "tests/support/random_plan.h"

#include <map>
#include <string>

#include "sim/core/plan_builder.h"

namespace gputwin::test {
namespace {

std::uint32_t below(std::uint32_t bound) { return *rc::gen::inRange<std::uint32_t>(0, bound); }
bool one_in(std::uint32_t n) { return below(n) == 0; }

enum Stream : std::uint8_t { kCompute, kComm, kCopies, kCpu };

/// A program under construction.
struct RankDraft {
  Program program;
  std::vector<std::uint32_t> slots;
  std::map<std::uint32_t, SlotId> communicator_slots, peer_slots;
  std::uint8_t streams = 1;  // of compute, communication and copies
  std::vector<std::pair<std::uint32_t, std::uint8_t>> recorded;  // events and their streams
};

class Draft {
 public:
  explicit Draft(Contention contention) : contends_(contention == Contention::Any) {}
  PlanCase draw();

 private:
  void draw_cluster();
  void draw_ranks();
  void draw_communicators();
  void draw_costs();
  void step();
  void kernel(std::uint32_t r);
  void collective();
  void send();
  void exchange();
  void copy(std::uint32_t r);
  void event(std::uint32_t r);
  void cross_iterations(std::uint32_t r, bool at_the_end);
  Instruction task(std::uint32_t r, Kind kind, std::uint8_t stream, Op op);
  void push(std::uint32_t r, const Instruction& instruction) {
    ranks_[r].program.body.push_back(instruction);
  }
  void transfer(std::uint32_t r, Kind kind, std::uint8_t stream, std::uint32_t peer,
                std::int64_t elements, std::uint16_t flags);
  std::uint32_t record(std::uint32_t r, std::uint8_t stream);
  std::uint8_t stream_for(std::uint32_t r, Stream usual);
  std::uint32_t other_than(std::uint32_t r) { return (r + 1 + below(size() - 1)) % size(); }
  std::uint32_t size() const { return static_cast<std::uint32_t>(ranks_.size()); }
  SlotId slot(std::uint32_t r, bool peer, std::uint32_t value);
  std::int64_t elements() { return static_cast<std::int64_t>(1 + below(250)) * 840; }

  bool contends_;
  PlanBuilder builder_;
  PlanCase result_;
  std::vector<RankDraft> ranks_;
  std::vector<std::vector<RankId>> communicators_;
};

void Draft::draw_cluster() {
  SmallCluster shape;
  shape.nodes = one_in(3) ? 1 : 2 + static_cast<std::int32_t>(below(2));
  shape.gpus = shape.nodes == 1 ? 8 : 4;
  shape.nics = shape.gpus;
  if (contends_) {
    const std::int32_t nics[] = {shape.gpus, shape.gpus / 2, 1};
    shape.nics = nics[below(3)];
    shape.oversubscription = one_in(2) ? 4.0 : 1.0;
    shape.gpus_per_switch = one_in(2) ? 2 : 1;
    if (one_in(2)) shape.dram = BytesPerSecond(40e9);
  }
  result_.cluster = small_cluster(shape);
}

void Draft::draw_ranks() {
  ranks_.resize(2 + below(7));
  for (RankDraft& rank : ranks_) {
    rank.streams = static_cast<std::uint8_t>(1 + below(3));
    rank.program.streams = {{"compute", StreamKind::Compute},
                            {"comm", StreamKind::Communication},
                            {"copies", StreamKind::CopyIn},
                            {"cpu", StreamKind::HostCpu}};
  }
}

void Draft::draw_communicators() {
  communicators_.resize(1 + below(4));
  for (std::vector<RankId>& members : communicators_) {
    const std::uint32_t first = below(size()), count = 2 + below(size() - 1);
    for (std::uint32_t i = 0; i < count; ++i) members.emplace_back((first + i) % size());
    builder_.communicator({"c" + std::to_string(&members - communicators_.data()), members});
  }
}

void Draft::draw_costs() {
  TableCostModel& costs = result_.costs;
  costs.latency = Seconds(below(3) * 2e-6);
  costs.copy_start_up = Seconds(below(2) * 3e-6);
  costs.copy_rate = BytesPerSecond(one_in(2) ? 10e9 : 100e9);
  if (one_in(3)) costs.rate_cap = BytesPerSecond(5e9);
  if (one_in(2)) costs.compute_slowdown = 1.25;
  if (one_in(2)) costs.host_cost = {Seconds(2e-6), Seconds(5e-6), Seconds(below(2) * 7e-6), 1024};
  if (one_in(3)) costs.host_cost.queue_depth = 4 + static_cast<std::int32_t>(below(4));
}

SlotId Draft::slot(std::uint32_t r, bool peer, std::uint32_t value) {
  RankDraft& rank = ranks_[r];
  auto& known = peer ? rank.peer_slots : rank.communicator_slots;
  const auto next = SlotId(static_cast<std::uint32_t>(rank.slots.size()));
  const auto [it, is_new] = known.try_emplace(value, next);
  if (is_new) {
    const std::string name = (peer ? "p" : "c") + std::to_string(value);
    rank.program.slots.push_back({name, peer ? Domain::Pp : Domain::Tp, peer});
    rank.slots.push_back(value);
  }
  return it->second;
}

/// Where nothing may contend, a kind of task has its own stream; else any stream of the rank will
/// do.
std::uint8_t Draft::stream_for(std::uint32_t r, Stream usual) {
  if (!contends_) return usual;
  return static_cast<std::uint8_t>(below(ranks_[r].streams));
}

Instruction Draft::task(std::uint32_t r, Kind kind, std::uint8_t stream, Op op) {
  const auto occurrence = static_cast<std::int32_t>(ranks_[r].program.body.size());
  return {.kind = kind,
          .stream = stream,
          .call = builder_.call({op, {}, {}}).value,
          .name = builder_.name({Phase::Forward, 0, "t", occurrence}).value};
}

void Draft::kernel(std::uint32_t r) {
  Op op;
  op.flops = Flops(static_cast<double>(below(40)) * 1e6);  // 0 .. 39 us
  if (one_in(8)) return push(r, task(r, Kind::HostTask, kCpu, op));
  const Stream usual = one_in(4) ? kComm : kCompute;
  push(r, task(r, Kind::Kernel, stream_for(r, usual), op));
}

void Draft::collective() {
  const std::uint32_t c = below(static_cast<std::uint32_t>(communicators_.size()));
  const OpKind kinds[] = {OpKind::AllReduce, OpKind::AllGather, OpKind::ReduceScatter,
                          OpKind::AllToAll, OpKind::Broadcast};
  Op op;
  op.kind = kinds[below(5)];
  op.dims[0] = elements();
  for (const RankId member : communicators_[c]) {
    op.slot = slot(member.value, false, c);
    push(member.value, task(member.value, Kind::Collective, stream_for(member.value, kComm), op));
  }
}

void Draft::transfer(std::uint32_t r, Kind kind, std::uint8_t stream, std::uint32_t peer,
                     std::int64_t elements, std::uint16_t flags) {
  Op op;
  op.kind = kind == Kind::Send ? OpKind::SendTo : OpKind::RecvFrom;
  op.dims[0] = elements;
  op.slot = slot(r, true, peer);
  Instruction instruction = task(r, kind, stream, op);
  instruction.flags = flags;
  push(r, instruction);
}

void Draft::send() {
  const std::uint32_t from = below(size()), to = other_than(from);
  const std::int64_t n = elements();
  transfer(from, Kind::Send, stream_for(from, kComm), to, n, 0);
  transfer(to, Kind::Recv, stream_for(to, kComm), from, n, 0);
}

/// Each of some neighbouring ranks sends to the next, round a ring or along a line, in one group
/// per rank. A Record ends the group, so that two steps never become one.
void Draft::exchange() {
  const std::uint32_t count = 2 + below(size() - 1), first = below(size());
  const bool ring = count > 2 && one_in(2);
  const std::int64_t n = elements();
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t r = (first + i) % size();
    const std::uint32_t next = (first + (i + 1) % count) % size();
    const std::uint32_t previous = (first + (i + count - 1) % count) % size();
    const std::uint8_t stream = stream_for(r, kComm);
    if (ring || i + 1 < count) transfer(r, Kind::Send, stream, next, n, kGrouped);
    if (ring || i > 0) transfer(r, Kind::Recv, stream, previous, n, kGrouped);
    record(r, stream);
  }
}

void Draft::copy(std::uint32_t r) {
  const CopyKind kinds[] = {CopyKind::HostToDevice, CopyKind::DeviceToHost,
                            CopyKind::DeviceToDevice, CopyKind::NvmeToHost, CopyKind::HostToNvme};
  Op op;
  op.kind = OpKind::CopyBytes;
  op.copy = kinds[below(contends_ ? 5 : 3)];  // the NVMe is shared by the node
  op.dims[0] = elements();
  push(r, task(r, Kind::Copy, stream_for(r, kCopies), op));
}

std::uint32_t Draft::record(std::uint32_t r, std::uint8_t stream) {
  const std::uint32_t event = ranks_[r].program.events++;
  push(r, {.kind = Kind::Record, .stream = stream, .event = event});
  ranks_[r].recorded.emplace_back(event, stream);
  return event;
}

void Draft::event(std::uint32_t r) {
  RankDraft& rank = ranks_[r];
  if (rank.recorded.empty() || one_in(2)) {
    record(r, static_cast<std::uint8_t>(below(4)));
    return;
  }
  const auto [event, from] = rank.recorded[below(static_cast<std::uint32_t>(rank.recorded.size()))];
  if (one_in(5)) return push(r, {.kind = Kind::HostWait, .event = event});
  push(r, {.kind = Kind::Wait, .stream = static_cast<std::uint8_t>(below(4)), .event = event});
}

/// Event 0 is recorded in the prologue and at the end of a body, and waited for at the start of the
/// next.
void Draft::cross_iterations(std::uint32_t r, bool at_the_end) {
  const Instruction recorded{.kind = Kind::Record, .stream = kCompute, .event = 0};
  if (at_the_end) return push(r, recorded);
  ranks_[r].program.events = 1;
  ranks_[r].program.prologue.push_back(recorded);
  const std::uint8_t stream = one_in(2) ? kComm : kCopies;
  push(r, {.kind = one_in(4) ? Kind::HostWait : Kind::Wait,
           .stream = stream,
           .flags = kPreviousBody,
           .event = 0});
  if (ranks_[r].program.body.back().kind == Kind::HostWait)
    ranks_[r].program.body.back().stream = 0;
}

void Draft::step() {
  switch (below(12)) {
    case 0:
    case 1:
    case 2: return kernel(below(size()));
    case 3:
    case 4: return collective();
    case 5: return send();
    case 6: return exchange();
    case 7: return copy(below(size()));
    default: return event(below(size()));
  }
}

PlanCase Draft::draw() {
  draw_cluster();
  draw_ranks();
  draw_communicators();
  draw_costs();
  const bool crosses = one_in(4);
  for (std::uint32_t r = 0; crosses && r < size(); ++r) cross_iterations(r, false);
  const std::uint32_t steps = 3 + below(40);
  for (std::uint32_t i = 0; i < steps; ++i) step();
  for (std::uint32_t r = 0; r < size(); ++r) {
    kernel(r);
    if (crosses) cross_iterations(r, true);
  }
  for (std::uint32_t r = 0; r < size(); ++r) {
    ranks_[r].program.name = "p" + std::to_string(r);
    const ProgramId program = builder_.program(std::move(ranks_[r].program));
    builder_.rank({program, GpuId(r), one_in(6) ? 1.2 : 1.0, ranks_[r].slots});
  }
  result_.plan = std::move(builder_).take();
  result_.plan.cuda_graph = one_in(6);
  if (one_in(5)) result_.plan.jitter = {0.05, 7};
  return result_;
}

}  // namespace

rc::Gen<PlanCase> plan_case(Contention contention) {
  return rc::gen::exec([contention] { return Draft(contention).draw(); });
}

PlanCase draw(Contention contention, std::uint64_t seed) {
  return plan_case(contention)(rc::Random(seed), 100).value();
}

}  // namespace gputwin::test
