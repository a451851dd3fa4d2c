// Error tables of a few made-up rows.
#include "validation/runs/scoring.h"

#include <gmock/gmock.h>

namespace gputwin {
namespace {

using testing::DoubleNear;
using testing::Optional;

PublishedRun row(const std::string& group, double measured_s, bool scorable = true) {
  PublishedRun run;
  run.group = group;
  run.kind = "dense-A100";
  run.config = {{"device_id", "a100-sxm-80gb"}};
  run.target.time_s = measured_s;
  run.scorable = scorable;
  return run;
}

Prediction predicted(double time_s) {
  Prediction p;
  p.status = RowStatus::Ok;
  p.time_s = time_s;
  p.low_s = 0.9 * time_s;
  p.high_s = 1.1 * time_s;
  return p;
}

// 1 2 3 4 against 1 3 2 4: of six pairs five agree and one does not: (5 - 1) / 6.
TEST(KendallTau, CountsPairs) {
  EXPECT_THAT(kendall_tau({{1, 1}, {2, 3}, {3, 2}, {4, 4}}), Optional(DoubleNear(4.0 / 6, 1e-12)));
  EXPECT_THAT(kendall_tau({{1, 3}, {2, 2}, {3, 1}}), Optional(DoubleNear(-1, 1e-12)));
}

// A tie in one list leaves 2 pairs there and 3 in the other, both agree: 2 / sqrt(6).
TEST(KendallTau, TiesShortenIt) {
  EXPECT_THAT(kendall_tau({{1, 1}, {1, 2}, {3, 3}}), Optional(DoubleNear(2 / std::sqrt(6), 1e-12)));
}

TEST(KendallTau, NeedsThreePairsAndTwoValues) {
  EXPECT_EQ(kendall_tau({{1, 1}, {2, 2}}), std::nullopt);
  EXPECT_EQ(kendall_tau({{1, 5}, {2, 5}, {3, 5}}), std::nullopt);
}

// Places 0, 1, 2, 3: quantile 0.95 lies at place 2.85, between 3 and 10.
TEST(Quantile, InterpolatesBetweenNeighbours) {
  const std::vector<double> values{10, 1, 3, 2};
  EXPECT_DOUBLE_EQ(quantile(values, 0), 1);
  EXPECT_DOUBLE_EQ(quantile(values, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile(values, 0.95), 3 + 0.85 * 7);
  EXPECT_DOUBLE_EQ(quantile(values, 1), 10);
  EXPECT_DOUBLE_EQ(quantile({}, 0.5), 0);
}

// Errors +20 %, -10 % and +5 %: mean 35 / 3 %, median 10 %, bias +5 %; the intervals are 10 % wide
// either way, so 1 lies outside [1.08, 1.32] and inside [0.81, 0.99]? no: 1 > 0.99. Only the last,
// [0.945, 1.155], holds. tau needs different measured values: none.
TEST(Scores, OfThreeRows) {
  const std::vector<PublishedRun> runs{row("g", 1), row("g", 1), row("g", 1)};
  const Scores scores = score(runs, {predicted(1.2), predicted(0.9), predicted(1.05)});
  ASSERT_EQ(scores.kinds.size(), 2u);  // the kind, and all
  const ErrorSummary& e = scores.kinds[0].errors;
  EXPECT_EQ(e.n, 3);
  EXPECT_NEAR(e.mean, 0.35 / 3, 1e-12);
  EXPECT_NEAR(e.median, 0.10, 1e-12);
  EXPECT_NEAR(e.bias, 0.05, 1e-12);
  EXPECT_NEAR(e.inside, 1.0 / 3, 1e-12);
  EXPECT_EQ(e.tau, std::nullopt);
}

// Not scorable, without a time, or of one layer: no rows of a table. Not predicted: counted, but
// without an error.
TEST(Scores, CountWhatCanBeScored) {
  std::vector<PublishedRun> runs{row("g", 1), row("g", 1, false), row("g", 1), row("g", 1),
                                 row("g", 2)};
  runs[2].target.time_s.reset();
  runs[3].target.of_iteration = false;
  std::vector<Prediction> predictions(5, predicted(1.5));
  predictions[4] = {};
  const Scores scores = score(runs, predictions);
  ASSERT_EQ(scores.groups.size(), 1u);
  EXPECT_EQ(scores.groups[0].scorable, 2);
  EXPECT_EQ(scores.groups[0].predicted, 1);
  EXPECT_EQ(scores.groups[0].device, "a100-sxm-80gb");
  EXPECT_NEAR(scores.groups[0].errors.mean, 0.5, 1e-12);
}

// Composed times are a kind of their own and no part of "all measured".
TEST(Scores, KeepComposedTimesApart) {
  const std::vector<PublishedRun> runs{row("g", 1), row("vtrain-single", 1)};
  const Scores scores = score(runs, {predicted(1.1), predicted(2)});
  ASSERT_EQ(scores.kinds.size(), 3u);
  EXPECT_EQ(scores.kinds[1].kind, "dense-A100 (vtrain-single)");
  EXPECT_EQ(scores.kinds[2].errors.n, 1);
  EXPECT_NEAR(scores.kinds[2].errors.mean, 0.1, 1e-12);
}

TEST(Scores, OfMemoryAreByKindOfFigure) {
  std::vector<PublishedRun> runs{row("g", 1), row("g", 1)};
  std::vector<Prediction> predictions{predicted(1), predicted(1)};
  runs[0].target.memory_bytes = 100.0;
  runs[0].target.memory_kind = "allocated";
  predictions[0].memory_bytes = 90.0;
  const Scores scores = score(runs, predictions);
  ASSERT_EQ(scores.memory.size(), 2u);  // the kind of figure, and its group
  EXPECT_EQ(scores.memory[0].memory_kind, "allocated");
  EXPECT_EQ(scores.memory[0].group, "");
  EXPECT_NEAR(scores.memory[0].errors.bias, -0.1, 1e-12);
}

}  // namespace
}  // namespace gputwin
