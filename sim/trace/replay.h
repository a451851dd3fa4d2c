// Runs an imported profile again from its own durations and dependencies: the base of questions
// like "what if the matrix products took 10 % less", and a check of how much of it is understood.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "sim/trace/store.h"

namespace gputwin {

/// Factors on the durations of GPU work by kind; 1 replays what was.
using ReplayFactors = std::array<double, kSliceKinds>;

/// What came last before a start, and so decided it.
enum class Before : std::uint8_t {
  Stream,      // GPU work after the last of its stream
  Overlap,     // GPU work that began before the last of its stream had ended
  Launch,      // GPU work after its launch began
  Event,       // GPU work after that of another stream, by a recorded wait
  Completion,  // the end of a call that waits, after the GPU's work
  Host         // a call, after the last of its thread: what passes between is the host's own work
};
inline constexpr std::size_t kBefores = 6;
std::string_view label(Before before);

struct Replay {
  Ps measured = 0, replayed = 0;  // first start to last end of all that is replayed
  std::int64_t gpu = 0, calls = 0;
  std::int64_t launched = 0;      // GPU slices whose launch was found
  std::int64_t waits = 0;         // of a stream for another's event, as recorded
  std::int64_t contradicted = 0;  // dependencies left out: the times show that they did not hold
  std::int64_t unresolved = 0;    // recorded waits left out: what they name has no work here
  std::int64_t unrecorded = 0;    // calls that let a stream wait, without a record of for what
  Ps overlapping = 0;             // GPU work that began before its stream's last one had ended
  /// Replay against what was measured, minus 1.
  double error() const {
    return measured > 0 ? static_cast<double>(replayed) / static_cast<double>(measured) - 1 : 0;
  }
};

/// What is replayed: GPU kernels, copies and memsets, and the host's calls of CUDA. Work of a
/// stream begins after the stream's last, after its launch (by correlation) and after the work that
/// its stream was told to wait for; a host thread's call begins after its last one, and one that
/// synchronises ends after the work it waits for. What passed between the last of these and the
/// measured start (launch latency, the host's own work) is kept as it was: with factors of 1 the
/// measured time comes back by construction and proves nothing, see check_replay(). A trace without
/// such calls is replayed by its streams alone. Durations are scaled by `factors`.
///
/// A reconstruction: dependencies through events that the profiler did not record are missing, so
/// that with factors other than 1 the result is a lower bound.
Replay replay(const Store& store, const ReplayFactors& factors);
Replay replay(const Store& store);

/// GPU work is explained if it begins within this of what its known dependencies and the typical
/// gap after them say; beyond, it waited for something that the trace does not tell.
inline constexpr Ps kExplained = 50'000'000;  // 50 us: some launches, below any step of a model

/// A replay in which starts are not kept: every gap before GPU work, and before the return of a
/// call that waited for it, is the median of its kind in this trace. Only the host's own work
/// between its calls is kept, as it is a duration. What is then off was waiting whose cause is not
/// known.
struct ReplayCheck {
  Replay exact;     // with the gaps as they were
  Ps replayed = 0;  // with typical ones
  struct Gap {
    std::int64_t count = 0;
    Ps median = 0;
  };
  std::array<Gap, kBefores> gaps{};  // by Before; of Host no median is used
  std::int64_t unexplained = 0;      // GPU work that began later than kExplained allows
  Ps unexplained_time = 0;           // by how much, in all
  Ps longest = 0;                    // of them, and which
  SliceId example = kNoSlice;
  Ps moved_p50 = 0, moved_p95 = 0;  // by how much starts of GPU work differ from the measured ones
  Ps host = 0;  // of `replayed`: the host's own work that decided it, which is taken as measured
  double error() const {
    return exact.measured > 0
               ? static_cast<double>(replayed) / static_cast<double>(exact.measured) - 1
               : 0;
  }
};
ReplayCheck check_replay(const Store& store);

}  // namespace gputwin
