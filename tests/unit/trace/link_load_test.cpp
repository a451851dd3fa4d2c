#include "sim/trace/link_load.h"

#include <gtest/gtest.h>

#include <numeric>

namespace gputwin {
namespace {

Cluster one_node(std::int32_t gpus) {
  using namespace literals;
  Cluster cluster;
  NodeType node;
  node.device = "a100";
  node.gpus = gpus;
  node.intra = {IntraKind::NvSwitch, 300.0_GBps, 1.0, 0};
  node.pcie = {4, 32.0_GBps, 32.0_GBps, 2, 1.0};
  node.host = {2, 64, 512_GiB, 200.0_GBps};
  cluster.groups = {{node, 1}};
  return cluster;
}

Route over(LinkId link) {
  Route route;
  route.add(link);
  return route;
}

constexpr Ps kUs = 1'000'000;

// A flow of 300 bytes from 0.5 us to 2.0 us has 200 bytes/us: 100 in the first window, 200 in the
// second.
TEST(LinkLoad, SpreadsAFlowOverTheWindowsItCrosses) {
  const Topology topology(one_node(2));
  LinkLoad load(topology, {LinkId(0)});
  load.add(over(LinkId(0)), Bytes(300), kUs / 2, 2 * kUs);
  EXPECT_EQ(load.width(), kUs);
  EXPECT_EQ(load.bytes(0)[0], 100);
  EXPECT_EQ(load.bytes(0)[1], 200);
  EXPECT_EQ(load.bytes(0)[2], 0);
}

// 2,048 windows of 1 us hold 2.048 ms; a flow that ends at 5 ms needs windows of 4 us (8.192 ms).
// Bytes are neither lost nor invented: 7 bytes before and 1,000,003 after the widening stay
// 1,000,010.
TEST(LinkLoad, WidensItsWindowsAndKeepsEveryByte) {
  const Topology topology(one_node(2));
  LinkLoad load(topology, {LinkId(0), LinkId(1)});
  load.add(over(LinkId(0)), Bytes(7), 3 * kUs, 3 * kUs);
  load.add(over(LinkId(0)), Bytes(1'000'003), 0, 5000 * kUs);
  EXPECT_EQ(load.width(), 4 * kUs);
  const auto& windows = load.bytes(0);
  EXPECT_EQ(std::accumulate(windows.begin(), windows.end(), std::int64_t{0}), 1'000'010);
  EXPECT_TRUE(load.bytes(1).empty());
}

TEST(LinkLoad, IgnoresLinksNobodyWatches) {
  const Topology topology(one_node(2));
  LinkLoad load(topology, {LinkId(1)});
  load.add(over(LinkId(0)), Bytes(7), 0, kUs);
  EXPECT_TRUE(load.bytes(0).empty());
}

// Of a node with four GPUs on one NVSwitch, GPU 2 owns one link up and one down.
TEST(LinkLoad, WatchesTheLinksOfTheGpusItIsGiven) {
  const Topology topology(one_node(4));
  const auto links = links_near(topology, {GpuId(2)}, 256);
  int up = 0, down = 0;
  for (const LinkId id : links) {
    const Link& link = topology.link(id);
    if (link.kind == LinkKind::NvLinkUp) {
      EXPECT_EQ(link.index, 2);
      ++up;
    }
    if (link.kind == LinkKind::NvLinkDown) ++down;
  }
  EXPECT_EQ(up, 1);
  EXPECT_EQ(down, 1);
  EXPECT_EQ(links_near(topology, {GpuId(2)}, 1).size(), 1u);
}

}  // namespace
}  // namespace gputwin
