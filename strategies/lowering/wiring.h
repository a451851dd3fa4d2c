// Ranks, their communicators, and the streams and slots of every stage's program.
#pragma once

#include "strategies/lowering/stage_builder.h"

namespace gputwin {

/// Fills streams and slots of `program`, the program of pipeline stage `stage`, and says where they
/// are. `tied`: the first and the last of several stages share the word embedding.
StageWiring wire_stage(const Layout& layout, std::int32_t stage, bool tied, Program& program);

/// Adds every rank in rank order and the communicators they form. `wiring[s]` belongs to program s.
void add_ranks(PlanBuilder& builder, const Layout& layout, const std::vector<StageWiring>& wiring);

}  // namespace gputwin
