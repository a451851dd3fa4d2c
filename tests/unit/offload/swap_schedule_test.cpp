// Who lies in which slot when: sound, without stall where that is possible, and near the best.
#include "strategies/offload/swap_schedule.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

namespace gputwin {
namespace {

// Objects used one after another for one second each.
SwapProblem in_order(const std::vector<std::int32_t>& order, std::int32_t slots, double load,
                     bool writes = false) {
  SwapProblem p;
  p.slots = slots;
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    p.objects = std::max(p.objects, order[i] + 1);
    p.uses.push_back({.object = order[i],
                      .first = i,
                      .last = i,
                      .begin = Seconds(i),
                      .end = Seconds(i + 1.0),
                      .reads = true,
                      .writes = writes});
  }
  p.load.assign(static_cast<std::size_t>(p.objects), Seconds(load));
  p.store = p.load;
  return p;
}

// Every use finds its object in its slot, and a slot changes hands only behind its last use.
void expect_sound(const SwapProblem& p, const SwapSchedule& s) {
  ASSERT_TRUE(s.feasible);
  ASSERT_EQ(s.slot_of_use.size(), p.uses.size());
  std::vector<std::int32_t> holds(static_cast<std::size_t>(p.slots), -1);
  std::vector<std::size_t> last(static_cast<std::size_t>(p.slots), kNever);
  std::vector<bool> dirty(static_cast<std::size_t>(p.slots), false);
  std::size_t load = 0, stores = 0;
  for (std::size_t u = 0; u < p.uses.size(); ++u) {
    for (; load < s.loads.size() && s.loads[load].before == u; ++load) {
      const SlotLoad& l = s.loads[load];
      const auto slot = static_cast<std::size_t>(l.slot);
      ASSERT_EQ(l.after, last[slot]);
      if (last[slot] != kNever) {
        ASSERT_LT(p.uses[last[slot]].last, p.uses[u].first);
      }
      stores += dirty[slot] ? 1 : 0;
      dirty[slot] = false;
      holds[slot] = l.object;
    }
    const auto slot = static_cast<std::size_t>(s.slot_of_use[u]);
    ASSERT_EQ(holds[slot], p.uses[u].object);
    last[slot] = u;
    if (p.uses[u].writes) dirty[slot] = true;
  }
  for (const bool d : dirty) stores += d ? 1 : 0;
  EXPECT_EQ(load, s.loads.size());
  EXPECT_EQ(stores, s.stores.size());
}

// Forward over 8 buckets and back with 4 slots: copies take 0.9 of a use, so each hides under the
// one before, and only the first is waited for.
TEST(SwapSchedule, StallsForTheFirstLoadAlone) {
  const SwapProblem p = in_order({0, 1, 2, 3, 4, 5, 6, 7, 7, 6, 5, 4, 3, 2, 1, 0}, 4, 0.9);
  const SwapSchedule s = plan_swaps(p);
  expect_sound(p, s);
  EXPECT_NEAR(s.stall.value, 0.9, 1e-12);
  // On demand each of the 12 loads (8, and 4 that had left) is waited for.
  const SwapSchedule demand = plan_swaps(p, OffloadPolicy::OnDemand);
  expect_sound(p, demand);
  EXPECT_EQ(demand.loads.size(), 12u);
  EXPECT_NEAR(demand.stall.value, 12 * 0.9, 1e-12);
}

// With one slot nothing can hide: each change of object waits for its load.
TEST(SwapSchedule, HidesNothingWithOneSlot) {
  const SwapProblem p = in_order({0, 1, 0, 1}, 1, 0.5);
  EXPECT_NEAR(plan_swaps(p).stall.value, 4 * 0.5, 1e-12);
}

// What a use overwrites is not loaded; what was written goes home once for each stay.
TEST(SwapSchedule, StoresWhatWasWrittenAndLoadsWhatIsRead) {
  SwapProblem p = in_order({0, 1, 2, 0}, 2, 0.5, true);
  for (SlotUse& u : p.uses) u.reads = false;
  const SwapSchedule s = plan_swaps(p);
  expect_sound(p, s);
  for (const SlotLoad& l : s.loads) EXPECT_FALSE(l.copies);
  EXPECT_EQ(s.stores.size(), s.loads.size());
}

TEST(SwapSchedule, SaysThatOneInstructionNeedsMore) {
  SwapProblem p = in_order({0, 1}, 1, 0.5);
  p.uses[1].first = 0;  // both objects in instruction 0
  EXPECT_FALSE(plan_swaps(p).feasible);
  p.slots = 2;
  EXPECT_TRUE(plan_swaps(p).feasible);
}

// Nothing comes back, and two of four slots are empty when object 2 is loaded. In that of object 0,
// free at 1.0, the load would end at 1.5, in time for 2.0; but the load of 3 behind it, which takes
// 1.0, would end at 2.5, where 3 is due at 2.2. In an empty one it ends at 0.5, and nothing waits.
TEST(SwapSchedule, LeavesTheEngineFreeForTheNextLoad) {
  SwapProblem p = in_order({0, 1, 2, 3}, 4, 0.5);
  p.load = {Seconds(0), Seconds(0), Seconds(0.5), Seconds(1.0)};
  p.uses[1].end = p.uses[2].begin = Seconds(2.0);
  p.uses[2].end = p.uses[3].begin = Seconds(2.2);
  p.uses[3].end = Seconds(3.0);
  EXPECT_NEAR(plan_swaps(p).stall.value, 0, 1e-12);
  EXPECT_NEAR(plan_swaps(p).stall.value, least_stall(p).value, 1e-12);
}

// 300 random problems of up to 6 objects and 12 uses, some in order of layers, some in any order.
TEST(SwapSchedule, IsNearTheBestOfAllChoices) {
  std::mt19937 random(11);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  double sum = 0, worst = 0;
  int stalled = 0;
  constexpr int kProblems = 300;
  for (int k = 0; k < kProblems; ++k) {
    const int objects = draw(3, 6);
    std::vector<std::int32_t> order;
    for (int i = 0; i < 12; ++i) {
      const int phase = i % (2 * objects);
      const int layer = phase < objects ? phase : 2 * objects - 1 - phase;
      order.push_back(k % 2 == 0 ? layer : draw(0, objects - 1));
    }
    SwapProblem p = in_order(order, draw(2, objects), 1.0, draw(0, 2) == 0);
    double now = 0;
    for (SlotUse& u : p.uses) {
      u.begin = Seconds(now);
      u.end = Seconds(now += 0.1 * draw(2, 20));
    }
    for (Seconds& t : p.load) t = Seconds(0.1 * draw(1, 25));
    const SwapSchedule s = plan_swaps(p);
    expect_sound(p, s);
    const double best = least_stall(p).value;
    ASSERT_GE(s.stall.value, best - 1e-9);
    const double gap = (now + s.stall.value) / (now + best) - 1.0;
    sum += gap;
    worst = std::max(worst, gap);
    stalled += best > 0 ? 1 : 0;
  }
  EXPECT_GT(stalled, kProblems / 2);
  std::printf("  gap to the best of all choices: mean %.2f %%, worst %.2f %%\n",
              100 * sum / kProblems, 100 * worst);
  EXPECT_LE(sum / kProblems, 0.05);
  EXPECT_LE(worst, 0.05);
}

}  // namespace
}  // namespace gputwin
