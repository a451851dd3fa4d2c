// Turns segments and a schedule's tables into instructions.
#pragma once

#include "sim/core/segment.h"
#include "strategies/schedules/table.h"

namespace gputwin {

/// The plan of `lowered` with one body per program: begin, the passes of the stage's table, finish.
///
/// Messages. A pass sends right after its last operation. A receive is issued right before the pass that
/// needs it, after the receives of earlier messages from the same rank. Activations and gradients go on
/// streams of their own in each direction; where both neighbours are one rank (two stages, interleaved) one
/// stream each way carries both, and receives follow the sender's order. So on every ordered pair of ranks
/// both ends issue the same sequence, and each transfer waits only for its producer, for earlier transfers
/// of the pair and for the host: as the tables respect data dependencies, no cycle can form.
Plan emit(Lowered lowered, const std::vector<StageTable>& tables);

}  // namespace gputwin
