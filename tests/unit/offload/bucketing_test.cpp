// Sizes of buckets.
#include "strategies/offload/bucketing.h"

#include <gtest/gtest.h>

namespace gputwin {
namespace {

using Sizes = std::vector<std::int64_t>;

TEST(Bucketing, FillsInOrderAndSetsHugeTensorsApart) {
  EXPECT_EQ(fill_buckets({3, 3, 3, 20, 2, 3, 4}, 6), (Sizes{6, 3, 20, 9}));
  EXPECT_EQ(fill_buckets({}, 6), Sizes{});
}

// 95 % of 12 GB/s with 10 us to start: 19 x 10 us x 12 GB/s = 2.28 MB.
TEST(Bucketing, KnowsHowMuchACopyNeeds) {
  EXPECT_EQ(efficient_copy(Seconds(10e-6), BytesPerSecond(12e9), 0.05).value, 2'280'000);
}

// Layers of 7 + 5: buckets of 12 waste nothing, of 7 they waste 2 of 14 every other slot.
TEST(Bucketing, ChoosesTheLimitThatWastesLeast) {
  Sizes tensors;
  for (int layer = 0; layer < 10; ++layer) tensors.insert(tensors.end(), {7, 5});
  EXPECT_EQ(fill_buckets(tensors, 8), Sizes(10, 12));
  EXPECT_EQ(choose_bucket_elements(tensors, 6, 12, 1), 8);
  // An embedding of 100 has a bucket of its own and makes no slot.
  tensors.push_back(100);
  EXPECT_EQ(choose_bucket_elements(tensors, 6, 12, 1), 8);
}

// Layers of norm 1, 30 + 10, norm 1, 40, 40. Buckets of 40 hold 41, 41 and 40: nothing is left
// over. Every other limit leaves a norm, or what follows the 30, in a slot of 40 by itself.
TEST(Bucketing, TriesTheSizesOfTensors) {
  Sizes tensors;
  for (int layer = 0; layer < 4; ++layer) tensors.insert(tensors.end(), {1, 30, 10, 1, 40, 40});
  EXPECT_EQ(choose_bucket_elements(tensors, 20, 40, 7), 40);
}

}  // namespace
}  // namespace gputwin
