// Tables of schedules against the closed forms: bubble and micro-batches in flight.
#include "strategies/schedules/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace gputwin {
namespace {

Pass f(std::int32_t micro_batch, std::int32_t chunk = 0) {
  return {PassKind::Forward, chunk, micro_batch};
}
Pass b(std::int32_t micro_batch, std::int32_t chunk = 0) {
  return {PassKind::Backward, chunk, micro_batch};
}

// What passes of one chunk take.
struct Times {
  double forward = 1, backward = 1, weight_grad = 1;
  double of(PassKind kind) const {
    switch (kind) {
      case PassKind::Forward: return forward;
      case PassKind::Backward: return backward;
      case PassKind::WeightGrad: return weight_grad;
    }
    return 0;
  }
};

// Start of the first and end of the last pass of every stage, if messages take no time and each
// stage keeps its order. Every pass must be there, and must run: no deadlock.
struct Span {
  double begin = -1, end = 0;
};
std::vector<Span> spans(const Layout& layout, const std::vector<StageTable>& tables,
                        const Times& times) {
  using Key = std::tuple<PassKind, std::int32_t, std::int32_t>;  // model chunk, micro-batch
  std::map<Key, double> done;                                    // as the stage itself sees it
  std::map<Key, double> sent;                                    // as others do
  std::vector<std::vector<Key>> unsent(tables.size());
  std::map<Key, std::size_t> owner;
  const auto on_stage = [&](const Key& key) { return owner.at(key); };
  std::vector<std::size_t> next(tables.size(), 0);
  std::vector<Span> stages(tables.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < tables.size(); ++s) {
      for (; next[s] < tables[s].size(); ++next[s], moved = true) {
        const Pass& p = tables[s][next[s]];
        const std::int32_t c = layout.chunk_at(static_cast<std::int32_t>(s), p.chunk);
        double ready = 0.0;
        const bool turns = p.kind == PassKind::Backward && c == layout.chunks() - 1;
        const Key need =
            turns                            ? Key{PassKind::Forward, c, p.micro_batch}
            : p.kind == PassKind::Backward   ? Key{PassKind::Backward, c + 1, p.micro_batch}
            : p.kind == PassKind::WeightGrad ? Key{PassKind::Backward, c, p.micro_batch}
                                             : Key{PassKind::Forward, c - 1, p.micro_batch};
        if (p.kind != PassKind::Forward || c > 0) {
          const auto& known = done.contains(need) && on_stage(need) == s ? done : sent;
          const auto found = known.find(need);
          if (found == known.end()) break;
          ready = found->second;
        }
        const double start = std::max(stages[s].end, ready);
        if (stages[s].begin < 0) stages[s].begin = start;
        stages[s].end = start + times.of(p.kind);
        EXPECT_TRUE(done.emplace(Key{p.kind, c, p.micro_batch}, stages[s].end).second);
        owner[{p.kind, c, p.micro_batch}] = s;
        unsent[s].push_back({p.kind, c, p.micro_batch});
        if (p.joined) continue;
        for (const Key& key : unsent[s]) sent[key] = stages[s].end;
        unsent[s].clear();
      }
    }
  }
  for (std::size_t s = 0; s < tables.size(); ++s)
    EXPECT_EQ(next[s], tables[s].size()) << "deadlock";
  return stages;
}

double makespan(const Layout& layout, const std::vector<StageTable>& tables, const Times& times) {
  double end = 0;
  for (const Span& s : spans(layout, tables, times)) end = std::max(end, s.end);
  return end;
}

Layout layout_of(Schedule schedule, std::int32_t pp, std::int32_t vpp = 1) {
  Layout layout;
  layout.pp = pp;
  layout.vpp = vpp;
  layout.schedule = schedule;
  return layout;
}

double makespan(Schedule schedule, std::int32_t pp, std::int32_t vpp, std::int32_t m,
                const Times& times) {
  const Layout layout = layout_of(schedule, pp, vpp);
  return makespan(layout, schedule_tables(layout, m), times);
}

// The longest stage from its first to its last pass: the period of iterations that follow one
// another without a flush.
double period(Schedule schedule, std::int32_t pp, std::int32_t m) {
  const Layout layout = layout_of(schedule, pp);
  double longest = 0;
  for (const Span& s : spans(layout, schedule_tables(layout, m), {})) {
    longest = std::max(longest, s.end - s.begin);
  }
  return longest;
}

// Micro-batches that a stage holds at most, until their last pass.
std::int32_t peak_in_flight(const StageTable& table) {
  const auto grads = [](const Pass& p) { return p.kind == PassKind::WeightGrad; };
  const bool split = std::any_of(table.begin(), table.end(), grads);
  const PassKind ends = split ? PassKind::WeightGrad : PassKind::Backward;
  std::int32_t now = 0, peak = 0;
  for (const Pass& p : table) {
    if (p.kind == PassKind::Forward) peak = std::max(peak, ++now);
    if (p.kind == ends) --now;
  }
  return peak;
}

std::vector<StageTable> tables_of(Schedule schedule, std::int32_t pp, std::int32_t vpp,
                                  std::int32_t m) {
  return schedule_tables(layout_of(schedule, pp, vpp), m);
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
  EXPECT_DOUBLE_EQ(makespan(Schedule::Gpipe, 4, 1, 12, {1.0, 2.0}), 45.0);
  EXPECT_DOUBLE_EQ(makespan(Schedule::OneFOneB, 4, 1, 12, {1.0, 2.0}), 45.0);
}

// Two chunks per stage, each half as long: the bubble halves to 4.5, so 40.5.
TEST(ScheduleTable, InterleavingDividesTheBubble) {
  EXPECT_DOUBLE_EQ(makespan(Schedule::Interleaved, 4, 2, 12, {0.5, 1.0}), 40.5);
}

