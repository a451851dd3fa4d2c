// The dynamic programme against every partition there is.
#include "strategies/overlap/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

namespace gputwin {
namespace {

// Kernels t0 + x c and collectives latency + x r, with noise: chunks of odd sizes may be cheap.
BlockCosts random_block(std::mt19937& random, std::int64_t units) {
  const auto draw = [&random](double low, double high) {
    return low + (high - low) * static_cast<double>(random()) / static_cast<double>(random.max());
  };
  const double t0 = draw(0, 2), c = draw(0.1, 3), latency = draw(0, 2), r = draw(0.1, 3);
  BlockCosts block;
  for (std::int64_t x = 0; x <= units; ++x) {
    block.compute.push_back(t0 + static_cast<double>(x) * c * draw(0.8, 1.2));
    block.communicate.push_back(latency + static_cast<double>(x) * r * draw(0.8, 1.2));
  }
  return block;
}

void each_partition(std::int64_t units, std::int32_t most,
                    const std::function<void(const std::vector<std::int64_t>&)>& act) {
  std::vector<std::int64_t> list;
  const std::function<void(std::int64_t)> go = [&](std::int64_t left) {
    if (left == 0) return act(list);
    if (list.size() == static_cast<std::size_t>(most)) return;
    for (std::int64_t x = 1; x <= left; ++x) {
      list.push_back(x);
      go(left - x);
      list.pop_back();
    }
  };
  go(units);
}

double period(const BlockCosts& b, const std::vector<std::int64_t>& units) {
  double c = 0, r = 0, most = 0;
  for (const std::int64_t x : units) {
    const auto i = static_cast<std::size_t>(x);
    c += b.compute[i];
    r += b.communicate[i];
    most = std::max(most, b.compute[i] + b.communicate[i]);
  }
  return std::max({c, r, most});
}

TEST(Partition, EqualsBruteForceOn600Instances) {
  std::mt19937 random(7);
  for (int instance = 0; instance < 600; ++instance) {
    const std::int64_t units = 1 + static_cast<std::int64_t>(random() % 10);
    const auto most = static_cast<std::int32_t>(1 + random() % 8);
    const BlockCosts block = random_block(random, units);
    double least_end = 1e9, least_period = 1e9;
    each_partition(units, most, [&](const std::vector<std::int64_t>& p) {
      least_end = std::min(least_end, chain_seconds({block}, p, 1));
      least_period = std::min(least_period, period(block, p));
    });
    const Partition end = best_block_partition(block, most);
    EXPECT_NEAR(end.seconds, least_end, 1e-12) << instance;
    EXPECT_NEAR(chain_seconds({block}, end.units, 1), least_end, 1e-12) << instance;
    const Partition row = best_period_partition(block, most);
    EXPECT_NEAR(row.seconds, least_period, 1e-12) << instance;
    EXPECT_NEAR(period(block, row.units), least_period, 1e-12) << instance;
  }
}

// Attention of a part of a sequence: kernels cost c x + a x (2 m + x) behind m units. The programme
// walks the same way, so that its partition of one block is still the best of all.
TEST(Partition, KnowsWhatAChunkCostsByItsPlace) {
  std::mt19937 random(23);
  for (int instance = 0; instance < 200; ++instance) {
    const std::int64_t units = 2 + static_cast<std::int64_t>(random() % 8);
    BlockCosts block = random_block(random, units);
    const double attention = static_cast<double>(random() % 100) / 100;
    block.placed.assign(static_cast<std::size_t>(units), block.compute);
    for (std::int64_t m = 0; m < units; ++m) {
      for (std::int64_t x = 1; m + x <= units; ++x) {
        block.placed[static_cast<std::size_t>(m)][static_cast<std::size_t>(x)] +=
            attention * static_cast<double>(x * (2 * m + x));
      }
    }
    double least = 1e9;
    each_partition(units, 4, [&](const std::vector<std::int64_t>& p) {
      least = std::min(least, chain_seconds({block}, p, 1));
    });
    EXPECT_NEAR(best_block_partition(block, 4).seconds, least, 1e-12) << instance;
  }
}

// Units that are not alike, as the parts of a sequence that no count divides: unit i is weights[i]
// long, so that kernels and collectives both depend on where a chunk lies.
TEST(Partition, TakesUnitsThatAreNotAlike) {
  std::mt19937 random(29);
  for (int instance = 0; instance < 200; ++instance) {
    const std::size_t units = 2 + random() % 7;
    const double c = 0.1 + static_cast<double>(random() % 100) / 100;
    const double r = 0.1 + static_cast<double>(random() % 100) / 100;
    std::vector<double> weights(units);
    for (double& w : weights) w = 1 + static_cast<double>(random() % 3);
    BlockCosts block = random_block(random, static_cast<std::int64_t>(units));
    block.placed.assign(units, std::vector<double>(units + 1, 0.0));
    block.placed_exchange = block.placed;
    for (std::size_t m = 0; m < units; ++m) {
      double length = 0;
      for (std::size_t x = 1; m + x <= units; ++x) {
        length += weights[m + x - 1];
        block.placed[m][x] = c * length + 0.3;
        block.placed_exchange[m][x] = r * length + 0.2;
      }
    }
    double least = 1e9, least_period = 1e9;
    each_partition(static_cast<std::int64_t>(units), 4, [&](const std::vector<std::int64_t>& p) {
      least = std::min(least, chain_seconds({block}, p, 1));
      // Each further layer of an endless row adds a period.
      least_period =
          std::min(least_period, chain_seconds({block}, p, 41) - chain_seconds({block}, p, 40));
    });
    EXPECT_NEAR(best_block_partition(block, 4).seconds, least, 1e-9) << instance;
    EXPECT_NEAR(best_period_partition(block, 4).seconds, least_period, 1e-9) << instance;
  }
}

// Kernels of x (2 m + x): the halves of 4 units take 2 x 2 = 4 and 2 (4 + 2) = 12, as the whole 16.
TEST(Partition, ALaterChunkOfASequenceTakesLonger) {
  BlockCosts block{{0, 1, 4, 9, 16}, {0, 0, 0, 0, 0}};
  block.placed.assign(4, std::vector<double>(5, 0.0));
  for (std::size_t m = 0; m < 4; ++m) {
    for (std::size_t x = 1; m + x <= 4; ++x) {
      block.placed[m][x] = static_cast<double>(x * (2 * m + x));
    }
  }
  EXPECT_EQ(block.kernels(2, 2), 12);
  EXPECT_EQ(chain_seconds({block}, {2, 2}, 1), 4 + 12);
  EXPECT_EQ(chain_seconds({block}, {4}, 1), 16);
}

// The period is the slope of a long row of blocks.
TEST(Partition, PeriodIsTheCycleMeanOfTheEventGraph) {
  std::mt19937 random(3);
  for (int instance = 0; instance < 200; ++instance) {
    const BlockCosts block = random_block(random, 8);
    each_partition(8, 3, [&](const std::vector<std::int64_t>& p) {
      const double slope = (chain_seconds({block}, p, 400) - chain_seconds({block}, p, 200)) / 200;
      EXPECT_NEAR(slope, period(block, p), 1e-9);
    });
  }
}

// Two streams that never idle take at least as long as the busier one.
TEST(Partition, GainStaysBelowTheBoundOfTheSplitSums) {
  std::mt19937 random(11);
  for (int instance = 0; instance < 500; ++instance) {
    const std::vector<BlockCosts> layer{random_block(random, 8), random_block(random, 8)};
    const Partition best = best_layer_partition(layer, 8, 1.0);
    double apart = 0;
    for (const BlockCosts& b : layer) {
      for (const std::int64_t x : best.units) {
        apart +=
            b.compute[static_cast<std::size_t>(x)] + b.communicate[static_cast<std::size_t>(x)];
      }
    }
    EXPECT_LE(apart / best.seconds, gain_bound(layer, best.units) * (1 + 1e-12));
    EXPECT_LE(gain_bound(layer, best.units), 2.0);
    EXPECT_LE(best.seconds, chain_seconds(layer, {8}, 1) * (1 + 1e-12));
  }
}

// A launch that costs more than a collective: splitting cannot pay. Contention that eats the gain.
TEST(Partition, OneChunkWhereNothingIsWon) {
  const BlockCosts launches{{0, 10, 10.1, 10.2, 10.3}, {0, 1, 1, 1, 1}};
  EXPECT_EQ(best_layer_partition({launches}, 4, 1.0).units, (std::vector<std::int64_t>{4}));
  const BlockCosts even{{0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}};
  EXPECT_GT(best_layer_partition({even}, 4, 1.0).units.size(), 1u);
  EXPECT_EQ(best_layer_partition({even}, 4, 2.5).units.size(), 1u);
}

}  // namespace
}  // namespace gputwin
