// Figures of the stream core: ends of tasks and bodies, breakdown, progress.
#include <algorithm>
#include <cmath>

#include "sim/core/check.h"
#include "sim/engine/stream_core.h"

namespace gputwin::engine {
namespace {

Ps& part(Breakdown& parts, Part which) { return parts[static_cast<std::size_t>(which)]; }

}  // namespace

void split_gap(Breakdown& parts, Ps from, Ps until, const History& why) {
  for (std::size_t i = 0; i < why.start.size() && until > from; ++i) {
    const Ps start = std::clamp(why.start[i], from, until);
    part(parts, why.part[i]) += until - start;
    until = start;
  }
  part(parts, why.earlier) += until - from;
}

Part part_of_kernel(const StreamOp& op) {
  return (op.flags & kOptimizerPhase) != 0 ? Part::Optimizer : Part::Compute;
}

/// A task has run from `start` to `end`: the host's queue has room, the stream is free, the sink is
/// told. Until `start` it was late: a kernel because of the host, anything else because of
/// partners.
void StreamCore::finish_task(RankState& rank, StreamState& stream, std::uint32_t task,
                             std::uint32_t instruction, Part what, Ps start, Ps end) {
  issue_or_end(rank, task) = end;
  const CompiledProgram& program = *rank.program;
  const auto s = static_cast<std::uint8_t>(&stream - &streams_[rank.first_stream]);
  if (end > stream.free) {
    const bool computes = what == Part::Compute || what == Part::Optimizer;
    const Part late = computes ? Part::Host : Part::Bubble;
    const Ps begin = std::max(start, stream.free);
    if (s == program.compute_stream) {
      part(rank.parts, late) += begin - stream.free;
      part(rank.parts, what) += end - begin;
    } else {
      if (begin > stream.free) stream.history.add(late, stream.free);
      if (end > begin) stream.history.add(what, begin);
    }
    stream.free = end;
  }
  if (sink_ == nullptr) return;
  const std::uint32_t body = stream.body > 0 ? stream.body - 1u : 0;
  sink_->op({rank.rank, &program.instruction(instruction), body, start, end});
}

void StreamCore::report_flow(const Meeting& meeting, const PatternFlow& flow, Ps start, Ps end) {
  if (sink_ == nullptr) return;
  sink_->flow(flow.from, flow.to, flow.bytes, transfers_.route(meeting.pattern, flow), start, end);
}

void StreamCore::report_lone_flows(Meeting& meeting) {
  if (sink_ == nullptr) return;
  const std::span<const PatternFlow> flows = transfers_.flows(transfers_.pattern(meeting.pattern));
  for (std::uint32_t f = 0; f < flows.size(); ++f) {
    if (!meeting.promoted.empty() && meeting.promoted[f]) continue;
    report_flow(meeting, flows[f], meeting.start, lone_end_of(meeting, f));
    if (!meeting.promoted.empty()) meeting.promoted[f] = true;
  }
}

void StreamCore::end_of_body(RankState& rank, StreamState& stream, std::uint8_t s) {
  BodyRecord& record = record_of(rank, stream.body);
  if (s == rank.program->compute_stream) {
    record.parts = rank.parts;
    record.frontier = stream.free;
  }
  if (stream.free >= record.end) {
    record.end = stream.free;
    record.tail = stream.history;
  }
  record.streams_done |= 1u << s;
  if (record.streams_done != rank.present_streams) return;
  body_end_[stream.body] = std::max(body_end_[stream.body], record.end);
  if (++ranks_ended_[stream.body] == ranks_.size()) body_ended(stream.body);
}

/// The body has ended on all ranks: is another one needed?
void StreamCore::body_ended(std::uint16_t body) {
  bodies_done_ = body;
  stopped_ = body == bodies_wanted_;
  if (bodies_wanted_ == 1 || body < 3) return;
  const Ps last = body_end_[body] - body_end_[body - 1u];
  const Ps before = body_end_[body - 1u] - body_end_[body - 2u];
  converged_ = std::abs(last - before) <= 1;
  stopped_ = stopped_ || converged_;
}

void StreamCore::look_around() {
  constexpr std::uint64_t kStepsBetweenLooks = 8192;
  next_look_ = steps_ + kStepsBetweenLooks;
  const double done = std::min(1.0, static_cast<double>(steps_) / std::max(1.0, all_steps_));
  if (sink_ != nullptr && !sink_->progress(done)) cancelled_ = true;
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began_;
  if (options_.time_limit_s > 0 && spent.count() > options_.time_limit_s) cancelled_ = true;
}

/// Of the last body. The rest of the iteration after the compute stream is over goes to what the
/// last stream still did, then it is a bubble. With repeated bodies the next one has explained that
/// time already.
Breakdown StreamCore::breakdown(std::size_t state, Ps iteration) const {
  const BodyRecord* records = &records_[state * (bodies_wanted_ + 1u)];
  const BodyRecord& last = records[bodies_done_];
  Breakdown parts = last.parts;
  Ps left = iteration - last.frontier;
  if (bodies_wanted_ > 1) {
    const BodyRecord& before = records[bodies_done_ - 1];
    for (std::size_t p = 0; p < kParts; ++p) parts[p] -= before.parts[p];
    left = iteration - (last.frontier - before.frontier);
  } else if (last.end > last.frontier) {
    split_gap(parts, last.frontier, last.end, last.tail);
    left -= last.end - last.frontier;
  }
  if (left >= 0) {
    part(parts, Part::Bubble) += left;
    return parts;
  }
  // This rank took longer than the period, which is still changing: shorten what stands last.
  static constexpr Part kOrder[] = {
      Part::Bubble,    Part::Host,      Part::CopyStall, Part::ExposedCp, Part::ExposedEp,
      Part::ExposedPp, Part::ExposedDp, Part::ExposedTp, Part::Optimizer, Part::Compute};
  for (const Part p : kOrder) {
    const Ps cut = std::min(part(parts, p), -left);
    part(parts, p) -= cut;
    left += cut;
  }
  return parts;
}

Execution StreamCore::result(const Plan& plan, const Folding& folding) const {
  Execution result;
  const std::uint32_t n = bodies_done_;
  result.period_converged = converged_;
  result.makespan = body_end_[n];
  result.iteration = bodies_wanted_ > 1 ? body_end_[n] - body_end_[n - 1] : body_end_[n];
  std::vector<std::uint32_t> state_of(plan.ranks.size(), 0);
  for (std::uint32_t i = 0; i < ranks_.size(); ++i) state_of[ranks_[i].rank.value] = i;
  result.rank_end.reserve(plan.ranks.size());
  for (std::uint32_t r = 0; r < plan.ranks.size(); ++r) {
    const std::uint32_t state = state_of[folding.representative[r].value];
    result.rank_end.push_back(records_[state * (bodies_wanted_ + 1u) + n].end);
    result.breakdown.push_back(breakdown(state, result.iteration));
  }
  const auto last = std::max_element(result.rank_end.begin(), result.rank_end.end());
  result.last_rank = RankId(static_cast<std::uint32_t>(last - result.rank_end.begin()));
  EngineStats& stats = result.engine;
  for (const RankState& rank : ranks_) {
    const CompiledProgram& program = *rank.program;
    stats.tasks += program.prologue_tasks + std::int64_t{program.body_tasks} * n;
    stats.instructions += static_cast<std::int64_t>(program.source->prologue.size()) +
                          static_cast<std::int64_t>(program.source->body.size()) * n;
  }
  for (std::uint32_t body = 0; body <= n; ++body) {
    stats.flows += flows_[body];
    stats.simgrid_flows += simgrid_flows_[body];
  }
  stats.simulated_ranks = static_cast<std::int32_t>(ranks_.size());
  stats.bodies = static_cast<std::int32_t>(n);
  stats.folded = folding.folded;
  stats.unfolded_because = folding.unfolded_because;
  return result;
}

}  // namespace gputwin::engine