// p = 8, M = 32, F = 1, B = 2 (input and weight gradients together): research table, 117 and 106.5.
TEST(ScheduleTable, PublishedMakespans) {
  EXPECT_DOUBLE_EQ(makespan(Schedule::OneFOneB, 8, 1, 32, {1.0, 2.0}), 117.0);
  EXPECT_DOUBLE_EQ(makespan(Schedule::Interleaved, 8, 2, 32, {0.5, 1.0}), 106.5);
}

// p = 8, M = 32, F = B = W = 1. ZB-H1: 96 and (p - 1)(F + B - W) = 7. ZB-H2: no stage ever waits,
// so the last, which starts 7 late, ends at 103, and iterations follow one another every 96.
TEST(ScheduleTable, ZeroBubbleMakespans) {
  EXPECT_DOUBLE_EQ(makespan(Schedule::ZbH1, 8, 1, 32, {}), 103.0);
  EXPECT_DOUBLE_EQ(makespan(Schedule::ZbH2, 8, 1, 32, {}), 103.0);
  EXPECT_DOUBLE_EQ(period(Schedule::ZbH1, 8, 32), 103.0);
  EXPECT_DOUBLE_EQ(period(Schedule::ZbH2, 8, 32), 96.0);
}

// The same for any number of stages, and of micro-batches from p (ZB-H1) and 2p - 1 (ZB-H2).
TEST(ScheduleTable, ZeroBubbleClosedForms) {
  for (const std::int32_t p : {2, 3, 4, 5, 7, 8}) {
    for (const std::int32_t m : {p, 2 * p - 1, 2 * p + 1, 5 * p + 3}) {
      EXPECT_DOUBLE_EQ(makespan(Schedule::ZbH1, p, 1, m, {}), 3.0 * m + p - 1) << p << " " << m;
      if (m < 2 * p) continue;
      EXPECT_DOUBLE_EQ(period(Schedule::ZbH2, p, m), 3.0 * m) << p << " " << m;
    }
  }
}

// ZB-H1 holds p micro-batches on every stage, ZB-H2 up to 2p - 1: once and twice 1F1B's first.
TEST(ScheduleTable, ZeroBubbleMicroBatchesInFlight) {
  for (const std::int32_t p : {2, 4, 8}) {
    std::int32_t peak = 0;
    for (const StageTable& t : tables_of(Schedule::ZbH1, p, 1, 4 * p)) {
      EXPECT_EQ(peak_in_flight(t), p);
    }
    for (const StageTable& t : tables_of(Schedule::ZbH2, p, 1, 4 * p)) {
      peak = std::max(peak, peak_in_flight(t));
    }
    EXPECT_EQ(peak, 2 * p - 1);
  }
}

// Small and odd numbers: every pass once, in an order that runs (spans() checks both).
TEST(ScheduleTable, EveryOrderRuns) {
  const auto every = {std::pair{Schedule::Gpipe, 1},  std::pair{Schedule::OneFOneB, 1},
                      std::pair{Schedule::ZbH1, 1},   std::pair{Schedule::ZbH2, 1},
                      std::pair{Schedule::Zb1p, 1},   std::pair{Schedule::Zb2p, 1},
                      std::pair{Schedule::ZbV, 2},    std::pair{Schedule::Hanayo, 2},
                      std::pair{Schedule::Hanayo, 4}, std::pair{Schedule::DualPipe, 1},
                      std::pair{Schedule::Chimera, 1}};
  for (const auto& [schedule, vpp] : every) {
    const bool both = placement(schedule) == Placement::TwoWay;
    for (std::int32_t p = 2; p <= 8; p += both ? 2 : 1) {
      for (std::int32_t m : {1, 2, 3, p, p + 1, 3 * p - 1}) {
        if (both) m = 2 * (m + (schedule == Schedule::DualPipe ? p : 0));
        const Layout layout = layout_of(schedule, p, vpp);
        const auto tables = schedule_tables(layout, m);
        const std::size_t passes = splits_backward(schedule) ? 3 : 2;
        for (const StageTable& t : tables)
          EXPECT_EQ(t.size(), passes * static_cast<std::size_t>(m * vpp));
        spans(layout, tables, {1, 1.5, 0.5});
      }
    }
  }
}

// p = 8, M = 32: ZB-V keeps 2p chunks of half a stage, what 1F1B's first stage holds, and waits 7
// half units: 192 + 7 of them.
TEST(ScheduleTable, ZbVHasTheMemoryOfOneFOneB) {
  const Layout layout = layout_of(Schedule::ZbV, 8, 2);
  const auto tables = schedule_tables(layout, 32);
  EXPECT_DOUBLE_EQ(makespan(layout, tables, {}), 199.0);
  std::int32_t peak = 0;
  for (const StageTable& t : tables) peak = std::max(peak, peak_in_flight(t));
  EXPECT_EQ(peak, 16);
}

// DualPipe, p = 8, M = 32, F = B = W = 1. Every stage works 96 and waits, by its authors,
// (p/2 - 1)(F&B + B - 3W) with F&B = F + B + W, not overlapped, and B whole: 3 x (3 + 2 - 3) = 6.
// p + 1 micro-batches are in flight.
TEST(ScheduleTable, DualPipe) {
  const Layout layout = layout_of(Schedule::DualPipe, 8);
  const auto tables = schedule_tables(layout, 32);
  EXPECT_DOUBLE_EQ(makespan(layout, tables, {}), 102.0);
  for (const StageTable& t : tables) EXPECT_LE(peak_in_flight(t), 9);
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
