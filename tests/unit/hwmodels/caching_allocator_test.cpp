// PyTorch's caching allocator: rounding, splitting, joining and giving back, by hand.
#include "hwmodels/memory/caching_allocator.h"

#include <gtest/gtest.h>

namespace gputwin {
namespace {

using namespace literals;
using Handle = CachingAllocator::Handle;

constexpr Handle kNone = CachingAllocator::kNone;

// 1 B and 512 B take 512 B, 513 B take 1,024 B.
TEST(CachingAllocator, RoundsTo512Bytes) {
  const CachingAllocator a({});
  EXPECT_EQ(a.rounded(0_B), 512_B);
  EXPECT_EQ(a.rounded(1_B), 512_B);
  EXPECT_EQ(a.rounded(512_B), 512_B);
  EXPECT_EQ(a.rounded(513_B), 1024_B);
}

// Four divisions: between 1 MiB and 2 MiB blocks of 1, 1.25, 1.5, 1.75 MiB; below 4 x 512 B plain.
TEST(CachingAllocator, RoundsToDivisionsOfPowersOfTwo) {
  const CachingAllocator a({.roundup_power2_divisions = 4});
  EXPECT_EQ(a.rounded(1_MiB), 1_MiB);
  EXPECT_EQ(a.rounded(1_MiB + 1_B), 1_MiB + 256_KiB);
  EXPECT_EQ(a.rounded(1200_KiB), 1280_KiB);
  EXPECT_EQ(a.rounded(1537_KiB), 1792_KiB);
  EXPECT_EQ(a.rounded(1100_B), 1536_B);
}

// 1 MiB comes from a segment of 2 MiB, 1 MiB + 512 B and 9 MiB from 20 MiB, 10 MiB + 1 B from 12.
TEST(CachingAllocator, ReservesBySize) {
  const auto reserved = [](Bytes request) {
    CachingAllocator a({});
    a.allocate(request);
    return a.figures().reserved;
  };
  EXPECT_EQ(reserved(1_B), 2_MiB);
  EXPECT_EQ(reserved(1_MiB), 2_MiB);
  EXPECT_EQ(reserved(1_MiB + 512_B), 20_MiB);
  EXPECT_EQ(reserved(9_MiB), 20_MiB);
  EXPECT_EQ(reserved(10_MiB), 10_MiB);
  EXPECT_EQ(reserved(10_MiB + 1_B), 12_MiB);
  EXPECT_EQ(reserved(1_GiB), 1_GiB);
}

// Of 20 MiB, 12 are taken: 8 MiB are left and serve the next request. Of 13 MiB freed, 12.5 are
// taken: the rest of 0.5 MiB is below 1 MiB, so the block stays whole and 13 (rounded 14) count.
TEST(CachingAllocator, SplitsWhatLeavesMoreThanOneMebibyte) {
  CachingAllocator a({});
  const Handle nine = a.allocate(9_MiB);
  const Handle eight = a.allocate(8_MiB);
  EXPECT_EQ(a.figures().segments, 1);
  EXPECT_EQ(a.address(eight) - a.address(nine), 9 << 20);
  const Handle thirteen = a.allocate(13_MiB);
  EXPECT_EQ(a.figures().reserved, 34_MiB);
  EXPECT_EQ(a.size(thirteen), 14_MiB);
  a.free(thirteen);
  const Handle again = a.allocate(13_MiB);
  EXPECT_EQ(a.figures().reserved, 34_MiB);
  EXPECT_EQ(a.figures().allocated, 9_MiB + 8_MiB + a.size(again));
}

// Small blocks are split to the last 512 B: 2 MiB hold 4,096 of them, the next needs a segment.
TEST(CachingAllocator, FillsSmallSegmentsToTheLastBlock) {
  CachingAllocator a({});
  for (int i = 0; i < 4096; ++i) a.allocate(100_B);
  EXPECT_EQ(a.figures().segments, 1);
  a.allocate(100_B);
  EXPECT_EQ(a.figures().segments, 2);
}

// A, B, C of 6 MiB fill 18 of 20 MiB. B alone freed cannot serve 8 MiB; with A it can.
TEST(CachingAllocator, JoinsNeighboursWhenFreed) {
  CachingAllocator a({});
  const Handle first = a.allocate(6_MiB), second = a.allocate(6_MiB);
  a.allocate(6_MiB);
  a.free(second);
  const Handle other = a.allocate(8_MiB);
  EXPECT_EQ(a.figures().segments, 2);
  a.free(other);
  a.free(first);
  const Handle joined = a.allocate(12_MiB);
  EXPECT_EQ(a.figures().segments, 2);
  EXPECT_EQ(a.address(joined), 0);
}

// Free are 30 and 40 MiB: 25 MiB takes the tighter one, of equal sizes the lower address.
TEST(CachingAllocator, TakesTheTightestBlock) {
  CachingAllocator a({});
  const Handle forty = a.allocate(40_MiB), thirty = a.allocate(30_MiB), same = a.allocate(30_MiB);
  const std::int64_t at = a.address(thirty);
  a.free(forty);
  a.free(same);
  a.free(thirty);
  EXPECT_EQ(a.address(a.allocate(25_MiB)), at);
}

// Pools are by stream: what stream 1 freed does not serve stream 0.
TEST(CachingAllocator, KeepsStreamsApart) {
  CachingAllocator a({});
  a.free(a.allocate(50_MiB, 1));
  a.allocate(50_MiB, 0);
  EXPECT_EQ(a.figures().reserved, 100_MiB);
  a.allocate(50_MiB, 1);
  EXPECT_EQ(a.figures().reserved, 100_MiB);
}

// A block that stream 1 uses too is free for stream 0 when stream 1 has caught up.
TEST(CachingAllocator, WaitsForOtherStreamsThatUseABlock) {
  CachingAllocator a({});
  const Handle shared = a.allocate(50_MiB);
  a.record_stream(shared, 1);
  a.free(shared);
  EXPECT_EQ(a.figures().allocated, 0_B);
  a.free(a.allocate(50_MiB));
  EXPECT_EQ(a.figures().reserved, 100_MiB);
  a.complete(1);
  a.allocate(50_MiB);
  a.allocate(50_MiB);
  EXPECT_EQ(a.figures().reserved, 100_MiB);
}

// 100 MiB in all. 60 are cached; 80 do not fit beside them, so they are given back: one retry.
// Another 30 do not fit at all.
TEST(CachingAllocator, GivesCachedSegmentsBackBeforeItFails) {
  CachingAllocator a({}, 100_MiB);
  a.free(a.allocate(60_MiB));
  EXPECT_NE(a.allocate(80_MiB), kNone);
  EXPECT_EQ(a.figures().retries, 1);
  EXPECT_EQ(a.figures().reserved, 80_MiB);
  EXPECT_EQ(a.allocate(30_MiB), kNone);
  EXPECT_EQ(a.figures().allocated, 80_MiB);
}

// Split blocks cannot be given back: 18 of 20 MiB are free, but 2 live in the same segment.
TEST(CachingAllocator, CannotGiveBackASegmentInUse) {
  CachingAllocator a({}, 30_MiB);
  const Handle big = a.allocate(9_MiB);
  a.allocate(2_MiB);
  a.free(big);
  EXPECT_EQ(a.allocate(20_MiB), kNone);
  EXPECT_EQ(a.figures().reserved, 20_MiB);
}

// max_split_size 32 MiB: a free block of 64 MiB is not cut for 20 MiB, and serves a request of
// 40 MiB only if it is less than 20 MiB larger.
TEST(CachingAllocator, DoesNotSplitAboveTheLimit) {
  CachingAllocator a({.max_split_size = 32_MiB});
  a.free(a.allocate(64_MiB));
  a.allocate(20_MiB);
  EXPECT_EQ(a.figures().reserved, 84_MiB);
  a.allocate(40_MiB);
  EXPECT_EQ(a.figures().reserved, 124_MiB);
  a.allocate(50_MiB);
  EXPECT_EQ(a.figures().reserved, 124_MiB);
}

// Full at 100 MiB with 80 and 10 cached: 50 MiB may not take the 80 (30 too large), which go back
// alone; the 10 stay, and no retry is counted.
TEST(CachingAllocator, GivesLargeBlocksBackFirst) {
  CachingAllocator a({.max_split_size = 32_MiB}, 100_MiB);
  const Handle small = a.allocate(10_MiB);
  a.free(a.allocate(80_MiB));
  a.free(small);
  EXPECT_NE(a.allocate(50_MiB), kNone);
  EXPECT_EQ(a.figures().retries, 0);
  EXPECT_EQ(a.figures().reserved, 60_MiB);
}

// Tensors that grow by 2 MiB each time, the old one freed after: no old block fits the new one, so
// plain segments keep all of them: 10 + 12 + … + 28 = 190 MiB for two live tensors of 54 MiB at
// most. An expandable segment joins what was freed and ends at 72 MiB, four pages of 20.
TEST(CachingAllocator, ExpandableSegmentsCureGrowingTensors) {
  const auto peak = [](bool expandable) {
    CachingAllocator a({.expandable_segments = expandable});
    Handle old = a.allocate(10_MiB);
    for (std::int64_t size = 12; size <= 28; size += 2) {
      const Handle grown = a.allocate(Bytes(size << 20));
      a.free(old);
      old = grown;
    }
    EXPECT_EQ(a.figures().peak_allocated, 54_MiB);
    return a.figures().peak_reserved;
  };
  EXPECT_EQ(peak(false), 190_MiB);
  EXPECT_EQ(peak(true), 80_MiB);
}

// 30 MiB need two pages of 20, the next 10 MiB the rest of the second, the next 1 a third. One
// segment. Freed and emptied, nothing is reserved.
TEST(CachingAllocator, ExpandableSegmentsGrowByPages) {
  CachingAllocator a({.expandable_segments = true});
  const Handle first = a.allocate(30_MiB);
  EXPECT_EQ(a.figures().reserved, 40_MiB);
  const Handle second = a.allocate(10_MiB);
  EXPECT_EQ(a.figures().reserved, 40_MiB);
  const Handle third = a.allocate(2_MiB);
  EXPECT_EQ(a.figures().reserved, 60_MiB);
  EXPECT_EQ(a.figures().segments, 1);
  a.free(second);
  a.empty_cache();
  EXPECT_EQ(a.figures().reserved, 60_MiB);  // no whole page is free
  a.free(first);
  a.empty_cache();
  EXPECT_EQ(a.figures().reserved, 20_MiB);
  a.free(third);
  a.empty_cache();
  EXPECT_EQ(a.figures().reserved, 0_B);
}

// Full at 60 MiB: the pages of a freed block in the middle are unmapped and mapped at the end.
TEST(CachingAllocator, ExpandableSegmentsMovePagesWhenFull) {
  CachingAllocator a({.expandable_segments = true}, 60_MiB);
  const Handle low = a.allocate(20_MiB);
  a.allocate(20_MiB);
  a.free(low);
  EXPECT_NE(a.allocate(40_MiB), kNone);
  EXPECT_EQ(a.figures().retries, 1);
  EXPECT_EQ(a.figures().reserved, 60_MiB);
}

TEST(CachingAllocator, SpeaksOfOutOfMemoryAsPyTorchDoes) {
  CachingAllocator a({}, 70_GiB);
  const Handle big = a.allocate(60_GiB);
  EXPECT_NE(big, kNone);
  EXPECT_EQ(a.allocate(12_GiB), kNone);
  EXPECT_EQ(
      out_of_memory_text(12_GiB, a.figures(), 72_GiB, 2_GiB),
      "CUDA out of memory. Tried to allocate 12.00 GiB. GPU 0 has a total capacity of 72.00 "
      "GiB of which 10.00 GiB is free. Including non-PyTorch memory, this process has 62.00 "
      "GiB memory in use. Of the allocated memory 60.00 GiB is allocated by PyTorch, and "
      "0.00 KiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
      "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
      "fragmentation.");
}

}  // namespace
}  // namespace gputwin
