// A bound on kernels that communicate tile by tile: no strategy, nothing that a machine runs.
#pragma once

#include "strategies/passes/overlap.h"

namespace gputwin {

/// `lowered` with every product of a layer that stands beside a tensor-parallel collective priced
/// as if both were one kernel of tiles (Flux, Chang et al. 2024): max(product, collective) + one
/// tile of 128 x 128 over the whole reduction.
///
/// What a product computes, and what is sent, stays as it is. The collective keeps its time and the
/// product is stated (Op::stated) to take what is left of it, max(0, product - collective) + tile;
/// so what ran under the collective counts as exposed communication, not as compute. An ideal: no
/// contention, no lost multiprocessors, no start-up of pieces; but the exchange is NCCL's, which
/// direct messages may beat (Flux over PCIe). Without prices nothing changes. A product with a
/// collective on either side is joined with the one before it.
Lowered fused_bound(Lowered lowered, const StagePrices& prices);

}  // namespace gputwin
