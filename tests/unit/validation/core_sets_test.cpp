// Which cores the threads of a rank work on.
#include "validation/executors/host/core_sets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace gputwin::executors {
namespace {

using testing::ElementsAre;

// Eight cores for two ranks: four each, the first of them for the compute stream.
TEST(CoreSets, ARankOfSeveralCoresComputesOnItsFirst) {
  const std::vector<int> usable{0, 1, 2, 3, 8, 9, 10, 11};
  EXPECT_THAT(cores_of(0, 2, usable).compute, ElementsAre(0));
  EXPECT_THAT(cores_of(0, 2, usable).others, ElementsAre(1, 2, 3));
  EXPECT_THAT(cores_of(1, 2, usable).compute, ElementsAre(8));
  EXPECT_THAT(cores_of(1, 2, usable).others, ElementsAre(9, 10, 11));
}

// Three cores for two ranks leave one over; five ranks on them take turns.
TEST(CoreSets, RanksWithOneCoreOrLessAreWhollyThere) {
  const std::vector<int> usable{2, 5, 6};
  for (const std::size_t ranks : {2u, 5u}) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const CoreSet set = cores_of(rank, ranks, usable);
      EXPECT_THAT(set.compute, ElementsAre(usable[rank % 3]));
      EXPECT_EQ(set.others, set.compute);
    }
  }
}

TEST(CoreSets, AThreadStaysWhereItIsTold) {
  const std::vector<int> usable = usable_cores();
  ASSERT_FALSE(usable.empty());
  std::vector<int> seen, untouched;
  std::thread([&] {
    stay_on({});
    untouched = usable_cores();
    stay_on({usable.back()});
    seen = usable_cores();
  }).join();
  EXPECT_EQ(untouched, usable);
  EXPECT_THAT(seen, ElementsAre(usable.back()));
  EXPECT_TRUE(cores_of(0, 1, {}).compute.empty());
}

}  // namespace
}  // namespace gputwin::executors
