// Tables of schedules against the closed forms: bubble and micro-batches in flight.
#include "strategies/schedules/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace gputwin {
namespace {

Pass f(std::int32_t micro_batch, std::int32_t chunk = 0) { return {false, chunk, micro_batch}; }
Pass b(std::int32_t micro_batch, std::int32_t chunk = 0) { return {true, chunk, micro_batch}; }

// Finish time of the last pass if a forward of one chunk takes `forward` and a backward `backward`,
// messages take no time, and each stage keeps its order.
double makespan(const std::vector<StageTable>& tables, std::int32_t vpp, double forward,
                double backward) {
  const auto stages = static_cast<std::int32_t>(tables.size());
  const std::int32_t chunks = stages * vpp;
  std::map<std::tuple<bool, std::int32_t, std::int32_t>, double>
      done;  // backward, chunk, micro-batch
  std::vector<std::size_t> next(tables.size(), 0);
  std::vector<double> free(tables.size(), 0.0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::int32_t s = 0; s < stages; ++s) {
      const auto i = static_cast<std::size_t>(s);
      while (next[i] < tables[i].size()) {
        const Pass& p = tables[i][next[i]];
        const std::int32_t c = p.chunk * stages + s;
        double ready = 0.0;
        const bool starts = !p.backward && c == 0;
        const bool turns = p.backward && c == chunks - 1;
        const auto need = turns        ? std::tuple{false, c, p.micro_batch}
                          : p.backward ? std::tuple{true, c + 1, p.micro_batch}
                                       : std::tuple{false, c - 1, p.micro_batch};
        if (!starts) {
          const auto found = done.find(need);
          if (found == done.end()) break;
          ready = found->second;
        }
        free[i] = std::max(free[i], ready) + (p.backward ? backward : forward);
        done[{p.backward, c, p.micro_batch}] = free[i];
        ++next[i];
        moved = true;
      }
    }
  }
  for (std::size_t s = 0; s < tables.size(); ++s)
    EXPECT_EQ(next[s], tables[s].size()) << "deadlock";
  return *std::max_element(free.begin(), free.end());
}

std::int32_t peak_in_flight(const StageTable& table) {
  std::int32_t now = 0, peak = 0;
  for (const Pass& p : table) peak = std::max(peak, now += p.backward ? -1 : 1);
  return peak;
}

std::vector<StageTable> tables_of(Schedule schedule, std::int32_t pp, std::int32_t vpp,
                                  std::int32_t m) {
  Layout layout;
  layout.pp = pp;
  layout.vpp = vpp;
  layout.schedule = schedule;
  return schedule_tables(layout, m);
}

TEST(ScheduleTable, OneStageAlternates) {
  EXPECT_EQ(tables_of(Schedule::None, 1, 1, 2)[0], (StageTable{f(0), b(0), f(1), b(1)}));
}

TEST(ScheduleTable, GpipeRunsAllForwardsFirst) {
  EXPECT_EQ(gpipe_table(2), (StageTable{f(0), f(1), b(0), b(1)}));
}

// Stage 0 of 3 warms up with 2 forwards.
TEST(ScheduleTable, OneFOneBWarmsUp) {
  EXPECT_EQ(one_f_one_b_table(3, 0, 4),
            (StageTable{f(0), f(1), f(2), b(0), f(3), b(1), b(2), b(3)}));
  EXPECT_EQ(one_f_one_b_table(3, 2, 2), (StageTable{f(0), b(0), f(1), b(1)}));
}

// 2 stages, 2 chunks. Stage 1 warms up with 2 (2-1-1) + (2-1) 2 = 2 forwards, which are chunk 0 of
// both micro-batches of a group; then pairs.
TEST(ScheduleTable, InterleavedTakesGroupsOfMicroBatches) {
  // One group: all forwards, then all backwards, on both stages.
  const StageTable one_group{f(0), f(1), f(0, 1), f(1, 1), b(0, 1), b(1, 1), b(0), b(1)};
  EXPECT_EQ(interleaved_table(2, 2, 0, 2), one_group);
  EXPECT_EQ(interleaved_table(2, 2, 1, 2), one_group);
  // Two groups, last stage: (v - 1) p = 2 warm-up passes.
  EXPECT_EQ(interleaved_table(2, 2, 1, 4),
            (StageTable{f(0), f(1), f(0, 1), b(0, 1), f(1, 1), b(1, 1), f(2), b(0), f(3), b(1),
                        f(2, 1), b(2, 1), f(3, 1), b(3, 1), b(2), b(3)}));
}

// p = 4, M = 12, F = 1, B = 2: M (F + B) + (p - 1)(F + B) = 36 + 9 = 45 for GPipe and 1F1B.
TEST(ScheduleTable, BubbleIsPMinusOnePairs) {
  EXPECT_DOUBLE_EQ(makespan(tables_of(Schedule::Gpipe, 4, 1, 12), 1, 1.0, 2.0), 45.0);
  EXPECT_DOUBLE_EQ(makespan(tables_of(Schedule::OneFOneB, 4, 1, 12), 1, 1.0, 2.0), 45.0);
}

// Two chunks per stage, each half as long: the bubble halves to 4.5, so 40.5.
TEST(ScheduleTable, InterleavingDividesTheBubble) {
  EXPECT_DOUBLE_EQ(makespan(tables_of(Schedule::Interleaved, 4, 2, 12), 2, 0.5, 1.0), 40.5);
}

// p = 8, M = 32, F = 1, B = 2 (input and weight gradients together): research table, 117 and 106.5.
TEST(ScheduleTable, PublishedMakespans) {
  EXPECT_DOUBLE_EQ(makespan(tables_of(Schedule::OneFOneB, 8, 1, 32), 1, 1.0, 2.0), 117.0);
  EXPECT_DOUBLE_EQ(makespan(tables_of(Schedule::Interleaved, 8, 2, 32), 2, 0.5, 1.0), 106.5);
}

// GPipe keeps M, 1F1B min(M, p - r), interleaving (in chunks) 2 (p - r - 1) + (v - 1) p + 1.
TEST(ScheduleTable, MicroBatchesInFlight) {
  EXPECT_EQ(peak_in_flight(gpipe_table(12)), 12);
  for (std::int32_t r = 0; r < 4; ++r) {
    EXPECT_EQ(peak_in_flight(one_f_one_b_table(4, r, 12)), 4 - r);
    EXPECT_EQ(peak_in_flight(one_f_one_b_table(4, r, 2)), std::min(2, 4 - r));
    EXPECT_EQ(peak_in_flight(interleaved_table(4, 3, r, 12)), 2 * (4 - r - 1) + 2 * 4 + 1);
  }
}

}  // namespace
}  // namespace gputwin
