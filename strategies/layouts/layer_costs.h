// What the planners know of a network: time, output and weights of every layer for one minibatch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/units.h"

namespace gputwin {

/// One layer of a DAG in topological order. Times of one minibatch on one device.
struct LayerCost {
  std::string name;
  Seconds forward{}, backward{};
  Bytes output{}, weights{};
  std::vector<std::int32_t> inputs{};  // earlier layers
  Seconds step{};                      // of the optimizer, for these weights
};

using LayerCosts = std::vector<LayerCost>;

/// Links of a chain: a link ends at every layer that all paths from the first to the last layer
/// pass (an articulation point of the graph). Returns the link of every layer, ascending.
/// The graph must hang together; several first or last layers are joined by one beyond them.
std::vector<std::int32_t> chain_links(const LayerCosts& layers);

/// The layers of each link as one: times and weights summed, the output that of its last layer.
LayerCosts chain_of(const LayerCosts& layers);

/// A way to cut a DAG in two: `before` are the layers before the cut, closed under predecessors.
struct GraphState {
  std::vector<std::int32_t> frontier;      // layers whose output crosses the cut, or the last ones
  std::vector<std::int32_t> predecessors;  // states that this one comes after, ascending
  Seconds time{};                          // forward and backward of the layers before the cut
  Bytes output{}, weights{};               // of the frontier; of the layers before the cut
  Bytes tip{};  // output of the antichain alone, without earlier layers that are still read
};

/// All cuts that PipeDream considers, as the antichains of the graph in topological order.
///
/// An antichain is augmented by the earlier layers whose output is still needed. From each, those
/// that exchange one layer for one of its consumers follow. Source: Harlap et al. 2018, section
/// 3.2, and the order of msr-fiddle/pipedream graph/graph.py (a reconstruction; equal times).
/// Empty if there are more than `limit` of them.
std::vector<GraphState> antichain_states(const LayerCosts& layers, std::size_t limit = 20'000);

}  // namespace gputwin
