#include "sim/engine/reference_executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <tuple>
#include <utility>

#include "sim/core/check.h"
#include "sim/engine/jitter.h"
#include "sim/engine/reference_run.h"

namespace gputwin {

Bytes transfer_bytes(const Call& call) {
  Bytes read{}, written{};
  for (const View& v : call.reads) read += v.bytes();
  for (const View& v : call.writes) written += v.bytes();
  const Bytes larger = std::max(read, written);
  if (larger.value > 0) return larger;
  return Bytes((call.op.dims[0] * bits(call.op.dtype) + 7) / 8);
}

namespace reference {

Run::Run(const Plan& plan, const CostModel& costs, const Topology& topology,
         const RunOptions& options, EventSink* sink)
    : plan_(plan),
      costs_(costs),
      topology_(topology),
      sink_(sink),
      time_limit_s_(options.time_limit_s),
      bodies_wanted_(plan.crosses_iterations() ? kMaxBodies : 1) {
  open_.assign(static_cast<std::size_t>(bodies_wanted_),
               static_cast<std::int64_t>(plan.ranks.size()));
  for (const Rank& rank : plan.ranks) {
    const DeviceKindId device = topology.device_kind(rank.gpu);
    host_costs_.push_back(costs.host(device));
    if (plan.cuda_graph) {
      host_costs_.back() = {.queue_depth = host_costs_.back().queue_depth};
    }
    slowdowns_.push_back(costs.interference(device).compute_slowdown);
    RankState state;
    state.program = &plan.programs[rank.program.value];
    state.streams.resize(state.program->streams.size());
    state.latest.assign(state.program->events, kNoRecord);
    state.previous = state.latest;
    state.body_end.assign(open_.size(), 0);
    ranks_.push_back(std::move(state));
  }
}

ExecutionOutcome Run::run() {
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    calendar_.at(0, [this, r] { advance_host(RankId(r)); });
  }
  for (std::uint64_t steps = 1; !stop_ && !calendar_.empty(); ++steps) {
    calendar_.step();
    if (steps % 4096 == 0 && cancelled()) return Cancelled{};
  }
  if (!stop_ && !plan_.ranks.empty()) return deadlock();
  return execution();
}

bool Run::cancelled() const {
  const double all = static_cast<double>(plan_.tasks_per_body()) * bodies_wanted_;
  if (sink_ && !sink_->progress(std::min(1.0, static_cast<double>(stats_.tasks) / all)))
    return true;
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began_;
  return time_limit_s_ > 0 && spent.count() > time_limit_s_;
}

// ---- host ---------------------------------------------------------------------------------------

void Run::advance_host(RankId r) {
  RankState& rank = ranks_[r.value];
  const auto prologue = static_cast<std::uint32_t>(rank.program->prologue.size());
  const auto all = static_cast<std::uint32_t>(prologue + rank.program->body.size());
  while (!stop_ && !rank.host_done) {
    if (rank.host_launching || rank.host_waits_for || rank.host_waits_for_room) return;
    const std::uint32_t border = rank.body < 0 ? prologue : all;
    if (rank.next == border) {
      if (!next_body(r)) return;
      continue;
    }
    const Instruction& instruction = rank.next < prologue
                                         ? rank.program->prologue[rank.next]
                                         : rank.program->body[rank.next - prologue];
    if (!issue(r, instruction)) return;
    ++stats_.instructions;
    ++rank.next;
  }
}

/// Steps over the border of the prologue or of a body. False: the host has nothing left to do.
bool Run::next_body(RankId r) {
  RankState& rank = ranks_[r.value];
  const int left = rank.body++;
  rank.next = static_cast<std::uint32_t>(rank.program->prologue.size());
  rank.previous = rank.latest;
  rank.host_done = rank.body == bodies_wanted_;
  if (left >= 0) body_left(left);
  return !rank.host_done;
}

/// Issues one instruction at the current time. False: the host cannot, or is busy with it from now
/// on.
bool Run::issue(RankId r, const Instruction& instruction) {
  RankState& rank = ranks_[r.value];
  switch (instruction.kind) {
    case Kind::Alloc:
    case Kind::Free: return true;
    case Kind::Record: {
      Issued record{.instruction = &instruction};
      record.record = static_cast<std::uint32_t>(rank.records.size());
      rank.records.push_back(false);
      rank.latest[instruction.event] = record.record;
      rank.streams[instruction.stream].queue.push_back({record});
      advance_stream(r, instruction.stream);
      return true;
    }
    case Kind::Wait: {
      Issued wait{.instruction = &instruction};
      const bool previous = (instruction.flags & kPreviousBody) != 0;
      wait.record = (previous ? rank.previous : rank.latest)[instruction.event];
      rank.streams[instruction.stream].queue.push_back({wait});
      advance_stream(r, instruction.stream);
      return true;
    }
    case Kind::HostWait: {
      const bool previous = (instruction.flags & kPreviousBody) != 0;
      const std::uint32_t record = (previous ? rank.previous : rank.latest)[instruction.event];
      rank.host_waited = true;
      if (record == kNoRecord || rank.records[record]) return true;
      rank.host_waits_for = record;
      return false;
    }
    case Kind::Kernel:
    case Kind::Collective:
    case Kind::Send:
    case Kind::Recv:
    case Kind::Copy:
    case Kind::HostTask: break;
  }
  if (static_cast<int>(rank.over.size()) >= host_costs_[r.value].queue_depth) {
    rank.host_waits_for_room = true;
    return false;
  }
  launch(r, instruction);
  return false;
}

void Run::launch(RankId r, const Instruction& instruction) {
  RankState& rank = ranks_[r.value];
  const HostCost& cost = host_costs_[r.value];
  const bool communicates = instruction.kind == Kind::Collective ||
                            instruction.kind == Kind::Send || instruction.kind == Kind::Recv;
  Issued task{.instruction = &instruction};
  task.position = rank.next;
  task.body = rank.body;
  task.issuing = calendar_.now();
  const Ps launches = communicates ? 1 : plan_.call(instruction).op.launches;
  task.issued = task.issuing + (std::exchange(rank.host_waited, false) ? to_ps(cost.resume) : 0) +
                launches * to_ps(communicates ? cost.collective_launch : cost.launch);
  if (communicates) task.sequence = take_sequence(r, instruction);
  if (task.body >= 0) ++open_[static_cast<std::size_t>(task.body)];
  task.number = rank.freed + rank.over.size();
  rank.over.push_back(false);
  rank.host_launching = true;
  if (task.issued == calendar_.now()) return launched(r, task);
  calendar_.at(task.issued, [this, r, task] { launched(r, task); });
}

void Run::launched(RankId r, Issued task) {
  RankState& rank = ranks_[r.value];
  const std::uint8_t stream = task.instruction->stream;
  const bool grouped =
      (task.instruction->flags & kGrouped) != 0 &&
      (task.instruction->kind == Kind::Send || task.instruction->kind == Kind::Recv);
  rank.host_launching = false;
  rank.group.push_back(task);
  const bool complete = !grouped || !in_group_with_next(r);
  ++stats_.instructions;
  ++rank.next;
  if (complete) {
    rank.streams[stream].queue.push_back(std::move(rank.group));
    rank.group.clear();
    advance_stream(r, stream);
  }
  // Through the calendar, not by a call: a body of many free launches would nest as many calls.
  calendar_.at(calendar_.now(), [this, r] { advance_host(r); });
}

/// True if the instruction after the next one to issue belongs to the same group of Sends and
/// Recvs.
bool Run::in_group_with_next(RankId r) const {
  const RankState& rank = ranks_[r.value];
  const auto& part = rank.body < 0 ? rank.program->prologue : rank.program->body;
  const std::size_t at = rank.body < 0 ? rank.next : rank.next - rank.program->prologue.size();
  if (at + 1 >= part.size()) return false;
  const Instruction& a = part[at];
  const Instruction& b = part[at + 1];
  return (b.kind == Kind::Send || b.kind == Kind::Recv) && (b.flags & kGrouped) != 0 &&
         a.stream == b.stream;
}

std::uint32_t Run::take_sequence(RankId r, const Instruction& instruction) {
  RankState& rank = ranks_[r.value];
  const SlotId slot = plan_.call(instruction).op.slot;
  if (instruction.kind == Kind::Collective) {
    return rank.collectives[plan_.communicator(r, slot).value]++;
  }
  const std::uint32_t peer = plan_.peer(r, slot).value;
  return instruction.kind == Kind::Send ? rank.pairs[{r.value, peer}]++
                                        : rank.pairs[{peer, r.value}]++;
}

// ---- streams ------------------------------------------------------------------------------------

void Run::advance_stream(RankId r, std::uint8_t s) {
  RankState& rank = ranks_[r.value];
  StreamState& stream = rank.streams[s];
  while (!stream.busy && !stream.queue.empty()) {
    const Issued front = stream.queue.front().front();
    if (front.instruction->kind == Kind::Record) {
      stream.queue.pop_front();
      happen(r, front.record);
    } else if (front.instruction->kind == Kind::Wait) {
      if (front.record != kNoRecord && !rank.records[front.record]) return;
      stream.queue.pop_front();
    } else {
      stream.busy = true;
      start(r, s);
    }
  }
}

void Run::start(RankId r, std::uint8_t s) {
  StreamItem& item = ranks_[r.value].streams[s].queue.front();
  for (Issued& task : item) task.arrived = task.start = calendar_.now();
  switch (item.front().instruction->kind) {
    case Kind::Kernel:
    case Kind::HostTask: return start_kernel(r, s, item.front());
    case Kind::Copy: return start_copy(r, s, item.front());
    case Kind::Collective: return join_collective(r, s, item.front());
    case Kind::Send:
    case Kind::Recv: {
      ranks_[r.value].streams[s].transfers = static_cast<int>(item.size());
      // A copy, since the last transfer may complete the item at once.
      const StreamItem tasks = item;
      for (const Issued& task : tasks) join_transfer(r, s, task);
      return;
    }
    case Kind::Alloc:
    case Kind::Free:
    case Kind::Record:
    case Kind::Wait:
    case Kind::HostWait: break;
  }
  GPUTWIN_CHECK(false, "only tasks start");
}

void Run::start_kernel(RankId r, std::uint8_t s, Issued& task) {
  RankState& rank = ranks_[r.value];
  const auto left = static_cast<double>(kernel_time(r, task));
  rank.kernels.push_back({.stream = s, .left = left, .since = calendar_.now()});
  schedule_kernel_end(r, s);
}

void Run::start_copy(RankId r, std::uint8_t s, const Issued& task) {
  const Op& op = plan_.call(*task.instruction).op;
  const GpuId gpu = plan_.ranks[r.value].gpu;
  const Bytes bytes = transfer_bytes(plan_.call(*task.instruction));
  const Cost cost = costs_.copy(op.copy, bytes, op.pinned, gpu);
  const Route route = topology_.copy_route(gpu, op.copy);
  Seconds moving = cost.time - cost.term(Term::StartUp);
  for (const LinkId link : route) moving = std::max(moving, bytes / topology_.link(link).capacity);
  const Ps begin = calendar_.now() + to_ps(cost.term(Term::StartUp));
  const Ps end = begin + to_ps(moving);
  ++stats_.flows;
  calendar_.at(end, [this, r, s, bytes, route, begin, end] {
    if (sink_) sink_->flow(r, r, bytes, route, begin, end);
    finish_item(r, s);
  });
}

void Run::join_collective(RankId r, std::uint8_t s, const Issued& task) {
  const Call& call = plan_.call(*task.instruction);
  const CommunicatorId communicator = plan_.communicator(r, call.op.slot);
  const std::vector<RankId>& members = plan_.communicators[communicator.value].members;
  const std::pair key(communicator.value, task.sequence);
  Rendezvous& gathering = collectives_[key];
  gathering.arrived.emplace_back(r, s);
  if (gathering.arrived.size() < members.size()) return;
  const auto arrived = gathering.arrived;
  collectives_.erase(key);
  const OpKind kind = call.op.kind;
  const Bytes bytes = transfer_bytes(call);
  const Ps begin = calendar_.now(), end = begin + collective_time(kind, bytes, members);
  for (const auto& [member, stream] : arrived) {
    ranks_[member.value].streams[stream].queue.front().front().start = begin;
    change_active_collectives(member, +1);
  }
  calendar_.at(end, [this, arrived, kind, bytes, &members, begin, end] {
    report_flows(kind, bytes, members, begin, end);
    for (const auto& [member, stream] : arrived) change_active_collectives(member, -1);
    for (const auto& [member, stream] : arrived) finish_item(member, stream);
  });
}

void Run::join_transfer(RankId r, std::uint8_t s, const Issued& task) {
  const Call& call = plan_.call(*task.instruction);
  const RankId peer = plan_.peer(r, call.op.slot);
  const bool sends = task.instruction->kind == Kind::Send;
  const RankId from = sends ? r : peer, to = sends ? peer : r;
  const std::tuple key(from.value, to.value, task.sequence);
  Rendezvous& gathering = transfers_[key];
  gathering.arrived.emplace_back(r, s);
  if (gathering.arrived.size() < 2) return;
  const auto arrived = gathering.arrived;
  transfers_.erase(key);
  const std::vector<RankId> pair{from, to};
  const Bytes bytes = transfer_bytes(call);
  const Ps begin = calendar_.now(), end = begin + collective_time(OpKind::SendTo, bytes, pair);
  // A group starts with its last transfer: until then it waits for a peer, which is no exposed
  // communication.
  for (const auto& [rank, stream] : arrived) {
    for (Issued& each : ranks_[rank.value].streams[stream].queue.front()) each.start = begin;
  }
  calendar_.at(end, [this, arrived, pair, bytes, begin, end] {
    report_flows(OpKind::SendTo, bytes, pair, begin, end);
    for (const auto& [rank, stream] : arrived) {
      if (--ranks_[rank.value].streams[stream].transfers == 0) finish_item(rank, stream);
    }
  });
}

void Run::finish_item(RankId r, std::uint8_t s) {
  RankState& rank = ranks_[r.value];
  const StreamItem item = std::move(rank.streams[s].queue.front());
  rank.streams[s].queue.pop_front();
  rank.streams[s].busy = false;
  for (const Issued& task : item) finish_task(r, task);
  if (rank.host_waits_for_room) {
    rank.host_waits_for_room = false;
    calendar_.at(calendar_.now(), [this, r] { advance_host(r); });
  }
  advance_stream(r, s);
}

void Run::finish_task(RankId r, const Issued& task) {
  RankState& rank = ranks_[r.value];
  const Ps now = calendar_.now();
  rank.over[task.number - rank.freed] = true;
  for (; !rank.over.empty() && rank.over.front(); ++rank.freed) rank.over.pop_front();
  ++stats_.tasks;
  if (task.body >= 0) rank.body_end[static_cast<std::size_t>(task.body)] = now;
  rank.intervals.push_back({task.start, now, part_of(r, *task.instruction)});
  // The device had to wait for the host exactly when a stream was free for a task as it was issued.
  if (task.arrived == task.issued) {
    rank.intervals.push_back({task.issuing, task.issued, Part::Host});
  }
  if (sink_) {
    const auto body = static_cast<std::uint32_t>(std::max(task.body, 0));
    sink_->op({r, task.instruction, body, task.start, now});
  }
  if (task.body >= 0) body_left(task.body);
}

void Run::happen(RankId r, std::uint32_t record) {
  RankState& rank = ranks_[r.value];
  rank.records[record] = true;
  if (rank.host_waits_for == record) {
    rank.host_waits_for.reset();
    ++stats_.instructions;
    ++rank.next;
    calendar_.at(calendar_.now(), [this, r] { advance_host(r); });
  }
  for (std::uint32_t s = 0; s < rank.streams.size(); ++s) {
    const auto& queue = rank.streams[s].queue;
    if (queue.empty() || rank.streams[s].busy) continue;
    const Issued& front = queue.front().front();
    if (front.instruction->kind == Kind::Wait && front.record == record) {
      calendar_.at(calendar_.now(),
                   [this, r, s] { advance_stream(r, static_cast<std::uint8_t>(s)); });
    }
  }
}

// ---- interference -------------------------------------------------------------------------------

double Run::kernel_speed(RankId r, std::uint8_t s) const {
  const RankState& rank = ranks_[r.value];
  const bool slowed =
      rank.active_collectives > 0 && rank.program->streams[s].kind == StreamKind::Compute;
  return slowed ? 1.0 / slowdowns_[r.value] : 1.0;
}

void Run::change_active_collectives(RankId r, int by) {
  RankState& rank = ranks_[r.value];
  const bool switches = std::min(rank.active_collectives, rank.active_collectives + by) == 0;
  if (!switches || slowdowns_[r.value] == 1.0) {
    rank.active_collectives += by;
    return;
  }
  const Ps now = calendar_.now();
  for (RunningKernel& kernel : rank.kernels) {
    kernel.left -= static_cast<double>(now - kernel.since) * kernel_speed(r, kernel.stream);
    kernel.since = now;
  }
  rank.active_collectives += by;
  for (std::size_t k = 0; k < rank.kernels.size(); ++k)
    schedule_kernel_end(r, rank.kernels[k].stream);
}

/// Enters the end of the kernel on stream `s` at its present speed; an entry made before counts no
/// more.
void Run::schedule_kernel_end(RankId r, std::uint8_t s) {
  std::vector<RunningKernel>& kernels = ranks_[r.value].kernels;
  const auto on_stream = [s](const RunningKernel& k) { return k.stream == s; };
  RunningKernel& kernel = *std::find_if(kernels.begin(), kernels.end(), on_stream);
  const std::uint64_t entry = kernel.entry = next_entry_++;
  const double left = std::max(0.0, kernel.left) / kernel_speed(r, s);
  calendar_.at(calendar_.now() + std::llround(left), [this, r, s, entry] {
    std::vector<RunningKernel>& running = ranks_[r.value].kernels;
    const auto valid = [entry](const RunningKernel& k) { return k.entry == entry; };
    const auto it = std::find_if(running.begin(), running.end(), valid);
    if (it == running.end()) return;
    running.erase(it);
    finish_item(r, s);
  });
}

// ---- costs --------------------------------------------------------------------------------------

Ps Run::kernel_time(RankId r, const Issued& task) const {
  const Call& call = plan_.call(*task.instruction);
  Bytes read{}, written{};
  for (const View& v : call.reads) read += v.bytes();
  for (const View& v : call.writes) written += v.bytes();
  const Rank& rank = plan_.ranks[r.value];
  const Cost cost = costs_.kernel(call.op, read, written, topology_.device_kind(rank.gpu));
  if (task.instruction->kind == Kind::HostTask) return to_ps(cost.time);
  double factor = rank.slowdown * jitter_factor(plan_.jitter, r, task.position);
  if (call.op.load != 0 && call.op.slot.valid()) {
    const CommunicatorId communicator = plan_.communicator(r, call.op.slot);
    const auto member = static_cast<std::size_t>(plan_.member_index(communicator, r));
    factor *= plan_.loads[call.op.load - 1].factor.at(member);
  }
  return to_ps(cost.time * factor);
}

Ps Run::collective_time(OpKind kind, Bytes bytes, const std::vector<RankId>& members) {
  std::vector<GpuId> gpus;
  for (const RankId member : members) gpus.push_back(plan_.ranks[member.value].gpu);
  const std::tuple key(kind, bytes.value, members);
  auto it = schedules_.find(key);
  if (it == schedules_.end()) {
    it = schedules_.emplace(key, costs_.collective(kind, bytes, gpus)).first;
  }
  stats_.flows += static_cast<std::int64_t>(it->second.edges.size());
  return to_ps(closed_form(it->second, gpus, topology_));
}

void Run::report_flows(OpKind kind, Bytes bytes, const std::vector<RankId>& members, Ps start,
                       Ps end) {
  if (!sink_) return;
  const CollectiveSchedule& schedule = schedules_.at({kind, bytes.value, members});
  for (const FlowEdge& edge : schedule.edges) {
    const RankId from = members[edge.from], to = members[edge.to];
    const GpuId a = plan_.ranks[from.value].gpu, b = plan_.ranks[to.value].gpu;
    sink_->flow(from, to, edge.bytes, topology_.route(a, b), start + to_ps(schedule.latency), end);
  }
}

}  // namespace reference

ExecutionOutcome ReferenceExecutor::run(const Plan& plan, const CostModel& costs,
                                        const Topology& topology, const RunOptions& options,
                                        EventSink* sink) {
  return reference::Run(plan, costs, topology, options, sink).run();
}

}  // namespace gputwin
