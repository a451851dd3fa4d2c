// Runs an imported profile again from its own durations and dependencies: how much of its time its
// recorded dependencies explain, and the base of questions like "what if the matrix products took
// 10 % less".
#pragma once

#include <array>

#include "sim/trace/store.h"

namespace gputwin {

/// Factors on the durations of GPU work by kind; 1 replays what was.
using ReplayFactors = std::array<double, kSliceKinds>;

struct Replay {
  Ps measured = 0, replayed = 0;  // first start to last end of all that is replayed
  Ps explained = 0;               // the same with typical gaps on the GPU, see replay
  std::int64_t gpu = 0, calls = 0;
  std::int64_t launched = 0;      // GPU slices whose launch was found
  std::int64_t waits = 0;         // of a stream for another's event, as recorded
  std::int64_t contradicted = 0;  // dependencies left out: the times show that they did not hold
  Ps overlapping = 0;             // GPU work that began before its stream's last one had ended
  std::int64_t late = 0;          // GPU work that began much later than its dependencies explain
  Ps late_by = 0;                 // in sum
  /// Replay against what was measured, minus 1: 0 with factors 1, by construction.
  double error() const { return against_measured(replayed); }
  /// The check: what is not 0 is time that the recorded dependencies do not explain.
  double explained_error() const { return against_measured(explained); }

 private:
  double against_measured(Ps time) const {
    return measured > 0 ? static_cast<double>(time) / static_cast<double>(measured) - 1 : 0;
  }
};

/// What is replayed: GPU kernels, copies and memsets, and the host's calls of CUDA. Work of a
/// stream begins after the stream's last, after its launch (by correlation) and after the work that
/// its stream was told to wait for; a host thread's call begins after its last one, and one that
/// synchronises ends after the work it waits for. What passed between the last of these and the
/// measured start (launch latency, the host's own work) is kept as it was. A trace without such
/// calls is replayed by its streams alone. Durations are scaled by `factors`.
///
/// `explained` forgets how long GPU work was measured to begin after the last of these: it begins
/// the median of such gaps of this trace later, by what kind of dependency was last (the stream's
/// last work, the launch, another stream). So a dependency that was not recorded, or not read,
/// shows: what waited for it begins too early. Work is late if it began 10 us and more after that.
///
/// A reconstruction: dependencies through events that the profiler did not record are missing, so
/// that with factors other than 1 the result is a lower bound.
Replay replay(const Store& store, const ReplayFactors& factors);
Replay replay(const Store& store);

}  // namespace gputwin
