#include "strategies/overlap/partition.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

namespace gputwin {
namespace {

// Three figures of the first m units in some chunks: none of a front is below another in all.
// Of one block (end of kernels, end of collectives, 0); of a row (sum c, sum r, max (c + r)).
struct State {
  std::array<double, 3> at{};
  std::int64_t last = 0;   // units of the last chunk
  std::size_t before = 0;  // state it continues, in the front of one chunk less
};
using Front = std::vector<State>;

bool dominates(const State& a, const State& b) {
  return a.at[0] <= b.at[0] && a.at[1] <= b.at[1] && a.at[2] <= b.at[2];
}

void insert(Front& front, const State& state) {
  for (const State& s : front) {
    if (dominates(s, state)) return;
  }
  std::erase_if(front, [&](const State& s) { return dominates(state, s); });
  front.push_back(state);
}

State next_in_block(const State& s, double c, double r) {
  const double computed = s.at[0] + c;
  return {.at = {computed, std::max(s.at[1], computed) + r, 0}};
}

State next_in_row(const State& s, double c, double r) {
  return {.at = {s.at[0] + c, s.at[1] + r, std::max(s.at[2], c + r)}};
}

double end_of_block(const State& s) { return s.at[1]; }
double period_of_row(const State& s) { return *std::max_element(s.at.begin(), s.at.end()); }

using Step = State (*)(const State&, double, double);

// Fronts by chunks and units: [k][m] holds what k chunks of m units together can reach.
std::vector<std::vector<Front>> fronts(const BlockCosts& block, std::int32_t max_chunks,
                                       Step step) {
  const std::size_t units = block.compute.size() - 1;
  std::vector<std::vector<Front>> all(static_cast<std::size_t>(max_chunks) + 1,
                                      std::vector<Front>(units + 1));
  all[0][0].push_back({});
  for (std::size_t k = 1; k < all.size(); ++k) {
    for (std::size_t m = 0; m < units; ++m) {
      for (std::size_t i = 0; i < all[k - 1][m].size(); ++i) {
        for (std::size_t x = 1; m + x <= units; ++x) {
          const auto before = static_cast<std::int64_t>(m), more = static_cast<std::int64_t>(x);
          State s =
              step(all[k - 1][m][i], block.kernels(before, more), block.exchange(before, more));
          s.last = static_cast<std::int64_t>(x);
          s.before = i;
          insert(all[k][m + x], s);
        }
      }
    }
  }
  return all;
}

std::vector<std::int64_t> chunks_of(const std::vector<std::vector<Front>>& all, std::size_t k,
                                    std::size_t index) {
  std::vector<std::int64_t> units;
  std::size_t m = all[k].size() - 1;
  for (; k > 0; --k) {
    const State& s = all[k][m][index];
    units.insert(units.begin(), s.last);
    m -= static_cast<std::size_t>(s.last);
    index = s.before;
  }
  return units;
}

Partition least(const BlockCosts& block, std::int32_t max_chunks, Step step,
                double (*value)(const State&)) {
  const auto all = fronts(block, max_chunks, step);
  Partition best{.units = {}, .seconds = std::numeric_limits<double>::infinity()};
  for (std::size_t k = 1; k < all.size(); ++k) {
    const Front& front = all[k].back();
    for (std::size_t i = 0; i < front.size(); ++i) {
      if (value(front[i]) >= best.seconds) continue;
      best = {.units = chunks_of(all, k, i), .seconds = value(front[i])};
    }
  }
  return best;
}

using ByPlace = std::vector<std::vector<double>>;

// Empty where the place of a chunk matters in no block.
ByPlace summed_by_place(const std::vector<BlockCosts>& layer, ByPlace BlockCosts::*table,
                        double (BlockCosts::*seconds)(std::int64_t, std::int64_t) const) {
  ByPlace sum;
  const bool placed =
      std::any_of(layer.begin(), layer.end(), [&](const auto& b) { return !(b.*table).empty(); });
  if (!placed) return sum;
  const std::size_t units = layer[0].compute.size() - 1;
  sum.assign(units, std::vector<double>(units + 1, 0.0));
  for (const BlockCosts& block : layer) {
    for (std::size_t m = 0; m < units; ++m) {
      for (std::size_t x = 1; m + x <= units; ++x) {
        sum[m][x] += (block.*seconds)(static_cast<std::int64_t>(m), static_cast<std::int64_t>(x));
      }
    }
  }
  return sum;
}

BlockCosts summed(const std::vector<BlockCosts>& layer) {
  BlockCosts sum = layer[0];
  for (std::size_t b = 1; b < layer.size(); ++b) {
    for (std::size_t x = 0; x < sum.compute.size(); ++x) {
      sum.compute[x] += layer[b].compute[x];
      sum.communicate[x] += layer[b].communicate[x];
    }
  }
  sum.placed = summed_by_place(layer, &BlockCosts::placed, &BlockCosts::kernels);
  sum.placed_exchange = summed_by_place(layer, &BlockCosts::placed_exchange, &BlockCosts::exchange);
  return sum;
}

struct Sums {
  double compute = 0, communicate = 0;
};

Sums sums(const std::vector<BlockCosts>& layer, const std::vector<std::int64_t>& units) {
  Sums s;
  for (const BlockCosts& block : layer) {
    std::int64_t before = 0;
    for (const std::int64_t x : units) {
      s.compute += block.kernels(before, x);
      s.communicate += block.exchange(before, x);
      before += x;
    }
  }
  return s;
}

constexpr std::int32_t kLayers = 3;  // of a row that decides

}  // namespace

std::vector<std::int64_t> equal_chunks(std::int64_t units, std::int64_t chunks) {
  std::vector<std::int64_t> list(static_cast<std::size_t>(chunks), units / chunks);
  for (std::int64_t i = 0; i < units % chunks; ++i) ++list[static_cast<std::size_t>(i)];
  return list;
}

Partition best_block_partition(const BlockCosts& block, std::int32_t max_chunks) {
  return least(block, max_chunks, next_in_block, end_of_block);
}

Partition best_period_partition(const BlockCosts& block, std::int32_t max_chunks) {
  return least(block, max_chunks, next_in_row, period_of_row);
}

double chain_seconds(const std::vector<BlockCosts>& layer, const std::vector<std::int64_t>& units,
                     std::int32_t layers) {
  std::vector<double> arrived(units.size(), 0.0);
  double computed = 0, communicated = 0;
  for (std::int32_t l = 0; l < layers; ++l) {
    for (const BlockCosts& block : layer) {
      std::int64_t before = 0;
      for (std::size_t i = 0; i < units.size(); ++i) {
        computed = std::max(computed, arrived[i]) + block.kernels(before, units[i]);
        communicated = std::max(communicated, computed) + block.exchange(before, units[i]);
        arrived[i] = communicated;
        before += units[i];
      }
    }
  }
  return std::max(computed, communicated);
}

double layer_seconds(const std::vector<BlockCosts>& layer, const std::vector<std::int64_t>& units,
                     double slowdown) {
  const double alone = chain_seconds(layer, units, kLayers);
  const Sums s = sums(layer, units);
  const double hidden = kLayers * (s.compute + s.communicate) - alone;
  return (alone + (slowdown - 1.0) * std::max(0.0, hidden)) / kLayers;
}

Partition best_layer_partition(const std::vector<BlockCosts>& layer, std::int32_t max_chunks,
                               double slowdown) {
  const BlockCosts sum = summed(layer);
  const auto units = static_cast<std::int64_t>(sum.compute.size()) - 1;
  const auto cap = static_cast<std::int32_t>(std::min<std::int64_t>(max_chunks, units));
  std::vector<std::vector<std::int64_t>> candidates;
  for (std::int64_t k = 1; k <= cap; ++k) candidates.push_back(equal_chunks(units, k));
  for (const Step step : {next_in_block, next_in_row}) {
    const auto all = fronts(sum, cap, step);
    for (std::size_t k = 2; k < all.size(); ++k) {
      for (std::size_t i = 0; i < all[k].back().size(); ++i) {
        candidates.push_back(chunks_of(all, k, i));
      }
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.size() < b.size(); });
  Partition best{.units = {}, .seconds = std::numeric_limits<double>::infinity()};
  for (std::vector<std::int64_t>& candidate : candidates) {
    const double seconds = layer_seconds(layer, candidate, slowdown);
    if (seconds >= best.seconds * (1.0 - 1e-12)) continue;
    best = {.units = std::move(candidate), .seconds = seconds};
  }
  return best;
}

double gain_bound(const std::vector<BlockCosts>& layer, const std::vector<std::int64_t>& units) {
  const Sums s = sums(layer, units);
  return (s.compute + s.communicate) / std::max(s.compute, s.communicate);
}

}  // namespace gputwin
