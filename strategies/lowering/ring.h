// Ring exchange (Wang et al., ASPLOS 2023; XLA's windowed einsum): with sequence parallelism the
// gather before a product becomes tp products of one member's tokens each, while token shards pass
// around a ring of sends; the scatter after a product becomes tp products whose sums travel to the
// rank that keeps them. One way, tp - 1 steps; both ways at once, half as many.
#pragma once

#include <functional>

#include "strategies/lowering/stage_builder.h"

namespace gputwin {

/// True where the layers' gathers and scatters are rings: not beside adapters and 8-bit copies.
bool has_rings(const StageBuilder& b);

/// Calls `act` with every member's token shard of what `shard` is a part of, the own one first, and
/// with the rows that it is.
void ring_gather(StageBuilder& b, const std::string& name, const View& shard,
                 const std::function<void(const View& held, RingRows of)>& act);

/// The token shard of the sum over tp of what `produce` writes: to `part`, the partial result of
/// the rows named.
View ring_scatter(StageBuilder& b, const std::string& name, std::int64_t cols,
                  const std::function<void(const View& part, RingRows of)>& produce);

}  // namespace gputwin
