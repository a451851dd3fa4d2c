// Sizes of buckets, and DeepSpeed's estimates of what is left on the GPU.
#include "strategies/offload/bucketing.h"

#include <gtest/gtest.h>

#include "strategies/offload/estimates.h"

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

// T5-large on 4 GPUs of one node: rows of DeepSpeed's documentation (memory.rst), in MiB.
TEST(Estimates, AreThoseOfDeepSpeedForT5Large) {
  ZeroStates s{.parameters = 737'670'000, .largest_layer = 32'900'000, .gpus = 4, .nodes = 1};
  const auto mib = [](Bytes b) { return static_cast<double>(b.value) / (1 << 20); };
  EXPECT_NEAR(mib(zero_states(s).gpu), 3291, 1);
  s.optimizer_on_cpu = true;
  EXPECT_NEAR(mib(zero_states(s).gpu), 477, 1);
  s.params_on_cpu = true;
  EXPECT_NEAR(mib(zero_states(s).gpu), 125, 1);
}

}  // namespace
}  // namespace gputwin
