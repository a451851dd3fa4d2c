// Every layout worth asking about, and why the others are not.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "strategies/search/estimate.h"

namespace gputwin {

/// What a search ranges over. Empty lists: what the job and the cluster allow.
struct LayoutSpace {
  std::vector<std::int32_t> gpus;          // ranks in all; empty: those of the cluster
  std::int32_t most_tp = 0;                // 0: GPUs of a node
  std::int64_t fewest_tokens = 1024;       // of a sequence on one rank: bounds cp
  std::int64_t most_tokens = 32768;        // of a micro-batch on one rank: bounds its samples
  std::int32_t most_chunks_per_stage = 8;  // vpp
};

/// Why layouts were left out: how many, one of them, and what was missing.
struct Rejection {
  std::int64_t layouts = 0;
  std::string example;     // the layout, and the sentence that refuses it
  Bytes least_short_by{};  // memory: of the one that came closest
};

/// Layouts that were looked at.
struct SpaceCount {
  std::int64_t looked_at = 0, feasible = 0;
  std::map<std::string, Rejection> rejected;  // by reason, without its numbers
  bool stopped = false;
  std::optional<Layout> closest;  // to fitting into memory, if none did
  Bytes closest_short_by{};
};

/// "tp8 pp16 dp8 1f1b mb1 full zero1 sp overlap compress offload:greedy"
std::string layout_words(const Layout& layout);

/// Who watches: `found` gets the layouts that can be and fit, `keep_on` is told the share done now
/// and then and returns false to stop.
struct SpaceWatcher {
  std::function<void(const Layout&, const Estimate&)> found;
  std::function<bool(double share)> keep_on;
};

/// Scores every layout of `space`. Other settings of the layout (overlaps, bucket size, exchange of
/// context parallelism) are those of `base`. In a fixed order.
SpaceCount enumerate(const LayoutSpace& space, const Layout& base, const Transformer& model,
                     const Cluster& cluster, const Job& job, LayoutEstimator& estimator,
                     const SpaceWatcher& watcher);

}  // namespace gputwin
