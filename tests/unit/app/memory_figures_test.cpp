// Memory of a role: the plan's buffers in blocks of 512 B, and what else a GPU holds.
#include "sim/app/memory_figures.h"

#include <gtest/gtest.h>

#include "sim/core/plan_text.h"
#include "tests/support/small_cluster.h"
#include "tests/unit/app/small_costs.h"

namespace gputwin {
namespace {

// 1,000 B of weights and 2,000 B on the host stay; 100 B of activation come and go twice, never
// both.
constexpr const char* kPlan = R"(
arena gpu
arena host
buffer w bytes=1000 f32 class=weights persistent
buffer h bytes=2000 f32 class=optimizer persistent arena=host
buffer x bytes=100 f32 class=activations framed
communicator tp0 0 1
program rank frames=2
  stream compute compute
  slot tp tp
prologue
body
  alloc x @0
  kernel compute F/L0/zero @0 zero n=25 : : x{0,1,25,25,f32}
  free x @0
  alloc x @1
  kernel compute F/L0/zero @1 zero n=25 : : x{0,1,25,25,f32}
  free x @1
  kernel compute F/L0/keep add n=10 : w{0,1,10,10,f32} w{0,1,10,10,f32} : w{0,1,10,10,f32}
  kernel cpu F/L0/host zero n=10 : : h{0,1,10,10,f32}
rank rank gpu=0 tp=tp0
rank rank gpu=1 tp=tp0
)";

Plan plan() {
  std::string text = kPlan;
  text.insert(text.find("  slot"), "  stream cpu host_cpu\n");
  return parse_plan(text);
}

std::int64_t of(const MemoryFigures& f, MemoryClass c) {
  return f.at_peak[static_cast<std::size_t>(c)].value;
}

// Weights 1,000 -> 1,024; activation 100 -> 512; with workspace 512: allocated 2,048. Reserved 1.5
// x 2,048 = 3,072. Device: + 1,000 context + 2 x 100 for a communicator of two = 4,272. Host 2,000
// -> 2,048.
TEST(MemoryFigures, AddUp) {
  const Plan p = plan();
  const Topology topology(test::small_cluster({.gpus = 2}));
  const auto roles = predict_memory(p, test::SmallCosts(), topology);
  ASSERT_EQ(roles.size(), 1u);
  EXPECT_EQ(roles[0].role, "rank");
  const MemoryFigures& f = roles[0].figures;
  EXPECT_EQ(of(f, MemoryClass::Weights), 1024);
  EXPECT_EQ(of(f, MemoryClass::Activations), 512);
  EXPECT_EQ(of(f, MemoryClass::Temporary), 512);
  EXPECT_EQ(of(f, MemoryClass::Communication), 200);
  EXPECT_EQ(of(f, MemoryClass::Context), 1000);
  EXPECT_EQ(f.allocated.value, 2048);
  EXPECT_EQ(f.reserved.value, 3072);
  EXPECT_EQ(f.device.value, 4272);
  EXPECT_EQ(f.host.value, 2048);
}

// The device needs 4,272 B: 4,272 suffice, 4,000 are 272 short, 0 means unknown.
TEST(MemoryShortage, OfTheDevice) {
  const Plan p = plan();
  const Topology topology(test::small_cluster({.gpus = 2}));
  const auto shortage = [&](std::int64_t capacity) {
    test::SmallCosts costs;
    costs.capacity = Bytes(capacity);
    return memory_shortage(p, predict_memory(p, costs, topology), topology);
  };
  EXPECT_FALSE(shortage(0).has_value());
  EXPECT_FALSE(shortage(4272).has_value());
  const auto found = shortage(4000);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->short_by->value, 272);
  EXPECT_NE(found->reason.find("rank"), std::string::npos);
}

// Both ranks are on one node: 2 x 2,048 B of host memory, 96 more than 4,000. With a device 272
// short the larger shortage is the one named.
TEST(MemoryShortage, OfTheHost) {
  const Plan p = plan();
  Cluster cluster = test::small_cluster({.gpus = 2});
  cluster.groups[0].type.host.memory = Bytes(4000);
  const Topology topology(cluster);
  test::SmallCosts costs;
  auto found = memory_shortage(p, predict_memory(p, costs, topology), topology);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->short_by->value, 96);
  EXPECT_NE(found->reason.find("node 0"), std::string::npos);
  costs.capacity = Bytes(4000);
  found = memory_shortage(p, predict_memory(p, costs, topology), topology);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->short_by->value, 272);
}

}  // namespace
}  // namespace gputwin
