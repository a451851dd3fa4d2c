// What leaving the GPU changes about the closed form of a layout.
#pragma once

#include <vector>

#include "strategies/search/layout_costs.h"

namespace gputwin {

/// Bytes of one parameter on one rank: its weight, its gradient, the optimizer's states; sharded
/// ones over `shards` ranks.
struct ParameterBytes {
  double weight = 0, gradient = 0, states = 0;
  double all() const { return weight + gradient + states; }
};
ParameterBytes parameter_bytes(const Job& job, const Layout& layout, std::int32_t shards);

/// The same of what `layout.offload` may take from the GPU.
ParameterBytes leaving_bytes(const Job& job, const Layout& layout, std::int32_t shards);

/// Of what may leave, the shares (0 to 1) that the GPU does not hold. Weights come back for every
/// pass, gradients for every micro-batch but the first; states are stepped where they are.
struct Absent {
  double weights = 0, gradients = 0, states = 0;
};

/// What may leave a stage of `parameters` that has `over` bytes too many with everything on it (and
/// no F32 copies of gradients, whose step leaves). One, but where the strategy chooses
/// (`optimizer_share` below 0): then those among which the pass does, in sixteenths where it has
/// them, windows apart.
std::vector<Absent> choices(const Probed& probed, const Layout& layout, double parameters,
                            double over);

/// The stages without what is absent: bytes, seconds of copies by pass, the host's part of the
/// step, for which the ranks of a node share its cores.
GridCosts offloaded(const Probed& probed, const Layout& layout, GridCosts grid,
                    const Absent& absent, Prices& prices);

}  // namespace gputwin
