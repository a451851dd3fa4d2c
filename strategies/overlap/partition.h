// The partition of a micro-batch into chunks, so that the collective of one runs under the kernels
// of the next: a dynamic programme over Pareto sets.
//
// Source: recurrence and states of AccTFM (TPDS 2022) as reconstructed from its abstract; the cycle
// mean of the event graph in place of a single block's end where blocks follow one another.
#pragma once

#include <cstdint>
#include <vector>

namespace gputwin {

/// Kernels, then one collective, of a chunk of x units: seconds by x (entry 0 is not read). Both
/// streams take chunks and blocks in order; a chunk's kernels wait for its collective of the block
/// before.
struct BlockCosts {
  std::vector<double> compute, communicate;
  /// Where a chunk's kernels also depend on what went before it (attention of a part of a
  /// sequence): seconds by units before the chunk, then by x, in place of `compute`; else empty.
  std::vector<std::vector<double>> placed{};
  /// Alike in place of `communicate`, where units are not alike.
  std::vector<std::vector<double>> placed_exchange{};

  double kernels(std::int64_t before, std::int64_t x) const {
    return at(placed, compute, before, x);
  }
  double exchange(std::int64_t before, std::int64_t x) const {
    return at(placed_exchange, communicate, before, x);
  }

 private:
  static double at(const std::vector<std::vector<double>>& by_place, const std::vector<double>& all,
                   std::int64_t before, std::int64_t x) {
    const auto m = static_cast<std::size_t>(before), n = static_cast<std::size_t>(x);
    return by_place.empty() || x == 0 ? all[n] : by_place[m][n];
  }
};

struct Partition {
  std::vector<std::int64_t> units;  // of each chunk, in order of issue
  double seconds = 0;
};

/// End of the last collective of one block, least over all partitions into at most `max_chunks`.
/// Ties: fewer chunks. O(max_chunks U^2 x front).
Partition best_block_partition(const BlockCosts& block, std::int32_t max_chunks);

/// Time from one block of an endless row of alike blocks to the next,
/// max(sum c, sum r, max_i (c_i + r_i)), least over all partitions into at most `max_chunks`.
Partition best_period_partition(const BlockCosts& block, std::int32_t max_chunks);

/// End of the last collective when `layers` layers of these blocks follow one another.
double chain_seconds(const std::vector<BlockCosts>& layer, const std::vector<std::int64_t>& units,
                     std::int32_t layers);

/// Units of chunks for a row of layers. Candidates: the fronts of both programmes above on the sums
/// over the layer's blocks, and equal chunks; each is run for three layers. Kernels take
/// `slowdown` times as long while a collective runs. Ties: fewer chunks, so that one chunk is kept
/// where nothing is won.
Partition best_layer_partition(const std::vector<BlockCosts>& layer, std::int32_t max_chunks,
                               double slowdown);

/// Of one of three such layers, kernels slowed down as there.
double layer_seconds(const std::vector<BlockCosts>& layer, const std::vector<std::int64_t>& units,
                     double slowdown);

/// Chunks alike, but for one unit where `chunks` does not divide `units`.
std::vector<std::int64_t> equal_chunks(std::int64_t units, std::int64_t chunks);

/// What a split can win at most: (C + R) / max(C, R), C and R the sums over the chunks.
double gain_bound(const std::vector<BlockCosts>& layer, const std::vector<std::int64_t>& units);

}  // namespace gputwin
