// Ranks, their communicators, and the streams and slots of every stage's program.
#pragma once

#include "strategies/lowering/stage_builder.h"

namespace gputwin {

/// Fills streams and slots of `program`, the program of pipeline stage `stage`, and says where they
/// are.
StageWiring wire_stage(const Transformer& model, const Layout& layout, std::int32_t stage,
                       Program& program);

/// Ranks of a stage that hold the same experts.
std::int32_t expert_replicas(const Layout& layout);

/// Adds every rank in rank order and the communicators they form. `wiring[s]` belongs to program s.
void add_ranks(PlanBuilder& builder, const Layout& layout, const std::vector<StageWiring>& wiring);

}  // namespace gputwin
