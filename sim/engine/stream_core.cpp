// Hosts and streams of the stream core; transfers are in stream_core_transfers.cpp, figures in
// stream_core_figures.cpp.
#include "sim/engine/stream_core.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <tuple>

#include "sim/core/check.h"
#include "sim/engine/jitter.h"

namespace gputwin::engine {
namespace {

/// First slots of equal meaning: a pipeline of two stages has one peer in both directions.
std::vector<std::uint32_t> same_slots(const Plan& plan, RankId rank, const Folding& folding) {
  const Program& program = plan.program_of(rank);
  std::vector<std::uint32_t> meaning, first;
  for (std::uint32_t s = 0; s < program.slots.size(); ++s) {
    const std::uint32_t value = plan.ranks[rank.value].slots[s];
    meaning.push_back(program.slots[s].peer ? folding.representative[value].value
                                            : folding.communicator[value].value);
    std::uint32_t same = 0;
    while (meaning[same] != meaning[s] || program.slots[same].peer != program.slots[s].peer) ++same;
    first.push_back(same);
  }
  return first;
}

/// Factors of the load tables on the kernels of `rank`, by table.
std::vector<double> load_factors(const Plan& plan, RankId rank,
                                 const std::vector<SlotId>& slot_of_load) {
  std::vector<double> factors(plan.loads.size(), 1.0);
  const std::size_t slots = plan.ranks[rank.value].slots.size();
  for (std::size_t l = 0; l < factors.size(); ++l) {
    const SlotId slot = slot_of_load[l];
    if (!slot.valid() || slot.value >= slots) continue;
    if (plan.program_of(rank).slots[slot.value].peer) continue;
    const std::int32_t member = plan.member_index(plan.communicator(rank, slot), rank);
    const auto& table = plan.loads[l].factor;
    if (member >= 0) factors[l] = table.at(static_cast<std::size_t>(member));
  }
  return factors;
}

std::vector<SlotId> slots_of_loads(const Plan& plan) {
  std::vector<SlotId> slots(plan.loads.size());
  for (const Call& call : plan.calls) {
    if (call.op.load != 0) slots[call.op.load - 1] = call.op.slot;
  }
  return slots;
}

}  // namespace

StreamCore::StreamCore(const Plan& plan, const CostModel& costs, const Topology& topology,
                       const Folding& folding, const RunOptions& options, EventSink* sink)
    : plan_(plan),
      topology_(topology),
      options_(options),
      sink_(sink),
      calendar_(options.advance == Advance::Calendar),
      all_simgrid_(options.transfers == Transfers::AllSimGrid),
      transfers_(plan, costs, topology, folding),
      participants_(folding.participants),
      bodies_wanted_(plan.crosses_iterations() ? kMaxBodies : 1) {
  compile_programs(costs, folding);
  lay_out_ranks(costs, folding);
  transfers_.finish();
  occupants_.resize(topology.links().size());
  ranks_ended_.assign(bodies_wanted_ + 1, 0);
  body_end_.assign(bodies_wanted_ + 1, 0);
  flows_.assign(bodies_wanted_ + 1, 0);
  simgrid_flows_.assign(bodies_wanted_ + 1, 0);
}

/// Ranks of equal program, device kind, aliases, and factors share a compiled program.
void StreamCore::compile_programs(const CostModel& costs, const Folding& folding) {
  using Variant = std::tuple<std::uint32_t, std::uint32_t, double, std::vector<std::uint32_t>,
                             std::vector<double>>;
  std::map<Variant, const CompiledProgram*> known;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Seconds> times;  // by device kind and call
  const std::vector<SlotId> slot_of_load = slots_of_loads(plan_);
  for (const RankId rank : folding.simulated) {
    const Rank& of = plan_.ranks[rank.value];
    const DeviceKindId device = topology_.device_kind(of.gpu);
    CompileOptions compile_options;
    compile_options.program = of.program;
    compile_options.slots = same_slots(plan_, rank, folding);
    compile_options.slowdown = of.slowdown;
    compile_options.load_factor = load_factors(plan_, rank, slot_of_load);
    const Variant variant(of.program.value, device.value, of.slowdown, compile_options.slots,
                          compile_options.load_factor);
    const CompiledProgram*& program = known[variant];
    if (program == nullptr) {
      compile_options.host = costs.host(device);
      compile_options.crosses_iterations = bodies_wanted_ > 1;
      compile_options.kernel_time = [&](CallId id) {
        const auto [it, made] = times.try_emplace({device.value, id.value});
        if (!made) return it->second;
        const Call& call = plan_.calls[id.value];
        Bytes read{}, written{};
        for (const View& view : call.reads) read += view.bytes();
        for (const View& view : call.writes) written += view.bytes();
        return it->second = costs.kernel(call.op, read, written, device).time;
      };
      programs_.push_back(std::make_unique<CompiledProgram>(compile(plan_, compile_options)));
      program = programs_.back().get();
    }
    program_of_.push_back(program);
  }
}

void StreamCore::lay_out_ranks(const CostModel& costs, const Folding& folding) {
  std::size_t events = 0, issues = 0;
  all_steps_ = 0;
  for (std::size_t i = 0; i < folding.simulated.size(); ++i) {
    const CompiledProgram& program = *program_of_[i];
    RankState rank;
    rank.rank = folding.simulated[i];
    rank.program = &program;
    rank.first_stream = static_cast<std::uint32_t>(streams_.size());
    rank.first_site = static_cast<std::uint32_t>(bindings_.size());
    rank.first_event = events;
    rank.first_issue = issues;
    const DeviceKindId device = topology_.device_kind(plan_.ranks[rank.rank.value].gpu);
    rank.depth = static_cast<std::uint32_t>(std::max(1, costs.host(device).queue_depth));
    const std::uint32_t tasks = program.prologue_tasks + program.body_tasks * bodies_wanted_;
    const std::uint32_t ring = std::bit_ceil(std::max(1u, std::min(rank.depth, tasks)));
    rank.issue_mask = ring - 1;
    const double slowdown = costs.interference(device).compute_slowdown;
    rank.speed_under_collective = 1.0 / slowdown;
    rank.careful = slowdown != 1.0 && (calendar_ || program.overlapping_streams != 0);
    events += std::size_t{program.event_slots} * program.banks;
    issues += ring;
    for (std::uint32_t s = 0; s < program.streams.size(); ++s) {
      StreamState stream;
      stream.present = !program.streams[s].ops.empty();
      if (stream.present) rank.present_streams |= 1u << s;
      if (!stream.present) stream.block = Block::Finished;
      streams_.push_back(stream);
      rank_of_stream_.push_back(static_cast<std::uint32_t>(i));
      all_steps_ += static_cast<double>(program.streams[s].ops.size()) * bodies_wanted_;
    }
    const std::vector<Binding> bound = transfers_.bind(rank.rank, program);
    bindings_.insert(bindings_.end(), bound.begin(), bound.end());
    ranks_.push_back(rank);
  }
  events_.resize(events);
  issues_.assign(issues, 0);
  records_.resize(ranks_.size() * (bodies_wanted_ + 1u));
}

void StreamCore::begin() {
  for (std::uint32_t i = 0; i < ranks_.size(); ++i) {
    ranks_[i].awake = ranks_[i].present_streams;
    if (ranks_[i].present_streams == 0) {
      for (std::uint16_t body = 0; body <= bodies_wanted_; ++body) ++ranks_ended_[body];
    }
  }
  if (ranks_.empty() || ranks_ended_[bodies_wanted_] == ranks_.size()) {
    stopped_ = true;
    bodies_done_ = 1;
    return;
  }
  for (std::uint32_t i = 0; i < ranks_.size() && !stopped(); ++i) {
    wake(i);
    drain();
  }
}

void StreamCore::wake(std::uint32_t state) {
  if (ranks_[state].queued) return;
  ranks_[state].queued = true;
  work_.push_back(state);
}

void StreamCore::drain() {
  while (!work_.empty()) {
    const std::uint32_t state = work_.back();
    work_.pop_back();
    if (!stopped()) run_rank(state);
    ranks_[state].queued = false;
    if (steps_ >= next_look_) look_around();
  }
}

/// Lets host and streams of a rank go on until all of them are blocked. The streams beside the
/// compute stream go first: what they start may slow the next kernel.
void StreamCore::run_rank(std::uint32_t state) {
  RankState& rank = ranks_[state];
  while (!stopped()) {
    if (host_can_run(rank)) run_host(rank);
    if (rank.awake == 0) return;
    const std::uint32_t others = rank.awake & ~rank.program->compute_streams;
    const std::uint32_t pick = others != 0 ? others : rank.awake;
    const auto s = static_cast<std::uint8_t>(std::countr_zero(pick));
    rank.awake &= ~(1u << s);
    run_stream(rank, s);
  }
}

bool StreamCore::host_can_run(const RankState& rank) const {
  switch (rank.host.block) {
    case Block::Ready: return true;
    case Block::Issue:
      return issues_[rank.first_issue + ((rank.host.task - rank.depth) & rank.issue_mask)] >= 0;
    case Block::Event: {
      const EventWait& wait = rank.program->waits[rank.program->host_waits[rank.host.next_wait]];
      return recorded(rank, wait, rank.host.body);
    }
    case Block::Meeting:
    case Block::Running:
    case Block::Finished: break;
  }
  return false;
}

/// Issues as many tasks as the queue holds: task k when task k - depth is over, first in first out.
/// Their times depend on the host alone until the queue is full.
void StreamCore::run_host(RankState& rank) {
  HostState& host = rank.host;
  const CompiledProgram& program = *rank.program;
  const auto end = static_cast<std::uint32_t>(program.host.size());
  const Ps cost[] = {program.launch, program.communication_launch};
  host.block = Block::Ready;
  const std::uint32_t first = host.task;
  while (true) {
    if (host.body == 0 && host.pc == program.host_body_begin) host.body = 1;
    if (host.pc == end) {
      const bool again = host.body < bodies_wanted_ && program.host_body_begin < end;
      host.block = again ? Block::Ready : Block::Finished;
      if (!again) break;
      host.pc = program.host_body_begin;
      host.next_wait = program.host_waits_body_begin;
      host.next_launches = program.host_launches_body_begin;
      ++host.body;
    }
    const HostOp op = program.host[host.pc];
    if (op == HostOp::Wait) {
      if (!host_passes_wait(rank)) break;
    } else {
      Ps at = host.time;
      if (host.task >= rank.depth) {
        const Ps room = issue_or_end(rank, host.task - rank.depth);
        if (room < 0) {
          host.block = Block::Issue;
          break;
        }
        at = std::max(at, room);
      }
      if (host.waited) at += program.resume;
      host.waited = false;
      host.time = at + (op == HostOp::LaunchSeveral
                            ? program.launch * program.host_launches[host.next_launches++]
                            : cost[static_cast<std::size_t>(op)]);
      issue_or_end(rank, host.task) = ~host.time;
      ++host.task;
    }
    ++host.pc;
  }
  if (host.task == first) return;
  rank.awake |= rank.on_issue;
  rank.on_issue = 0;
}

bool StreamCore::host_passes_wait(RankState& rank) {
  HostState& host = rank.host;
  const EventWait& wait = rank.program->waits[rank.program->host_waits[host.next_wait]];
  if (!recorded(rank, wait, host.body)) {
    host.block = Block::Event;
    return false;
  }
  host.time = std::max(host.time, event_time(rank, wait, host.body).time);
  ++host.next_wait;
  host.waited = true;
  return true;
}

void StreamCore::run_stream(RankState& rank, std::uint8_t s) {
  StreamState& stream = stream_of(rank, s);
  if (stream.block == Block::Meeting || stream.block == Block::Running ||
      stream.block == Block::Finished) {
    return;
  }
  stream.block = Block::Ready;
  const StreamProgram& program = rank.program->streams[s];
  bool going = true;
  while (going) {
    if (end_of_section(rank, stream, s)) return;
    const StreamOp& op = program.ops[stream.pc];
    ++steps_;
    switch (op.code) {
      case OpCode::Kernel:
      case OpCode::HostTask: going = run_kernel(rank, stream, op, s); break;
      case OpCode::Wait: going = run_wait(rank, stream, op, s); break;
      case OpCode::Record:
        run_record(rank, stream, op, s);
        ++stream.pc;
        break;
      case OpCode::Collective:
      case OpCode::PointToPoint:
      case OpCode::Copy: going = arrive(rank, stream, op, s); break;
    }
  }
}

/// Steps over the border of the prologue or of a body. True: the stream is through.
bool StreamCore::end_of_section(RankState& rank, StreamState& stream, std::uint8_t s) {
  const StreamProgram& program = rank.program->streams[s];
  if (stream.body == 0 && stream.pc == program.body_begin) {
    end_of_body(rank, stream, s);
    stream.body = 1;
  }
  while (stream.pc == program.ops.size()) {
    end_of_body(rank, stream, s);
    stream.pc = program.body_begin;
    ++stream.body;
    if (stream.body <= bodies_wanted_) continue;
    stream.block = Block::Finished;
    return true;
  }
  return stopped();
}

/// A task begins when its stream is free and the host has issued it. False: the stream is blocked.
bool StreamCore::run_kernel(RankState& rank, StreamState& stream, const StreamOp& op,
                            std::uint8_t s) {
  const std::uint32_t task = task_number(rank, stream.body, op.task);
  if (task >= rank.host.task) {
    stream.block = Block::Issue;
    rank.on_issue |= 1u << s;
    return false;
  }
  const bool slowable = rank.careful && (rank.program->compute_streams >> s & 1u) != 0;
  if (slowable && ((rank.awake & ~rank.program->compute_streams) != 0 || host_can_run(rank))) {
    rank.awake |= 1u << s;  // first let the others show what they are going to start
    return false;
  }
  const Ps issued = ~issue_or_end(rank, task);
  const Ps start = std::max(stream.free, issued);
  const Ps time = kernel_time(rank, op);
  if (calendar_ || (slowable && may_be_slowed(rank, s))) {
    stream.block = Block::Running;
    stream.op_start = stream.since = start;
    stream.left = static_cast<double>(time);
    schedule_kernel(rank.first_stream + s, rank, s);
    return false;
  }
  finish_task(rank, stream, task, op.instruction, part_of_kernel(op), start, start + time);
  ++stream.pc;
  return true;
}

Ps StreamCore::kernel_time(const RankState& rank, const StreamOp& op) const {
  const KernelTime& time = rank.program->times[op.operand];
  if (plan_.jitter.sigma == 0.0 || op.code != OpCode::Kernel) return time.time;
  const double jitter = jitter_factor(plan_.jitter, rank.rank, op.instruction);
  return to_ps(time.base * (time.factor * jitter));
}

bool StreamCore::recorded(const RankState& rank, const EventWait& wait, std::uint16_t body) const {
  const auto passed = [&](std::uint8_t s, std::uint32_t position, std::uint16_t in_body) {
    const StreamState& stream = stream_of(rank, s);
    return stream.body > in_body || (stream.body == in_body && stream.pc > position);
  };
  switch (wait.kind) {
    case WaitKind::Body: return passed(wait.stream, wait.position, body);
    case WaitKind::Previous:
      if (body > 1) return passed(wait.stream, wait.position, static_cast<std::uint16_t>(body - 1));
      return !wait.has_prologue || passed(wait.prologue_stream, wait.prologue_position, 0);
    case WaitKind::Prologue: return passed(wait.prologue_stream, wait.prologue_position, 0);
    case WaitKind::Nothing: return true;
    case WaitKind::Never: return false;
  }
  return false;
}

const EventTime& StreamCore::event_time(const RankState& rank, const EventWait& wait,
                                        std::uint16_t body) const {
  static constexpr EventTime kNothing{};
  const auto at = [&](std::uint32_t slot, std::uint32_t in_body) -> const EventTime& {
    const std::uint32_t bank = in_body % rank.program->banks;
    return events_[rank.first_event + bank * rank.program->event_slots + slot];
  };
  switch (wait.kind) {
    case WaitKind::Body: return at(wait.slot, body);
    case WaitKind::Previous:
      if (body > 1) return at(wait.slot, body - 1u);
      return wait.has_prologue ? at(wait.prologue_slot, 0) : kNothing;
    case WaitKind::Prologue: return at(wait.prologue_slot, 0);
    case WaitKind::Nothing:
    case WaitKind::Never: break;
  }
  return kNothing;
}

bool StreamCore::run_wait(RankState& rank, StreamState& stream, const StreamOp& op,
                          std::uint8_t s) {
  const EventWait& wait = rank.program->waits[op.operand];
  if (!recorded(rank, wait, stream.body)) {
    stream.block = Block::Event;
    rank.on_event |= 1u << s;
    return false;
  }
  const EventTime& event = event_time(rank, wait, stream.body);
  ++stream.pc;
  if (event.time <= stream.free) return true;
  if (s == rank.program->compute_stream) {
    split_gap(rank.parts, stream.free, event.time, event.history);
  } else {
    stream.history = event.history;
  }
  stream.free = event.time;
  return true;
}

void StreamCore::run_record(RankState& rank, StreamState& stream, const StreamOp& op,
                            std::uint8_t s) {
  const CompiledProgram& program = *rank.program;
  const std::uint32_t bank = stream.body % program.banks;
  EventTime& event = events_[rank.first_event + bank * program.event_slots + op.operand];
  event.time = stream.free;
  event.history = s == program.compute_stream ? History::none(stream.free) : stream.history;
  rank.awake |= rank.on_event;
  rank.on_event = 0;
}

// ---- kernels under collectives
// ------------------------------------------------------------------------

/// True if a collective might become active on this rank before the next kernel of stream `s` could
/// tell: some other stream that has such collectives waits for something that does not come after
/// that kernel.
bool StreamCore::may_be_slowed(const RankState& rank, std::uint8_t s) const {
  const CompiledProgram& program = *rank.program;
  if (program.compute_streams != (1u << s)) return (program.compute_streams >> s & 1u) != 0;
  for (std::uint32_t mask = program.overlapping_streams & ~(1u << s); mask != 0; mask &= mask - 1) {
    const auto other = static_cast<std::uint8_t>(std::countr_zero(mask));
    const StreamState& stream = stream_of(rank, other);
    switch (stream.block) {
      case Block::Finished: continue;
      case Block::Event: {
        const StreamOp& op = program.streams[other].ops[stream.pc];
        const EventWait& wait = program.waits[op.operand];
        if (wait.kind == WaitKind::Body && wait.stream == s) continue;
        return true;
      }
      case Block::Issue: {
        if (rank.host.block == Block::Issue) {
          std::uint32_t task = rank.host.task - rank.depth;
          const std::uint32_t before = program.prologue_tasks;
          if (task >= before) task = before + (task - before) % program.body_tasks;
          if (program.task_stream[task] == s) continue;
        } else if (rank.host.block == Block::Event) {
          const EventWait& wait = program.waits[program.host_waits[rank.host.next_wait]];
          if (wait.kind == WaitKind::Body && wait.stream == s) continue;
        }
        return true;
      }
      case Block::Ready:
      case Block::Meeting:
      case Block::Running: return true;
    }
  }
  return false;
}

double StreamCore::speed(const RankState& rank, std::uint8_t s) const {
  const bool compute = (rank.program->compute_streams >> s & 1u) != 0;
  return rank.active_collectives > 0 && compute ? rank.speed_under_collective : 1.0;
}

void StreamCore::schedule_kernel(std::uint32_t row, const RankState& rank, std::uint8_t s) {
  StreamState& stream = streams_[row];
  const double left = std::max(0.0, stream.left) / speed(rank, s);
  push(stream.since + std::llround(left), EventKind::KernelEnd, row, ++stream.version);
}

void StreamCore::finish_kernel(std::uint32_t row, Ps now) {
  const std::uint32_t state = rank_of_stream_[row];
  RankState& rank = ranks_[state];
  StreamState& stream = streams_[row];
  const auto s = static_cast<std::uint8_t>(row - rank.first_stream);
  const StreamOp& op = rank.program->streams[s].ops[stream.pc];
  const std::uint32_t task = task_number(rank, stream.body, op.task);
  finish_task(rank, stream, task, op.instruction, part_of_kernel(op), stream.op_start, now);
  stream.block = Block::Ready;
  ++stream.pc;
  rank.awake |= 1u << s;
  wake(state);
}

/// Counts collectives that begin (+1) or end (-1) on the ranks of a meeting, and moves the ends of
/// kernels.
void StreamCore::activate(std::uint32_t m, std::int32_t by, Ps now) {
  for (const Arrival arrival : meetings_[m].arrivals) {
    RankState& rank = ranks_[arrival.state];
    const bool switches = std::min(rank.active_collectives, rank.active_collectives + by) == 0;
    std::uint32_t running = switches ? rank.program->compute_streams : 0;
    for (std::uint32_t mask = running; mask != 0; mask &= mask - 1) {
      const auto s = static_cast<std::uint8_t>(std::countr_zero(mask));
      StreamState& stream = stream_of(rank, s);
      if (stream.block != Block::Running) {
        running &= ~(1u << s);
      } else if (now > stream.since) {
        stream.left -= static_cast<double>(now - stream.since) * speed(rank, s);
        stream.since = now;
      }
    }
    rank.active_collectives += by;
    for (std::uint32_t mask = running; mask != 0; mask &= mask - 1) {
      const auto s = static_cast<std::uint8_t>(std::countr_zero(mask));
      schedule_kernel(rank.first_stream + s, rank, s);
    }
  }
}

}  // namespace gputwin::engine
