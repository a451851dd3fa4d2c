// Iteration time and memory of a layout in closed form, cheap enough to score every layout there
// is.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "strategies/search/chunk_table.h"

namespace gputwin {

/// A layout as the closed form sees it. Where memory is short beyond doubt, `memory` is a lower
/// bound and the times are 0.
struct Estimate {
  Seconds iteration{};
  Seconds pipeline{};      // of it: forward and backward passes with messages, fill and drain
  Seconds reduction{};     // of it: gradients not hidden under backward
  Seconds optimizer{};     // of it: zeroing, norm, step, gathering
  Bytes memory{};          // of the fullest GPU: allocated, context and communicators
  Bytes capacity{};        // of that GPU; 0: unknown
  std::int32_t stage = 0;  // that it belongs to

  bool fits() const { return capacity.value == 0 || memory <= capacity; }
};

/// Scores layouts of one Transformer job on one cluster.
///
/// Time. Every chunk's forward and backward F, B of a micro-batch come from tables of small jobs
/// that are lowered and walked as the real one would be (chunk_table.h), so the parts are those of
/// the event simulator; only their composition is a formula. With p stages, M micro-batches, and
/// messages added to passes (blocking) or to fill and drain (overlapped):
///
///   gpipe        sum F + (M-1) max F + sum B + (M-1) max B
///   1f1b         max over stages s of the two ways in which s can be the bottleneck:
///                  sum F + sum B + (M-1) B_s + (M - min(M, p-s)) F_s      after its first backward
///                  sum_{<s} F + M (F_s + B_s) + sum_{<s} B                never idle once begun
///                (equal stages: (M + p - 1)(F + B))
///   interleaved  max over s of sum_{<s} f + M (F_s + B_s) + sum_{<s} b, f and b of one chunk
///
/// then the largest of (end of the stage's last backward + its exposed gradient reduction), the
/// gradient norm and the slowest step of the optimizer.
///
/// Memory. Persistent bytes and activations of the lowered tables; micro-batches in flight M
/// (gpipe), min(M, p-s) (1f1b), (p (v-1) + 2 (p-s) - 1) / v (interleaved). Blocks of the allocator
/// are counted, its fragmentation is not: the event simulator replays it.
///
/// Offload (offload_costs.h). What leaves is taken from persistent bytes but for three slots. A
/// pass takes at least as long as its copies, or with fetches on demand so much longer. The host's
/// step follows the last backward pass, or, by bucket and without the norm, hides under it. Where
/// the strategy chooses what leaves, the fastest of its shares that fits.
///
/// Not seen: rank orders and devices of ranks other than the default within a stage, stragglers.
/// Source  Narayanan et al. 2021 (bubble), Fan et al. 2021, DAPPLE (reduction in the drain).
class LayoutEstimator {
 public:
  /// All must outlive the estimator.
  LayoutEstimator(const Transformer& model, const Cluster& cluster, const Job& job,
                  const CostModel& costs, const Topology& topology);
  ~LayoutEstimator();
  LayoutEstimator(const LayoutEstimator&) = delete;
  LayoutEstimator& operator=(const LayoutEstimator&) = delete;

  /// Infeasible: the layout cannot be (feasibility.h). Memory is not judged: see Estimate::fits.
  /// The first layout of a kind costs milliseconds, every further one less than ten microseconds.
  Outcome<Estimate> estimate(const Layout& layout);

  /// Times and sizes of the chunks of `layout`, for one that can be.
  const ChunkTable& table(const Layout& layout, DeviceKindId device);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gputwin
