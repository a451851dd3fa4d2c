// One hardware queue: starts follow the order of issue.
#include "strategies/passes/single_queue.h"

#include <gtest/gtest.h>

namespace gputwin {
namespace {

Instruction task(Kind kind, std::uint8_t stream, std::uint16_t flags = 0) {
  return {.kind = kind, .stream = stream, .flags = flags, .call = 0, .name = 0};
}

// A kernel on stream 0, a collective on 1, two kernels on 0: an event before the first of each pair
// that changes streams, and none between the last two.
TEST(SingleQueue, WaitsForTheStartOfWhatWasIssuedBefore) {
  Plan plan;
  plan.programs.resize(1);
  plan.programs[0].events = 5;
  plan.programs[0].body = {task(Kind::Kernel, 0), task(Kind::Collective, 1), task(Kind::Kernel, 0),
                           task(Kind::Kernel, 0)};
  const Program out = single_queue(plan).programs[0];
  const std::vector<Kind> kinds{Kind::Record,     Kind::Kernel, Kind::Wait,   Kind::Record,
                                Kind::Collective, Kind::Wait,   Kind::Kernel, Kind::Kernel};
  ASSERT_EQ(out.body.size(), kinds.size());
  for (std::size_t i = 0; i < kinds.size(); ++i) EXPECT_EQ(out.body[i].kind, kinds[i]) << i;
  EXPECT_EQ(out.body[2].stream, 1);
  EXPECT_EQ(out.body[2].event, 5u);  // a new event, recorded before the first kernel
  EXPECT_EQ(out.body[5].event, 6u);
  EXPECT_EQ(out.events, 7u);
}

TEST(SingleQueue, KeepsGroupsOfMessagesTogether) {
  Plan plan;
  plan.programs.resize(1);
  plan.programs[0].body = {task(Kind::Send, 1, kGrouped), task(Kind::Recv, 2, kGrouped)};
  EXPECT_EQ(single_queue(plan), plan);
}

}  // namespace
}  // namespace gputwin
