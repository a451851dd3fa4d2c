// Questions to a timeline: what took the time, where is it, what explains the difference of two
// runs, what decided the end. Shared by the command line and the GUI, so that both say the same.
#pragma once

#include <array>
#include <stop_token>
#include <string>
#include <vector>

#include "sim/trace/store.h"

namespace gputwin {

enum class GroupBy : std::uint8_t { Name, Op, Kind, Layer, Phase, Process, Stream, MicroBatch };
inline constexpr std::size_t kGroupings = 8;
std::string_view label(GroupBy by);  // "operation", "kind", …

/// Slices of one group within a range. Times are cut to the range. Operations of the host that call
/// each other count once in `total`. Ranges around others (profile_event) are no work: they have
/// rows of their own by name, operation and phase, and none by kind, layer, rank, stream or
/// micro-batch.
struct GroupRow {
  std::string key;
  SliceKind kind = SliceKind::Other;  // of its first slice in the timeline
  std::int64_t count = 0;
  Ps total = 0, shortest = 0, longest = 0;
  SliceId example = kNoSlice;  // the longest
  bool around = false;         // ranges around others: not to be added to work
  bool operator==(const GroupRow&) const = default;
};

// Where a query takes a stop_token, it looks at it track by track; once stopped, its answer is of
// no use.

/// Rows by total time, longest first; ties by key. `tracks`: rows of Store::tracks; empty: all.
std::vector<GroupRow> aggregate(const Store& store, TimeRange range, GroupBy by,
                                const std::vector<std::uint32_t>& tracks = {},
                                const std::stop_token& stop = {});

/// Words that a slice's name, kind, phase or stream must all hold, whatever their case; "mb3" means
/// micro-batch 3, "layer7" or "L7" layer 7, ">2ms" and "<5us" durations, "rank3" a rank.
struct SearchHits {
  std::vector<SliceId> slices;  // the first `limit` by track and time
  std::int64_t total = 0;
  Ps time = 0;  // of all hits together
};
SearchHits search(const Store& store, const std::string& words, std::size_t limit = 100'000,
                  const std::stop_token& stop = {});

/// How the time of one process went within a range: its kinds of work by importance, each counted
/// only where nothing more important ran at the same time. Sums to the range. Ranges around others
/// are not counted: where nothing runs under them, the process is idle.
struct Exposure {
  std::array<Ps, kSliceKinds> exposed{};  // by kind
  std::array<Ps, kSliceKinds> busy{};     // by kind, hidden or not (its streams' time summed)
  Ps idle = 0;
};
Exposure exposure(const Store& store, std::uint32_t process, TimeRange range);

/// One group of two runs.
struct Difference {
  std::string key;
  SliceKind kind = SliceKind::Other;
  std::int64_t count_a = 0, count_b = 0;
  double time_a = 0, time_b = 0;  // seconds per process
  SliceId example_a = kNoSlice, example_b = kNoSlice;
};

struct Comparison {
  std::vector<Difference> rows;                      // largest change first
  std::int64_t matched = 0, only_a = 0, only_b = 0;  // slices by process, name and occurrence
  /// Of matched slices by kind: duration in B over that in A, minus 1. Bin i is 5 % wide around
  /// (i - 10) x 5 %; the first and the last are open.
  static constexpr std::size_t kBins = 21;
  std::array<std::array<std::int64_t, kBins>, kSliceKinds> errors{};
};
Comparison compare(const Store& a, const Store& b, GroupBy by);

/// One piece of a critical path.
struct PathStep {
  SliceId slice = kNoSlice;
  Ps begin = 0, end = 0;  // the part that decides; waiting before it is a step without slice
};

/// What decided when the last slice ended, from the last piece backwards in time (returned in order
/// of time). From the trace alone: before a slice stands what ended last of its stream, of its
/// process's other streams, and of what flows lead to it; a peer that came later to a communication
/// is followed. A reconstruction: dependencies that no flow shows are guessed by time.
std::vector<PathStep> critical_path(const Store& store, TimeRange range);

}  // namespace gputwin
