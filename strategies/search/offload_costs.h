// What leaving the GPU changes about the closed form of a layout.
#pragma once

#include "strategies/search/layout_costs.h"

namespace gputwin {

/// Bytes of one parameter on one rank: its weight, its gradient, the optimizer's states; sharded
/// ones over `shards` ranks.
struct ParameterBytes {
  double weight = 0, gradient = 0, states = 0;
  double all() const { return weight + gradient + states; }
};
ParameterBytes parameter_bytes(const Job& job, const Layout& layout, std::int32_t shards);

/// The same of what leaves; weights that leave as far as memory is short count as gone.
ParameterBytes leaving_bytes(const Job& job, const Layout& layout, std::int32_t shards);

/// The stages with what `layout.offload` takes from them: persistent bytes, but for three slots of
/// a layer each; the optimizer's step on the host, where the ranks of a node share its cores.
/// A lower bound: copies of the step hide under it, but for those of weights alone.
GridCosts offloaded(const Probed& probed, const Layout& layout, GridCosts grid, Prices& prices);

/// Time that the busier direction of a link of its own needs for the copies of all micro-batches:
/// weights in for forward and backward, gradients in and out. `short_by`: bytes of weights that
/// cannot stay, of those that may leave.
Seconds copies(const Probed& probed, const Layout& layout, double short_by, Prices& prices);

}  // namespace gputwin
