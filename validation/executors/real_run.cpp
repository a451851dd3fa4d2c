#include "validation/executors/real_run.h"

#include <fmt/format.h>

#include <algorithm>

namespace gputwin::executors {

namespace {

Part part_of(const Plan& plan, const Ran& ran) {
  const Instruction& i = *ran.instruction;
  const Program& program = plan.program_of(ran.rank);
  if (i.kind == Kind::Copy) return Part::CopyStall;
  if (i.kind == Kind::Collective || i.kind == Kind::Send || i.kind == Kind::Recv) {
    const SlotId slot = plan.call(i).op.slot;
    return slot.valid() ? exposed(program.slots[slot.value].domain) : Part::Bubble;
  }
  const bool optimizer = plan.names[i.name].phase == Phase::Optimizer;
  return optimizer ? Part::Optimizer : Part::Compute;
}

/// Kernels hide communication, communication hides copies, all hide nothing.
int rank_of(Part part) {
  if (part == Part::Compute || part == Part::Optimizer) return 0;
  return part == Part::CopyStall ? 2 : 1;
}

/// Where the time of `rank` from `begin` to `end` went.
Breakdown breakdown(const Plan& plan, const std::vector<Ran>& ran, RankId rank, Ps begin, Ps end) {
  struct Span {
    Ps start, end;
    Part part;
  };
  std::vector<Span> spans;
  for (const Ran& r : ran) {
    const Ps from = std::max(r.start, begin), to = std::min(r.end, end);
    if (r.rank == rank && from < to) spans.push_back({from, to, part_of(plan, r)});
  }
  std::vector<Ps> cuts{begin, end};
  for (const Span& s : spans) cuts.insert(cuts.end(), {s.start, s.end});
  std::sort(cuts.begin(), cuts.end());
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.start < b.start; });
  Breakdown parts{};
  std::vector<Span> open;
  std::size_t next = 0;
  for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
    while (next < spans.size() && spans[next].start <= cuts[c]) open.push_back(spans[next++]);
    std::erase_if(open, [&](const Span& s) { return s.end <= cuts[c]; });
    const auto top = std::min_element(open.begin(), open.end(), [](const Span& a, const Span& b) {
      return rank_of(a.part) < rank_of(b.part);
    });
    const Part part = top == open.end() ? Part::Bubble : top->part;
    parts[static_cast<std::size_t>(part)] += cuts[c + 1] - cuts[c];
  }
  return parts;
}

}  // namespace

std::string shortage(Bytes needed, const std::string& has, Bytes limit) {
  const auto gibibytes = [](Bytes b) { return static_cast<double>(b.value) / (1 << 30); };
  return fmt::format("{:.2f} GiB, {} {:.2f} GiB: {:.2f} GiB too much", gibibytes(needed), has,
                     gibibytes(limit), gibibytes(needed - limit));
}

View whole(const Plan& plan, BufferId id) {
  const Buffer& buffer = plan.buffers[id.value];
  const std::int64_t elements = buffer.bytes.value * 8 / bits(buffer.dtype);
  return {id, 0, 1, elements, elements, buffer.dtype};
}

std::vector<Ran> by_end(std::vector<Ran> ran, const Plan& copy, const Plan& given) {
  for (Ran& r : ran) {
    const Program& from = copy.program_of(r.rank);
    const Program& to = given.program_of(r.rank);
    r.instruction = r.body < 0 ? to.prologue.data() + (r.instruction - from.prologue.data())
                               : to.body.data() + (r.instruction - from.body.data());
  }
  std::stable_sort(ran.begin(), ran.end(),
                   [](const Ran& a, const Ran& b) { return a.end < b.end; });
  return ran;
}

void tell(EventSink* sink, const std::vector<Ran>& ran) {
  if (sink == nullptr) return;
  for (const Ran& r : ran) {
    if (sink->wants_events() && r.body >= 0) {
      sink->op({r.rank, r.instruction, static_cast<std::uint32_t>(r.body), r.start, r.end});
    }
  }
  sink->progress(1.0);
}

Execution real_figures(const Plan& plan, const std::vector<Ran>& ran, int bodies,
                       std::vector<Ps>& iterations) {
  // ends[b + 1] of body b; ends[0] of the prologue, or where the first body starts.
  std::vector<Ps> ends(static_cast<std::size_t>(bodies) + 1, 0);
  Execution result;
  result.rank_end.assign(plan.ranks.size(), 0);
  Ps first = ran.empty() ? 0 : ran.front().start;
  for (const Ran& r : ran) {
    Ps& end = ends[static_cast<std::size_t>(r.body + 1)];
    end = std::max(end, r.end);
    first = std::min(first, r.start);
    Ps& of_rank = result.rank_end[r.rank.value];
    of_rank = std::max(of_rank, r.end);
  }
  ends[0] = std::max(ends[0], first);
  std::vector<std::pair<Ps, std::size_t>> periods;
  for (std::size_t b = bodies > 1 ? 2 : 1; b < ends.size(); ++b) {
    periods.emplace_back(ends[b] - ends[b - 1], b);
    iterations.push_back(periods.back().first);
  }
  std::sort(periods.begin(), periods.end());
  if (periods.empty()) return result;
  const auto [iteration, body] = periods[(periods.size() - 1) / 2];
  result.iteration = iteration;
  result.makespan = *std::max_element(result.rank_end.begin(), result.rank_end.end());
  for (std::uint32_t r = 0; r < plan.ranks.size(); ++r) {
    result.breakdown.push_back(breakdown(plan, ran, RankId(r), ends[body - 1], ends[body]));
    if (result.rank_end[r] >
            result.rank_end[result.last_rank.valid() ? result.last_rank.value : 0] ||
        !result.last_rank.valid()) {
      result.last_rank = RankId(r);
    }
  }
  result.engine.tasks = static_cast<std::int64_t>(ran.size());
  result.engine.simulated_ranks = static_cast<std::int32_t>(plan.ranks.size());
  result.engine.bodies = bodies;
  result.engine.unfolded_because = "every rank runs for real";
  return result;
}

}  // namespace gputwin::executors
