#include "sim/trace/power_timeline.h"

#include <gtest/gtest.h>

namespace gputwin {
namespace {

constexpr Ps kUs = 1'000'000;

// A GPU of 400 W that draws 0.2 of it idle and 0.3 busy; every kernel adds half of the limit.
PowerSource source() {
  return {[](RankId) {
            return PowerRates{400, 0.2, 0.3};
          },
          [](RankId, const Instruction&) { return 0.5; }};
}

OpEvent event(const Instruction& instruction, Ps start, Ps end, std::uint32_t rank = 0) {
  OpEvent e{};
  e.rank = RankId(rank);
  e.instruction = &instruction;
  e.start = start;
  e.end = end;
  return e;
}

// A kernel in the first microsecond and half of the third: (0.3 + 0.5) x 400 = 320 W, then idle
// 80 W, then half of each, 200 W; what follows the last task is idle.
TEST(PowerTimeline, IsIdleBusyAndWhatTasksAdd) {
  Instruction kernel{};
  kernel.kind = Kind::Kernel;
  PowerTimeline power(source(), {RankId(0)});
  power.op(event(kernel, 0, kUs));
  power.op(event(kernel, 2 * kUs, 2 * kUs + kUs / 2));
  const auto samples = power.samples(0);
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_DOUBLE_EQ(samples[0].watts, 320);
  EXPECT_EQ(samples[1].at, kUs);
  EXPECT_DOUBLE_EQ(samples[1].watts, 80);
  EXPECT_DOUBLE_EQ(samples[2].watts, 200);
  EXPECT_EQ(samples[3].at, 2 * kUs + kUs / 2);
  EXPECT_DOUBLE_EQ(samples[3].watts, 80);
}

// A collective under a kernel takes the streams, not the units: busy counts once. Three kernels at
// once would draw 0.3 + 3 x 0.5: the limit holds.
TEST(PowerTimeline, CountsBusyOnceAndStopsAtTheLimit) {
  Instruction kernel{}, collective{};
  kernel.kind = Kind::Kernel;
  collective.kind = Kind::Collective;
  PowerTimeline power(source(), {RankId(0)});
  power.op(event(kernel, 0, kUs));
  power.op(event(collective, 0, kUs));
  EXPECT_DOUBLE_EQ(power.samples(0)[0].watts, 320);
  power.op(event(kernel, 0, kUs));
  power.op(event(kernel, 0, kUs));
  EXPECT_DOUBLE_EQ(power.samples(0)[0].watts, 400);
}

// Other ranks, host tasks, and devices whose limit is not known draw nothing.
TEST(PowerTimeline, SaysNothingWhereNothingIsKnown) {
  Instruction kernel{}, host{};
  kernel.kind = Kind::Kernel;
  host.kind = Kind::HostTask;
  PowerTimeline watched(source(), {RankId(1)});
  watched.op(event(kernel, 0, kUs, 0));
  watched.op(event(host, 0, kUs, 1));
  EXPECT_TRUE(watched.samples(0).empty());
  PowerTimeline unknown({}, {RankId(0)});
  unknown.op(event(kernel, 0, kUs));
  EXPECT_TRUE(unknown.samples(0).empty());
}

}  // namespace
}  // namespace gputwin
