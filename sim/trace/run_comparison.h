// Two runs of one job, usually a prediction (A) and what was measured (B): where the time went in
// each, what each kind of operation was off by, which operations have no counterpart.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/trace/alignment.h"
#include "sim/trace/store.h"

namespace gputwin {

/// Where the time of a rank goes. In order of importance: at every moment only the first of those
/// that happen counts, so that the parts sum to the rank's time.
enum class TimePart : std::uint8_t {
  Compute,
  Optimizer,
  TpComm,  // transfer that nothing above hides
  DpComm,
  PpComm,
  OtherComm,
  Wait,  // in a communication, for members that come later
  Copy,
  Host,   // the host's own work, or the GPU idle while the host prepares or launches
  Bubble  // nothing at all
};
inline constexpr std::size_t kTimeParts = 10;
/// "compute", "exposed tp communication", …
std::string_view label(TimePart part);
/// The part that an operation of this kind counts for; not Wait nor Bubble.
TimePart part_of(SliceKind kind);
using PartTimes = std::array<double, kTimeParts>;  // seconds per iteration, by TimePart

struct RankTimes {
  std::int32_t rank = 0;
  PartTimes a{}, b{};
  double busy_a = 0, busy_b = 0;  // compute and optimizer
};

/// Durations of paired slices, communications without their waiting; an error is A / B - 1, as of
/// a prediction against a measurement.
struct KindErrors {
  SliceKind kind = SliceKind::Other;
  std::int64_t pairs = 0;
  double time_a = 0, time_b = 0;             // seconds, of all pairs
  double mean = 0;                           // of the errors
  double absolute = 0, median = 0, p95 = 0;  // mean, 50th and 95th percentile of their sizes
};

/// All slices of one operation, per rank and iteration.
struct OpTimes {
  std::string op, phase;
  SliceKind kind = SliceKind::Other;
  double count_a = 0, count_b = 0;
  double time_a = 0, time_b = 0;  // seconds; waiting apart
  double wait_a = 0, wait_b = 0;
};

/// Operations that stand in one run alone, all ranks and iterations.
struct Unmatched {
  std::string op, phase;
  SliceKind kind = SliceKind::Other;
  std::int64_t count = 0;
  double time_s = 0;
};

struct RunComparison {
  std::int32_t iterations_a = 1, iterations_b = 1;
  double iteration_a = 0, iteration_b = 0;  // seconds
  PartTimes a{}, b{};                       // mean of the common ranks; sum to the iterations
  std::vector<RankTimes> ranks;             // ascending
  std::vector<KindErrors> kinds;            // with pairs, by kind
  KindErrors all;                           // of every pair
  std::vector<OpTimes> ops;                 // largest change of time and wait first
  std::vector<Unmatched> only_a, only_b;    // longest first
  std::vector<std::pair<std::string, std::string>> renamed;  // guessed, by A's name
  std::int64_t pairs = 0;
  std::array<std::int64_t, kPairedBys> paired_by{};  // pairs by how they were found
  std::int64_t alone_a = 0, alone_b = 0;             // slices without a counterpart
  std::vector<Unordered> unordered;                  // kinds too different to pair by order
  std::size_t ranks_a = 0, ranks_b = 0;              // that work
  bool ranks_by_order = false;
  bool wait_is_bound = false;  // some communications are linked by no flow: their wait is a guess
  /// Ranks whose work takes more than one standard deviation and more than 10 % beyond the mean:
  /// the rule by which Megatron-LM reports stragglers. Positions in `ranks`.
  std::vector<std::size_t> stragglers_a, stragglers_b;
};

/// Time that counts as the run: whole iterations of a profile (from the first "ProfilerStep#" to
/// the end of the last), else all of it.
TimeRange run_range(const Store& store);

RunComparison compare_runs(const Store& a, const Store& b);

/// Positions of values that exceed the mean by more than one standard deviation and by more than
/// 10 %. At least three values, else none.
std::vector<std::size_t> stragglers(const std::vector<double>& values);

/// Both runs as one timeline, each from its own beginning; processes of A first, then B's.
Store joint_store(const Store& a, const Store& b);

}  // namespace gputwin
