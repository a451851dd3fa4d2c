// Fixed addresses: nothing that lives together overlaps, and how near the least possible they come.
#include "strategies/offload/allocation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace gputwin {
namespace {

// Up to 40 buffers of 1 to 64 bytes within 100 steps.
std::vector<Lifetime> random_lifetimes(std::mt19937& random, std::int64_t most_bytes) {
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  std::vector<Lifetime> list(static_cast<std::size_t>(draw(1, 40)));
  for (Lifetime& l : list) {
    l.begin = draw(0, 99);
    l.end = draw(l.begin + 1, 100);
    l.bytes = draw(1, most_bytes);
  }
  return list;
}

TEST(Allocation, NeverPutsTwoThatLiveTogetherOnOneByte) {
  std::mt19937 random(7);
  for (int k = 0; k < 500; ++k) {
    const std::vector<Lifetime> list = random_lifetimes(random, 64);
    for (const std::int64_t alignment : {1, 8}) {
      for (const Addresses& a :
           {greedy_by_size(list, Fit::First, alignment), greedy_by_size(list, Fit::Best, alignment),
            best_fit_in_order(list, alignment)}) {
        ASSERT_TRUE(disjoint(list, a.offsets));
        ASSERT_GE(a.bytes, lower_bound_bytes(list));
        for (const std::int64_t offset : a.offsets) ASSERT_EQ(offset % alignment, 0);
      }
    }
  }
}

TEST(Allocation, DisjointSeesAnOverlap) {
  const std::vector<Lifetime> two{{0, 2, 4}, {1, 3, 4}};
  EXPECT_FALSE(disjoint(two, {0, 3}));
  EXPECT_TRUE(disjoint(two, {0, 4}));
}

TEST(Allocation, SlotsAreAsManyAsLiveAtOnce) {
  std::mt19937 random(8);
  for (int k = 0; k < 500; ++k) {
    std::vector<Lifetime> list = random_lifetimes(random, 1);
    const Slots slots = colour_slots(list);
    ASSERT_EQ(slots.count, lower_bound_bytes(list));
    ASSERT_EQ(slots.count, slots.most_alive);
    ASSERT_TRUE(disjoint(list, {slots.of.begin(), slots.of.end()}));
  }
}

// On a cycle of 100 a buffer that crosses the border lives in two pieces.
TEST(Allocation, SlotsOnACycleNeedAtMostTheCrossingOnesMore) {
  std::mt19937 random(9);
  int crossed = 0;
  for (int k = 0; k < 500; ++k) {
    std::vector<Lifetime> list = random_lifetimes(random, 1);
    for (Lifetime& l : list) {
      if (random() % 5 == 0 && l.end < 100) std::swap(l.begin, l.end);
    }
    const Slots slots = colour_slots(list, 100);
    ASSERT_LE(slots.count, slots.most_alive + slots.crossing);
    crossed += slots.crossing;
    std::vector<Lifetime> pieces;
    std::vector<std::int64_t> offsets;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Lifetime& l = list[i];
      if (l.begin <= l.end) {
        pieces.push_back(l);
        offsets.push_back(slots.of[i]);
        continue;
      }
      pieces.push_back({l.begin, 100, 1});
      pieces.push_back({0, l.end, 1});
      offsets.insert(offsets.end(), 2, slots.of[i]);
    }
    ASSERT_TRUE(disjoint(pieces, offsets));
  }
  EXPECT_GT(crossed, 500);
}

// The example of google/minimalloc: 12 bytes suffice, and the lower bound says 11 do not.
TEST(Allocation, MiniMallocsExampleFitsTwelve) {
  const std::vector<Lifetime> list{{0, 3, 4}, {3, 9, 4}, {0, 9, 4}, {9, 21, 4}, {0, 21, 4}};
  EXPECT_EQ(lower_bound_bytes(list), 12);
  const ExactPlacement exact = place_exactly(list, 12);
  ASSERT_TRUE(exact.addresses.has_value());
  EXPECT_LE(exact.addresses->bytes, 12);
  EXPECT_TRUE(disjoint(list, exact.addresses->offsets));
  EXPECT_FALSE(place_exactly(list, 11).addresses.has_value());
  EXPECT_EQ(greedy_by_size(list).bytes, 12);
}

// Where the greedy placement is above the bound, the exact one is never above the greedy one, and
// what it proves impossible no greedy placement reaches.
TEST(Allocation, TheExactPlacementIsAtMostTheGreedyOne) {
  std::mt19937 random(10);
  int better = 0;
  for (int k = 0; k < 200; ++k) {
    std::vector<Lifetime> list = random_lifetimes(random, 9);
    if (list.size() > 8) list.resize(8);
    const std::int64_t greedy = greedy_by_size(list).bytes;
    const ExactPlacement same = place_exactly(list, greedy);
    ASSERT_TRUE(same.addresses.has_value());
    ASSERT_TRUE(disjoint(list, same.addresses->offsets));
    std::int64_t least = greedy;
    while (const auto found = place_exactly(list, least - 1).addresses) least = found->bytes;
    ASSERT_GE(least, lower_bound_bytes(list));
    better += least < greedy ? 1 : 0;
  }
  EXPECT_GT(better, 0);
}

}  // namespace
}  // namespace gputwin
