// Ranks, their communicators, and the streams and slots of every stage's program.
#pragma once

#include "strategies/lowering/stage_builder.h"

namespace gputwin {

/// Fills streams and slots of `program`, the program of pipeline stage `stage`, and says where they
/// are. `tied`: the first and the last stage each hold a copy of the word embedding; `experts`: the
/// model has some.
StageWiring wire_stage(const Layout& layout, std::int32_t stage, bool tied, bool experts,
                       Program& program);

/// Ranks of a stage that hold the same experts.
std::int32_t expert_replicas(const Layout& layout);

/// Fills the channels of a chunk of `stage`. Where chunks run down and up the stages, one stream
/// from and one to each neighbour carries activations and gradients; those of a stage that the
/// snake turns on stay on it.
void connect(const Layout& layout, const StageWiring& wiring, std::int32_t stage, Chunk& chunk);

/// Adds every rank in rank order and the communicators they form. `wiring[s]` belongs to program s.
void add_ranks(PlanBuilder& builder, const Layout& layout, const std::vector<StageWiring>& wiring);

}  // namespace gputwin
