// Which slice of one run is which of another: by rank, phase, micro-batch, layer, operation and
// occurrence, wherever and whenever it ran.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/trace/store.h"

namespace gputwin {

/// Whether a slice is something a device, a link or a host did for the job: not a range that only
/// annotates others, and not a host's call in an imported profile.
bool is_work(const Definition& definition);

/// Rank of a process: the one it names, else its place among the processes that work. -1: none.
std::vector<std::int32_t> ranks_of(const Store& store);

/// Iterations that a timeline holds: bodies of a plan, or "ProfilerStep#" ranges of PyTorch's
/// profiler that are whole; at least 1.
std::int32_t iterations_of(const Store& store);

enum class PairedBy : std::uint8_t {
  Name,   // phase, micro-batch, layer, operation, occurrence
  Place,  // another name at the same phase, layer and kind, as often
  Order   // nothing but kind and order: the n-th matrix product is the n-th
};
inline constexpr std::size_t kPairedBys = 3;

struct SlicePair {
  SliceId a = kNoSlice, b = kNoSlice;
  PairedBy by = PairedBy::Name;
};

/// Counts of a kind on a rank, per iteration, that are too different to pair by order.
struct Unordered {
  std::int32_t rank = 0;  // of A
  SliceKind kind = SliceKind::Other;
  double a = 0, b = 0;
};

/// Of the larger count: what the other may lack, so that slices are still paired by order.
inline constexpr double kOrderTolerance = 0.05;

struct Alignment {
  std::vector<SlicePair> pairs;                // by slice of B
  std::vector<SliceId> only_a, only_b;         // ascending; of ranks that both hold
  std::vector<std::int32_t> common_ranks;      // ascending; ranks of A
  std::map<std::string, std::string> renamed;  // operation in A to operation in B
  std::vector<Unordered> unordered;            // by rank, then kind
  bool ranks_by_order = false;  // no rank is in both: the first of A was set against that of B, …
};

/// Aligns the work of two runs. The key is (rank, phase, micro-batch, layer, operation); within a
/// key, slices match by occurrence, within the iteration where both hold whole ones. Operations
/// that stand in one run alone are then paired where phase, layer, kind and count are the same, in
/// order of their first start: `renamed`, a guess.
///
/// Of a kind of which a rank has no pair by then (a prediction against a profile, whose kernels
/// have names of their own), the n-th slice of an iteration meets the n-th, by start; a guess as
/// well. Only where every iteration has the same number of them, and those numbers differ between
/// the runs by at most kOrderTolerance; the last of the longer row stay alone. O(n log n).
Alignment align(const Store& a, const Store& b, std::int32_t iterations_a = 0,
                std::int32_t iterations_b = 0);

/// Time that each slice spent waiting for the other members of its communication, by slice: until
/// the last of them began (they are linked by flows). Where no flow links a communication, what it
/// took beyond the shortest like it (same operation and size, at least three), an upper bound.
std::vector<Ps> waiting_times(const Store& store);

}  // namespace gputwin
