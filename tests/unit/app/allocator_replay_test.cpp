// What PyTorch's allocator makes of a program: the plan's Alloc and Free in the order of issue.
#include "sim/app/allocator_replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/core/plan_text.h"

namespace gputwin {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

// A weight of 30 MiB stays. An activation of 12 MiB and one of 16 MiB come and go, one after the
// other, in each of two micro-batches; the second lives on the host.
Plan plan() {
  return parse_plan(R"(
arena gpu
arena host
buffer w bytes=31457280 f32 class=weights persistent
buffer h bytes=1048576 f32 class=optimizer persistent arena=host
buffer x bytes=12582912 f32 class=activations framed
buffer y bytes=16777216 f32 class=temporary framed
communicator tp0 0
program rank frames=2
  stream compute compute
  slot tp tp
prologue
body
  alloc x @0
  kernel compute F/L0/zero @0 zero n=25 : : x{0,1,25,25,f32}
  free x @0
  alloc y @0
  kernel compute F/L0/zero @0 zero n=25 : : y{0,1,25,25,f32}
  free y @0
  alloc x @1
  kernel compute F/L0/zero @1 zero n=25 : : x{0,1,25,25,f32}
  free x @1
  alloc y @1
  kernel compute F/L0/zero @1 zero n=25 : : y{0,1,25,25,f32}
  free y @1
  kernel compute F/L0/keep add n=10 : w{0,1,10,10,f32} w{0,1,10,10,f32} : w{0,1,10,10,f32}
  kernel compute F/L0/host zero n=10 : : h{0,1,10,10,f32}
rank rank gpu=0 tp=tp0
)");
}

AllocatorReplay replay(const AllocatorSite& site) {
  static const Plan p = plan();
  return replay_allocator(p, p.programs[0], ArenaId(0), site);
}

std::int64_t at_peak(const AllocatorReplay& r, MemoryClass c) {
  return r.at_peak[static_cast<std::size_t>(c)].value;
}

// Segments of their own of 30, 12 and 16 MiB: the 12 MiB block is too small for y, and x takes it
// again. Allocated at most 30 + 16; reserved 58. The host's buffer is not on the device.
TEST(AllocatorReplay, ReservesASegmentForEachSizeThatDoesNotFit) {
  const AllocatorReplay r = replay({});
  EXPECT_EQ(r.figures.peak_allocated.value, 46 * kMiB);
  EXPECT_EQ(r.figures.peak_reserved.value, 58 * kMiB);
  EXPECT_EQ(r.figures.segments, 3);
  EXPECT_EQ(at_peak(r, MemoryClass::Weights), 30 * kMiB);
  EXPECT_EQ(at_peak(r, MemoryClass::Temporary), 16 * kMiB);
  EXPECT_EQ(at_peak(r, MemoryClass::Activations), 0);
  EXPECT_EQ(r.out_of_memory, "");
}

// The workspace of 8 MiB comes from a segment of 20 MiB, allocated once in all iterations. What is
// left of it, 12 MiB, is just what x needs: reserved 30 + 20 + 16.
TEST(AllocatorReplay, PutsABlockIntoTheRestOfASegment) {
  AllocatorSite site;
  site.workspace = Bytes(8 * kMiB);
  const AllocatorReplay r = replay(site);
  EXPECT_EQ(r.figures.peak_allocated.value, (30 + 8 + 16) * kMiB);
  EXPECT_EQ(r.figures.peak_reserved.value, (30 + 20 + 16) * kMiB);
}

// One range that grows by pages of 20 MiB: x and y share what lies behind the weight. 30 + 16 = 46
// need three pages.
TEST(AllocatorReplay, ExpandableSegmentsShareTheirRange) {
  AllocatorSite site;
  site.options.expandable_segments = true;
  const AllocatorReplay r = replay(site);
  EXPECT_EQ(r.figures.peak_allocated.value, 46 * kMiB);
  EXPECT_EQ(r.figures.peak_reserved.value, 60 * kMiB);
}

// 50 MiB beside 4 of others: y finds 42 reserved and no room for 16 more, so that x's cached
// segment is given back; 30 + 16 fit. From then on x lies in y's segment: once is enough.
TEST(AllocatorReplay, GivesCachedSegmentsBackWhereTheDeviceIsFull) {
  AllocatorSite site;
  site.capacity = Bytes(54 * kMiB), site.other = Bytes(4 * kMiB);
  const AllocatorReplay r = replay(site);
  EXPECT_EQ(r.out_of_memory, "");
  EXPECT_EQ(r.figures.peak_reserved.value, 46 * kMiB);
  EXPECT_EQ(r.figures.retries, 1);
}

// 40 MiB cannot hold 46. The text says what was asked for; figures go on without a limit.
TEST(AllocatorReplay, SaysWhatDidNotFitAndHowMuchThereWouldBe) {
  AllocatorSite site;
  site.capacity = Bytes(40 * kMiB);
  const AllocatorReplay r = replay(site);
  EXPECT_THAT(r.out_of_memory, testing::HasSubstr("12.00 MiB"));
  EXPECT_EQ(r.figures.peak_allocated.value, 46 * kMiB);
}

}  // namespace
}  // namespace gputwin
