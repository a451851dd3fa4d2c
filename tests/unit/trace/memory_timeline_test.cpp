#include "sim/trace/memory_timeline.h"

#include <gtest/gtest.h>

#include "sim/core/plan_text.h"
#include "sim/trace/address_map.h"

namespace gputwin {
namespace {

constexpr auto kActivations = static_cast<std::size_t>(MemoryClass::Activations);
constexpr auto kWeights = static_cast<std::size_t>(MemoryClass::Weights);

// Positions: 0 alloc x, 1 kernel a, 2 alloc y, 3 kernel b (on the other stream), 4 free x, 5 kernel
// c, 6 free y.
const char* const kText = R"(
arena gpu
buffer w bytes=1000 f32 class=weights persistent
buffer x bytes=10 f32 class=activations
buffer y bytes=5 f32 class=activations
program p frames=1
  stream compute compute
  stream side communication
body
  alloc x
  kernel compute F/a opaque : w : x
  alloc y
  kernel side F/b opaque : x : y
  free x
  kernel compute F/c opaque : y : y
  free y
rank p gpu=0
)";

TEST(MemoryTimeline, StartsWithThePersistentBuffers) {
  const Plan plan = parse_plan(kText);
  const auto samples = MemoryTimeline(plan, plan.programs[0]).initial();
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].bytes[kWeights], 1000);
  EXPECT_EQ(samples[0].bytes[kActivations], 0);
}

// a starts at 10, b at 20, c at 15 (another stream): x is there from 10, y from 20. c comes after b
// in issue order, so the free of x before it cannot count before 20. At the end, 40, y is gone.
TEST(MemoryTimeline, AppliesAllocAndFreeInIssueOrder) {
  const Plan plan = parse_plan(kText);
  MemoryTimeline timeline(plan, plan.programs[0]);
  std::vector<MemorySample> out;
  timeline.ran(0, 1, 10, 12, out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].at, 10);
  EXPECT_EQ(out[0].bytes[kActivations], 10);

  out.clear();
  timeline.ran(0, 5, 15, 18, out);  // ahead of b: waits
  EXPECT_TRUE(out.empty());
  timeline.ran(0, 3, 20, 40, out);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].at, 20);
  EXPECT_EQ(out[0].bytes[kActivations], 15);
  EXPECT_EQ(out[1].at, 20);
  EXPECT_EQ(out[1].bytes[kActivations], 5);

  out.clear();
  timeline.finish(out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].at, 40);
  EXPECT_EQ(out[0].bytes[kActivations], 0);
  EXPECT_EQ(out[0].bytes[kWeights], 1000);
}

// The free of y at the end of body 0 and the alloc of x at the start of body 1 take effect
// together, when the first task of body 1 starts.
TEST(MemoryTimeline, RunsOnOverBodies) {
  const Plan plan = parse_plan(kText);
  MemoryTimeline timeline(plan, plan.programs[0]);
  std::vector<MemorySample> out;
  for (const std::size_t position : {1, 3, 5}) timeline.ran(0, position, 10, 20, out);
  out.clear();
  timeline.ran(1, 1, 30, 31, out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].at, 30);
  EXPECT_EQ(out[0].bytes[kActivations], 10);
}

// x lies at address 64 of its arena; w and y are placed by the allocator. x is there from a (10)
// on; its free counts when c, the next task, starts (30).
TEST(MemoryTimeline, TellsWhenPlacedBuffersAreInUse) {
  Plan plan = parse_plan(kText);
  plan.buffers[1].address = 64;
  MemoryTimeline timeline(plan, plan.programs[0]);
  std::vector<MemorySample> out;
  timeline.ran(0, 1, 10, 12, out);
  timeline.ran(0, 3, 20, 25, out);
  auto placed = timeline.take_placements();
  ASSERT_EQ(placed.size(), 1u);
  EXPECT_EQ(placed[0].at, 10);
  EXPECT_EQ(placed[0].buffer.value, 1u);
  EXPECT_EQ(placed[0].instances, 1);
  timeline.ran(0, 5, 30, 40, out);
  placed = timeline.take_placements();
  ASSERT_EQ(placed.size(), 1u);
  EXPECT_EQ(placed[0].at, 30);
  EXPECT_EQ(placed[0].instances, 0);
}

TEST(AddressMap, ReadsWhatItWritesAndNothingElse) {
  Buffer buffer;
  buffer.name = "slot 0 = weights";
  buffer.address = 4096;
  buffer.bytes = Bytes{1024};
  buffer.memory = MemoryClass::Weights;
  const std::string name = address_counter(Arena{"gpu", {}});
  Store store;
  for (const std::string& series :
       {address_series(buffer), std::string("address=x bytes=1 class=a name=b"),
        std::string("address=1 bytes=-1 class=a name=b"), std::string("address=1"),
        std::string("address=9223372036854775807 bytes=1 class=a name=b"),
        std::string("address=99999999999999999999 bytes=1 class=a name=b"), std::string()}) {
    store.counters.push_back({0, name, series, {0}, {1}});
  }
  const auto blocks = placed_blocks(store, 0, name);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0], (PlacedBlock{4096, 1024, "weights", "slot 0 = weights", 0}));
  EXPECT_TRUE(placed_blocks(store, 1, name).empty());
}

}  // namespace
}  // namespace gputwin
