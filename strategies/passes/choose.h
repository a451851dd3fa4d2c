// What the passes `overlap` and `compress` leave open, chosen by the costs of a middle layer.
#pragma once

#include "sim/core/cluster.h"
#include "sim/core/workload.h"
#include "strategies/passes/overlap.h"

namespace gputwin {

/// The layout with chunks and codecs filled in, and what the choice rests on.
struct PassChoice {
  Layout layout;
  double blocking_seconds = 0;  // estimate of a layer forward and backward, blocking, uncompressed
  double chosen_seconds = 0;
  double gain_bound = 1;  // of splitting, by the sums over the chosen chunks
};

/// Chunks by the dynamic programme (partition.h), codecs by enumeration under the error bound, both
/// together: every codec with its best chunks. None and one chunk stay candidates, so a choice is
/// never slower by these costs. Codecs of gradients and messages then, each class on its own
/// (choose_codecs.h). With sequence parallelism, and for chunks of a
/// sequence, both directions share one partition. Without
/// `prices.costs` nothing is compared: equal chunks and the codecs as given.
Outcome<PassChoice> choose_passes(const Transformer& model, const Cluster& cluster,
                                  const Layout& layout, const Job& job, const StagePrices& prices);

}  // namespace gputwin
