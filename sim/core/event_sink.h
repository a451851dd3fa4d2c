// Door 3 of 3: who watches a run. Executors test for a null sink first, so that nobody pays for
// nobody.
#pragma once

#include <string>

#include "sim/core/plan.h"

namespace gputwin {

/// One executed instruction of one rank.
struct OpEvent {
  RankId rank;
  const Instruction* instruction;  // within the plan
  std::uint32_t body;              // which repetition
  Ps start, end;
};

class EventSink {
 public:
  virtual ~EventSink() = default;

  /// False: only progress() is of interest, and executors may leave op() and flow() out.
  virtual bool wants_events() const { return true; }
  /// A task ran. Order: by completion as the executor learns of it; per stream in program order.
  virtual void op(const OpEvent& event) = 0;
  /// A transfer used links from `start` to `end` (one flow of a collective, send or copy).
  virtual void flow(RankId from, RankId to, Bytes bytes, const Route& route, Ps start, Ps end) = 0;
  /// Fraction of the work done, 0 .. 1; called at most every few thousand instructions. False
  /// cancels.
  virtual bool progress(double fraction) = 0;
};

}  // namespace gputwin
