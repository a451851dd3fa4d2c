#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "hwmodels/collectives/placement.h"
#include "tests/unit/hwmodels/world.h"

namespace gputwin {
namespace {

using test::gpus;

Topology a100_nodes(std::int32_t nodes) {
  return Topology(test::nvswitch_cluster("a100-sxm-80gb", nodes, 300, 25));
}

HardwareModel model_of(const Topology& topology, const std::string& stack = "default") {
  return HardwareModel(topology, Job{.stack = stack}, test::data_folder());
}

double time_of(const HardwareModel& model, const Topology& topology, OpKind kind,
               std::int64_t bytes, const std::vector<GpuId>& members) {
  return closed_form(model.collective(kind, Bytes(bytes), members), members, topology).value;
}

// Eight GPUs of one node, 1 GiB, Simple protocol. Bus bandwidth 230 GB/s; a step takes 3.4 us x 1.8
// (A100) and 14 of them follow the base of 8.4 us: 2 x 7/8 x 2^30 / 230e9 + 94.08 us.
TEST(Ring, EqualsTheClosedFormInANode) {
  const Topology topology = a100_nodes(1);
  const HardwareModel model = model_of(topology);
  const std::vector<GpuId> members = gpus(0, 8);
  const CollectiveSchedule s = model.collective(OpKind::AllReduce, Bytes(1 << 30), members);
  EXPECT_EQ(s.algorithm, Algorithm::Ring);
  EXPECT_EQ(s.protocol, Protocol::Simple);
  ASSERT_EQ(s.edges.size(), 8u);
  EXPECT_EQ(s.edges[7], (FlowEdge{7, 0, Bytes((std::int64_t{1} << 30) * 7 / 4)}));
  const Seconds form =
      ring_all_reduce_time(8, Bytes(1 << 30), Seconds(3.4e-6 * 1.8), BytesPerSecond(230e9));
  EXPECT_NEAR(closed_form(s, members, topology).value, 8.4e-6 + form.value, 1e-10);
}

// One GPU of each of 8 nodes: every step crosses the network (14 us), every byte one adapter of 25
// GB/s.
TEST(Ring, EqualsTheClosedFormAcrossNodes) {
  const Topology topology = a100_nodes(8);
  const HardwareModel model = model_of(topology);
  const std::vector<GpuId> members = gpus(3, 8, 8);
  const std::int64_t bytes = std::int64_t{1} << 30;
  const Seconds wire = topology.route(members[0], members[1]).latency;
  const Seconds form =
      ring_all_reduce_time(8, Bytes(bytes), Seconds(14e-6) + wire, BytesPerSecond(25e9));
  EXPECT_NEAR(time_of(model, topology, OpKind::AllReduce, bytes, members), 8.4e-6 + form.value,
              1e-9);
  // All-gather and reduce-scatter make half the steps and move half the bytes.
  const double half = 8.4e-6 + form.value / 2;
  EXPECT_NEAR(time_of(model, topology, OpKind::AllGather, bytes, members), half, 1e-9);
  EXPECT_NEAR(time_of(model, topology, OpKind::ReduceScatter, bytes, members), half, 1e-9);
}

// 4 nodes x 8 GPUs, reduce-scatter of 3.2 GB: each member passes on 31/32 x 3.2 GB = 3.1 GB. Inside
// a node one edge per GPU; between two nodes the 3.1 GB are spread over eight rails. 4 x 8 x 2
// edges.
TEST(Ring, SpreadsTheCrossingOverTheRails) {
  const Topology topology = a100_nodes(4);
  const HardwareModel model = model_of(topology);
  const std::vector<GpuId> members = gpus(0, 32);
  const CollectiveSchedule s =
      model.collective(OpKind::ReduceScatter, Bytes(3'200'000'000), members);
  ASSERT_EQ(s.edges.size(), 64u);
  for (const FlowEdge& edge : s.edges) {
    const GpuId from = members[edge.from], to = members[edge.to];
    if (topology.node_of(from) == topology.node_of(to)) {
      EXPECT_EQ(edge.bytes.value, 3'100'000'000);
    } else {
      EXPECT_EQ(topology.index_in_node(from), topology.index_in_node(to));
      EXPECT_EQ(edge.bytes.value, 387'500'000);
    }
  }
  // NVLink: 3.1 GB / 230 GB/s = 13.48 ms; an adapter: 0.3875 GB / 25 GB/s = 15.5 ms. The adapter
  // limits.
  EXPECT_NEAR((closed_form(s, members, topology) - s.latency).value, 15.5e-3, 1e-9);
}

// A communicator of 1,024 GPUs stays small: one inner and one crossing edge per GPU.
TEST(Ring, ThousandMembersAreTwoThousandEdges) {
  const Topology topology = a100_nodes(128);
  const CollectiveSchedule s =
      model_of(topology).collective(OpKind::AllGather, Bytes(1 << 30), gpus(0, 1024));
  EXPECT_EQ(s.edges.size(), 2048u);
}

// Members need not come in GPU order: the ring visits node by node and names members by their own
// index.
TEST(Ring, VisitsNodesInOrderWhateverTheMemberOrder) {
  const Topology topology = a100_nodes(2);
  const std::vector<GpuId> members{GpuId(8), GpuId(0), GpuId(9), GpuId(1)};
  const CollectiveSchedule s =
      model_of(topology).collective(OpKind::AllGather, Bytes(1 << 30), members);
  int crossings = 0;
  for (const FlowEdge& edge : s.edges) {
    crossings += topology.node_of(members[edge.from]) != topology.node_of(members[edge.to]);
  }
  EXPECT_EQ(crossings, 4);  // two rails, there and back
}

// 8 KiB are all latency: LL, 6.6 us + 14 x 0.6 us x 1.4. 4 MiB: LL128. 1 GiB: Simple.
TEST(Protocols, FollowTheSize) {
  const Topology topology = a100_nodes(1);
  const HardwareModel model = model_of(topology);
  const auto at = [&](std::int64_t bytes) {
    return model.collective(OpKind::AllReduce, Bytes(bytes), gpus(0, 8));
  };
  EXPECT_EQ(at(8192).protocol, Protocol::LL);
  EXPECT_NEAR(at(8192).latency.value, 18.36e-6, 1e-12);
  EXPECT_EQ(at(4 << 20).protocol, Protocol::LL128);
  EXPECT_EQ(at(1 << 30).protocol, Protocol::Simple);
  // LL sends a flag with every word, so twice the bytes go over the wire.
  EXPECT_EQ(at(8192).edges[0].bytes.value, 2 * 2 * 8192 * 7 / 8);
}

// nccl-tests on one DGX A100, eight GPUs (operator tables): microseconds by bytes.
TEST(Protocols, LandNearMeasuredTimes) {
  const Topology topology = a100_nodes(1);
  const HardwareModel model = model_of(topology);
  const std::map<std::int64_t, double> all_reduce{{8192, 21.3},      {1 << 20, 38.9},
                                                  {4 << 20, 77.3},   {16 << 20, 216.5},
                                                  {64 << 20, 595.3}, {512 << 20, 4225.9}};
  for (const auto& [bytes, measured_us] : all_reduce) {
    const double us = time_of(model, topology, OpKind::AllReduce, bytes, gpus(0, 8)) * 1e6;
    EXPECT_NEAR(us / measured_us, 1.0, 0.15) << bytes;
  }
  const std::map<std::int64_t, double> all_gather{
      {8192, 14.6}, {1 << 20, 26.8}, {4 << 20, 48.0}, {64 << 20, 351.6}, {512 << 20, 2288.0}};
  for (const auto& [bytes, measured_us] : all_gather) {
    const double us = time_of(model, topology, OpKind::AllGather, bytes, gpus(0, 8)) * 1e6;
    EXPECT_NEAR(us / measured_us, 1.0, 0.2) << bytes;
  }
}

// 128 nodes, 1 MiB: 2 x 127 network steps of a ring lose against 2 x 7 of a tree.
TEST(Tree, WinsForSmallMessagesOverManyNodes) {
  const Topology topology = a100_nodes(128);
  const HardwareModel model = model_of(topology);
  const CollectiveSchedule s = model.collective(OpKind::AllReduce, Bytes(1 << 20), gpus(0, 1024));
  EXPECT_EQ(s.algorithm, Algorithm::Tree);
  // LL128: base 14 us + 2 (7 x 1.25 us + 7 x (8.5 us + wire)).
  const double wire = topology.route(GpuId(0), GpuId(8)).latency.value;
  EXPECT_NEAR(s.latency.value, 14e-6 + 2 * (7 * 1.25e-6 + 7 * (8.5e-6 + wire)), 1e-9);
}

// Each tree carries half of the data up to the root and down again, so in total every node but one
// sends its data up and receives it: 2 x 7 x S up and down over 8 nodes of one GPU each.
TEST(Tree, ConservesBytes) {
  const Topology topology = a100_nodes(8);
  const std::vector<GpuId> members = gpus(0, 8, 8);
  const CollectiveSchedule s =
      model_of(topology).collective(OpKind::AllReduce, Bytes(4096), members);
  ASSERT_EQ(s.algorithm, Algorithm::Tree);
  std::int64_t total = 0;
  std::set<std::pair<std::uint32_t, std::uint32_t>> pairs;
  for (const FlowEdge& edge : s.edges) {
    total += edge.bytes.value;
    EXPECT_TRUE(pairs.insert({edge.from, edge.to}).second) << "one edge per ordered pair";
  }
  ASSERT_EQ(s.protocol, Protocol::LL);  // twice the bytes; and a tree reaches 0.92 of the bandwidth
  EXPECT_NEAR(static_cast<double>(total), 2 * 2 * 7 * 4096 / 0.92, 14.0);  // rounded by edge
}

// Both trees span all nodes; a node that is a parent in the first is a leaf in the second (even
// counts).
TEST(Tree, BinaryTreesSpanAndComplement) {
  for (std::int32_t n : {2, 3, 8, 13, 128}) {
    for (int tree : {0, 1}) {
      int roots = 0;
      for (std::int32_t node = 0; node < n; ++node) {
        std::int32_t up = node, steps = 0;
        while (tree_parent(up, n, tree) >= 0 && steps <= n) up = tree_parent(up, n, tree), ++steps;
        EXPECT_LE(steps, n) << "no cycle";
        roots += tree_parent(node, n, tree) < 0;
      }
      EXPECT_EQ(roots, 1) << n;
    }
  }
  std::set<std::int32_t> inner[2];
  for (std::int32_t node = 0; node < 8; ++node) {
    for (int tree : {0, 1}) {
      if (tree_parent(node, 8, tree) >= 0) inner[tree].insert(tree_parent(node, 8, tree));
    }
  }
  std::vector<std::int32_t> both;
  std::set_intersection(inner[0].begin(), inner[0].end(), inner[1].begin(), inner[1].end(),
                        std::back_inserter(both));
  EXPECT_THAT(both, testing::IsEmpty());
}

// 8 GPUs exchange 8 MB each: every pair 1 MB; the seven flows of a GPU share its 230 GB/s.
TEST(AllToAll, SendsEachMemberItsShare) {
  const Topology topology = a100_nodes(1);
  const HardwareModel model = model_of(topology);
  const std::vector<GpuId> members = gpus(0, 8);
  const CollectiveSchedule s = model.collective(OpKind::AllToAll, Bytes(800'000'000), members);
  EXPECT_EQ(s.edges.size(), 56u);
  EXPECT_EQ(s.algorithm, Algorithm::Direct);
  EXPECT_NEAR((closed_form(s, members, topology) - s.latency).value, 700e6 / 230e9, 1e-9);
}

// 25 MB to the next node: 6.6 + 14 us and the wire, then 1 ms on the adapter.
TEST(Send, PaysLatencyAndPath) {
  const Topology topology = a100_nodes(2);
  const HardwareModel model = model_of(topology);
  const std::vector<GpuId> members{GpuId(0), GpuId(8)};
  const double wire = topology.route(GpuId(0), GpuId(8)).latency.value;
  EXPECT_NEAR(time_of(model, topology, OpKind::SendTo, 25'000'000, members), 1e-3 + 20.6e-6 + wire,
              1e-10);
}

// H100, NVLS off by default: the ring's 350 GB/s. nccl-tests has it, and its measured curve: 457
// GB/s for large messages to within 10 %.
TEST(Nvls, IsAnOptionOfTheStack) {
  const Topology topology(test::nvswitch_cluster("h100-sxm-80gb", 1, 450, 50));
  const std::vector<GpuId> members = gpus(0, 8);
  const std::int64_t bytes = std::int64_t{512} << 20;
  const HardwareModel off = model_of(topology), on = model_of(topology, "nccl-tests");
  EXPECT_EQ(off.collective(OpKind::AllReduce, Bytes(bytes), members).algorithm, Algorithm::Ring);
  EXPECT_EQ(on.collective(OpKind::AllReduce, Bytes(bytes), members).algorithm, Algorithm::NvLink);
  const double moved = 2.0 * 7 / 8 * static_cast<double>(bytes);
  const double fast = 55e-6 + moved / 457e9;
  EXPECT_NEAR(time_of(on, topology, OpKind::AllReduce, bytes, members), fast, 0.1 * fast);
  EXPECT_GT(time_of(off, topology, OpKind::AllReduce, bytes, members), moved / 350e9);
}

// Two GPUs reach 0.83 of the bandwidth of eight in an all-reduce and 0.67 in a gather, four 0.9 and
// 0.87.
TEST(Ring, OfFewGpusReachesLess) {
  const Topology a100 = a100_nodes(1);
  const auto cap = [](const Topology& topology, OpKind kind, std::uint32_t ranks) {
    return model_of(topology).collective(kind, Bytes(1 << 30), gpus(0, ranks)).rate_cap.value;
  };
  EXPECT_DOUBLE_EQ(cap(a100, OpKind::AllReduce, 2), 230e9 * 0.83);
  EXPECT_DOUBLE_EQ(cap(a100, OpKind::AllGather, 2), 230e9 * 0.67);
  EXPECT_DOUBLE_EQ(cap(a100, OpKind::AllReduce, 4), 230e9 * 0.9);
  EXPECT_DOUBLE_EQ(cap(a100, OpKind::ReduceScatter, 4), 230e9 * 0.87);
}

// Half the NVLink bandwidth halves the bus bandwidth.
TEST(Ring, ScalesWithTheClustersNvLink) {
  const Topology half(test::nvswitch_cluster("a100-sxm-80gb", 1, 150, 25));
  const CollectiveSchedule s =
      model_of(half).collective(OpKind::AllReduce, Bytes(1 << 30), gpus(0, 8));
  EXPECT_DOUBLE_EQ(s.rate_cap.value, 115e9);
}

TEST(Collectives, OfOneMemberCostNothing) {
  const Topology topology = a100_nodes(1);
  const CollectiveSchedule s =
      model_of(topology).collective(OpKind::AllReduce, Bytes(1 << 20), gpus(0, 1));
  EXPECT_TRUE(s.edges.empty());
  EXPECT_EQ(s.latency.value, 0.0);
}

// A stack whose collectives in a node take longer by its factor: latency and transfer both.
TEST(Collectives, TakeTheStacksFactor) {
  const Topology topology = a100_nodes(1);
  const std::vector<GpuId> members = gpus(0, 8);
  const double plain = time_of(model_of(topology), topology, OpKind::AllReduce, 1 << 30, members);
  const double slow =
      time_of(model_of(topology, "oneflow-gpt"), topology, OpKind::AllReduce, 1 << 30, members);
  const Stack stack = load_stack(test::data_folder() / "stacks" / "oneflow-gpt.json");
  EXPECT_GT(stack.factor(Factor::CollectiveInNode), 1.2);
  EXPECT_NEAR(slow / plain, stack.factor(Factor::CollectiveInNode), 1e-9);
}

// A stack whose collectives in a node start late: (factor - 1) of the ring's base latency, times
// the factor on all of their time, more, for any size and number of ranks; none across nodes.
TEST(Collectives, StartLaterByTheStacksFactor) {
  const char* name = "megatron-lm-1.1.5-deepspeed-3d";
  const Stack stack = load_stack(test::data_folder() / "stacks" / (std::string(name) + ".json"));
  constexpr double kRingBase = 8.4e-6;  // links/nccl.json, /ring/base/simple_us
  const double all = stack.factor(Factor::CollectiveInNode);
  const double late = all * kRingBase * (stack.factor(Factor::CollectiveStart) - 1);
  EXPECT_GT(late, 100e-6);
  const Topology topology = a100_nodes(2);
  for (const int ranks : {2, 8}) {
    for (const std::int64_t bytes : {std::int64_t{1} << 16, std::int64_t{1} << 30}) {
      const std::vector<GpuId> members = gpus(0, ranks);
      const double plain = time_of(model_of(topology), topology, OpKind::AllReduce, bytes, members);
      const double slow =
          time_of(model_of(topology, name), topology, OpKind::AllReduce, bytes, members);
      EXPECT_NEAR(slow, all * plain + late, 1e-6 * slow) << ranks << " " << bytes;
    }
  }
  const std::vector<GpuId> both = gpus(0, 16);
  const double across = stack.factor(Factor::CollectiveAcrossNodes);
  const double plain = time_of(model_of(topology), topology, OpKind::AllReduce, 1 << 30, both);
  const double slow = time_of(model_of(topology, name), topology, OpKind::AllReduce, 1 << 30, both);
  EXPECT_NEAR(slow, across * plain, 0.02 * slow);
}

}  // namespace
}  // namespace gputwin
