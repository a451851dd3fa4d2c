// Makes plans. Interns calls, names and buffers; then `finish` derives what CUDA needs beyond the
// order of operations: the Record/Wait pairs that the views demand across streams, and Alloc/Free
// at first and last use.
#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/core/plan.h"

namespace gputwin {

class PlanBuilder {
 public:
  explicit PlanBuilder(Plan start = {});

  ArenaId arena(Arena arena);
  BufferId buffer(Buffer buffer);
  CallId call(Call call);  // interned: equal calls share a row
  NameId name(Name name);  // interned
  ProgramId program(Program program);
  CommunicatorId communicator(Communicator communicator);
  RankId rank(Rank rank);

  Plan& plan() { return plan_; }
  const Plan& plan() const { return plan_; }
  Plan take() && { return std::move(plan_); }

 private:
  Plan plan_;
  std::unordered_map<std::size_t, std::vector<std::uint32_t>> calls_, names_;
};

/// Replaces every derived Record/Wait of `program.body` by the ones its views demand.
///
/// Two instructions conflict if they touch overlapping views of one (buffer, frame), at least one
/// writing. A conflict across streams needs a Record after the earlier one and a Wait before the
/// later one, unless an event chain already orders them. Send, Recv and collectives count as
/// reading and writing their views. Explicit Record/Wait already in the body (ids below
/// program.events) are kept and taken into account. Linear in instructions; buffers touched by one
/// stream only cost nothing.
void synchronise(const Plan& plan, Program& program);

/// Inserts Alloc before the first use and Free after the last use of every non-persistent (buffer,
/// frame), dropping the ones already there, and fills program.buffers.
void place_memory(const Plan& plan, Program& program);

/// synchronise() for bodies that follow one another with nothing but the plan's own events between
/// them. `program.prologue` and `program.body` hold tasks alone; the prologue begins those frames
/// that a body finds begun. Waits reach back one body at most (kPreviousBody), and the first body
/// starts when the rank's own prologue is over. Linear in instructions.
void synchronise_endless(const Plan& plan, Program& program);

/// place_memory() likewise: what belongs to a frame that the body begins for the next one stays.
void place_memory_endless(const Plan& plan, Program& program);

}  // namespace gputwin
