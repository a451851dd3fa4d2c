#include "sim/trace/store.h"

#include <gtest/gtest.h>

#include "tests/unit/trace/trace_world.h"

namespace gputwin {
namespace {

// Host thread: outer [0,100), inner [10,40) and [40,90), innermost [20,30). Depth by containment.
TEST(Store, LaysNestedSlicesOutInRowsOfTheirDepth) {
  StoreBuilder builder;
  const std::uint32_t host = builder.thread(builder.process({"python", "", -1, -1}), "main", 0);
  const std::uint32_t d = builder.definition(named("f", SliceKind::Host));
  for (const auto& [start, duration] : {std::pair{20, 10}, {0, 100}, {40, 50}, {10, 30}}) {
    builder.slice(host, start, duration, d);
  }
  const Store store = builder.finish("t");
  ASSERT_EQ(store.tracks.size(), 3u);
  EXPECT_EQ(store.tracks[0].count, 1u);
  EXPECT_EQ(store.tracks[1].count, 2u);
  EXPECT_EQ(store.tracks[2].count, 1u);
  EXPECT_EQ(store.start(store.at(store.tracks[2], 25)), 20);
  EXPECT_EQ(store.at(store.tracks[2], 35), kNoSlice);
  EXPECT_EQ(store.range(), (TimeRange{0, 100}));
}

// 2^32 - 1 ps = 4.29 ms is the longest duration of the narrow column.
TEST(Store, KeepsDurationsBeyondFourMillisecondsExactly) {
  StoreBuilder builder;
  const std::uint32_t t = builder.thread(builder.process({"p", "", -1, -1}), "s", 0);
  const std::uint32_t d = builder.definition(named("f", SliceKind::Gemm));
  const Ps durations[] = {0xfffffffe, 0xffffffff, 31'500'000'000'123, 5};
  Ps at = 7;
  for (const Ps duration : durations) {
    builder.slice(t, at, duration, d);
    at += duration;
  }
  const Store store = builder.finish("t");
  for (SliceId s = 0; s < 4; ++s) EXPECT_EQ(store.duration(s), durations[s]);
  EXPECT_EQ(store.range().end, at);
}

TEST(Store, ComposesNamesWithTheirMicroBatch) {
  StoreBuilder builder;
  const std::uint32_t t = builder.thread(builder.process({"p", "", -1, -1}), "s", 0);
  const std::uint32_t d = builder.definition(framed("F/mb", "/L3/fc1", SliceKind::Gemm));
  builder.slice(t, 0, 1, d, 12, 3);
  builder.slice(t, 1, 1, d);
  const Store store = builder.finish("t");
  EXPECT_EQ(store.name(0), "F/mb12/L3/fc1");
  EXPECT_EQ(store.body(0), 3u);
  EXPECT_FALSE(store.framed(1));
}

TEST(Store, FindsFlowsByBothEnds) {
  StoreBuilder builder;
  const std::uint32_t p = builder.process({"p", "", -1, -1});
  const std::uint32_t a = builder.thread(p, "a", 0), b = builder.thread(p, "b", 1);
  const std::uint32_t d = builder.definition(named("f", SliceKind::PpComm));
  builder.slice(a, 0, 10, d);
  builder.slice(b, 5, 10, d);
  builder.flow(a, 6, b, 6);
  builder.flow(a, 600, b, 600);  // nothing there: left out, and said
  const Store store = builder.finish("t");
  ASSERT_EQ(store.flows().size(), 1u);
  EXPECT_EQ(store.flows_from(0).size(), 1u);
  EXPECT_EQ(store.flows_to(1).size(), 1u);
  EXPECT_TRUE(store.flows_to(0).empty());
  EXPECT_EQ(store.track_of(1), 1u);
  ASSERT_EQ(store.warnings.size(), 1u);
}

// Against brute force: the share of each pixel that slices cover. The bins of the level of detail
// are rounded to 1/255 and do not align with pixels, so whole rows are compared: their sum within
// 2 % of the row.
TEST(Store, CoverageOfPixelsIsThatOfTheSlices) {
  const Store store = random_store(20'000, 3);
  for (const double pixels : {100.0, 700.0, 1900.0}) {
    for (std::uint32_t t = 0; t < store.tracks.size(); ++t) {
      const TimeRange range = store.range();
      const double per_pixel = static_cast<double>(range.length()) / pixels;
      std::vector<Cell> cells(static_cast<std::size_t>(pixels));
      ASSERT_TRUE(store.draw_cells(t, static_cast<double>(range.begin), per_pixel, cells));
      double drawn = 0, truth = 0;
      for (const Cell& cell : cells) drawn += cell.cover / 255.0 * per_pixel;
      const Track& track = store.tracks[t];
      for (SliceId s = track.first; s < track.first + track.count; ++s) {
        truth += static_cast<double>(store.duration(s));
      }
      EXPECT_NEAR(drawn / truth, 1.0, 0.02) << pixels;
    }
  }
}

// Columns are 20 B a slice; level of detail adds 3.2 B at most.
TEST(Store, TakesAtMost24BytesASlice) {
  const Store store = random_store(50'000, 5);
  EXPECT_LE(static_cast<double>(store.slice_bytes()) / static_cast<double>(store.size()), 24.0);
}

// 300 slices of 1 ps, a nanosecond apart: no pixel of 100 ns that holds one may be empty.
TEST(LevelOfDetail, ShortSlicesNeverVanish) {
  StoreBuilder builder;
  const std::uint32_t t = builder.thread(builder.process({"p", "", -1, -1}), "s", 0);
  const std::uint32_t d = builder.definition(named("f", SliceKind::Gemm));
  for (Ps s = 0; s < 300; ++s) builder.slice(t, s * 1000, 1, d);
  const Store store = builder.finish("t");
  std::vector<Cell> cells(3);
  ASSERT_TRUE(store.draw_cells(0, 0, 100'000, cells));
  for (const Cell& cell : cells) EXPECT_GE(cell.cover, 1);
}

// Moving by whole bins gives the same bins: no shimmer while panning.
TEST(LevelOfDetail, PanningByPixelsMovesThePicture) {
  LevelOfDetail::Builder builder(-5'000, 995'000, 1'000);
  for (Ps s = 0; s < 1'000; ++s) {
    builder.add(s * 1'000 - 5'000, 1 + s * 7 % 900, static_cast<SliceKind>(s % 5));
  }
  const LevelOfDetail detail = builder.finish();
  const auto per_pixel = 2 * static_cast<double>(detail.finest());
  std::vector<Cell> here(200), there(200);
  detail.draw(-10 * per_pixel, per_pixel, here);
  detail.draw(-3 * per_pixel, per_pixel, there);
  for (std::size_t x = 0; x + 7 < 200; ++x) EXPECT_EQ(here[x + 7], there[x]);
  EXPECT_GT(there[3].cover, 0);  // from time 0 on
}

// 1,000 rows zoomed out must not touch their slices. As many bins as pixels: 5,000 slices of a row
// on 1,700 pixels are 2.9 a pixel, and there is one bin for 2.5 of them at least.
TEST(LevelOfDetail, BinsAreFineEnoughForRowsOfFewThousandSlices) {
  LevelOfDetail::Builder builder(0, 5'000'000, 5'000);
  for (Ps s = 0; s < 5'000; ++s) builder.add(s * 1'000, 900, SliceKind::Gemm);
  EXPECT_LE(static_cast<double>(builder.finish().finest()), 5'000'000 / 1'700.0);
}

}  // namespace
}  // namespace gputwin
