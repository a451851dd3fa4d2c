// Reads models of kind layer-graph: a family of networks, or layers one by one.
#pragma once

#include "sim/app/json_text.h"
#include "sim/app/scenario_document.h"
#include "sim/core/workload.h"

namespace gputwin {

/// The graph of /model; `sequence` is the length of token sequences. Throws InputError for what the
/// schema cannot say: unknown producers, sizes that do not go together, units out of order.
LayerGraph read_graph(const ScenarioDocument& document, const Json& model, std::int64_t sequence);

/// Cuts a graph into units where a single tensor passes: a unit ends with every layer on which
/// alone all later ones hang.
void cut_into_units(LayerGraph& graph);

}  // namespace gputwin
