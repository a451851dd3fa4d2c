#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/hwmodels/world.h"

namespace gputwin {
namespace {

using test::gpus;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// `nodes` nodes of `gpus` GPUs without NVLink behind one adapter of `nic_GBps`, usable.
Cluster pcie_nodes(const std::string& device, std::int32_t nodes, std::int32_t gpus,
                   double nic_GBps) {
  Cluster cluster = test::nvswitch_cluster(device, nodes, 1, nic_GBps);
  NodeType& type = cluster.groups[0].type;
  type.gpus = gpus;
  type.intra = {IntraKind::Pcie, BytesPerSecond(0), 1.0, 0};
  type.pcie = {3, BytesPerSecond(15.75e9), BytesPerSecond(15.75e9), 1, 0.8};
  type.nics.per_node = 1;
  cluster.fabric.kind = FabricKind::Ethernet;
  return cluster;
}

/// `nodes` nodes of `gpus` V100s joined by six NVLinks each, one adapter of 12.5 GB/s per node.
Cluster v100_mesh(std::int32_t nodes, std::int32_t gpus) {
  Cluster cluster = test::nvswitch_cluster("v100-sxm2-32gb", nodes, 150, 12.5);
  cluster.groups[0].type.gpus = gpus;
  cluster.groups[0].type.intra.kind = IntraKind::NvLinkMesh;
  cluster.groups[0].type.nics.per_node = 1;
  return cluster;
}

/// NVL72: nodes of four GB200 in NVLink domains of 72.
Cluster nvl72(std::int32_t nodes) {
  Cluster cluster = test::nvswitch_cluster("gb200", nodes, 900, 50);
  cluster.groups[0].type.gpus = 4;
  cluster.groups[0].type.nics.per_node = 4;
  cluster.groups[0].type.intra.domain_gpus = 72;
  return cluster;
}

HardwareModel model_of(const Topology& topology, const std::string& stack = "default") {
  return HardwareModel(topology, Job{.stack = stack}, test::data_folder());
}

/// Time beyond the latency, if the collective has its links to itself.
double transfer(const Topology& topology, OpKind kind, std::int64_t bytes,
                const std::vector<GpuId>& members, const std::string& stack = "default") {
  const CollectiveSchedule s = model_of(topology, stack).collective(kind, Bytes(bytes), members);
  return (closed_form(s, members, topology) - s.latency).value;
}

// Eight and four V100s use all six links of every GPU: 132 of 150 GB/s, as measured.
TEST(Mesh, WholeNodesReachTheirRingBandwidth) {
  for (std::int32_t n : {4, 8}) {
    const Topology topology(v100_mesh(1, n));
    const double moved = 2.0 * (n - 1) / n * kGiB;
    EXPECT_NEAR(transfer(topology, OpKind::AllReduce, kGiB, gpus(0, n)), moved / 132e9, 1e-9) << n;
    EXPECT_NEAR(transfer(topology, OpKind::AllGather, kGiB, gpus(0, n)), moved / 2 / 132e9, 1e-9);
  }
}

// Parts of a DGX-1V have fewer links to themselves: GPUs 0 and 1 one of six, 2 and 3 two, the first
// four GPUs four.
TEST(Mesh, PartsOfANodeHaveTheirOwnLinksOnly) {
  const Topology topology(v100_mesh(1, 8));
  const auto all_reduce = [&](std::uint32_t first, std::uint32_t count) {
    return transfer(topology, OpKind::AllReduce, kGiB, gpus(first, count));
  };
  EXPECT_NEAR(all_reduce(0, 2), kGiB / (132e9 / 6), 1e-9);
  EXPECT_NEAR(all_reduce(2, 2), kGiB / (132e9 * 2 / 6), 1e-9);
  EXPECT_NEAR(all_reduce(0, 4), 1.5 * kGiB / (132e9 * 4 / 6), 1e-9);
}

// Point to point: one link 25 GB/s, two at most 45 (measured); without a direct link over a third.
TEST(Mesh, SendsUseTheLinksOfThePair) {
  const Topology topology(v100_mesh(1, 8));
  const auto send = [&](std::uint32_t to) {
    return transfer(topology, OpKind::SendTo, kGiB, {GpuId(0), GpuId(to)});
  };
  EXPECT_NEAR(send(1), kGiB / 25e9, 1e-9);
  EXPECT_NEAR(send(4), kGiB / 45e9, 1e-9);
  EXPECT_NEAR(send(5), kGiB / 25e9, 1e-9);
}

// Reduce-scatter over 16 V100s of two nodes: 15/16 of the data enter and leave each node once, over
// its one adapter of 12.5 GB/s; the mesh inside is faster.
TEST(OneAdapter, IsPassedOncePerRing) {
  const Topology topology(v100_mesh(2, 8));
  EXPECT_NEAR(transfer(topology, OpKind::ReduceScatter, kGiB, gpus(0, 16)),
              15.0 / 16 * kGiB / 12.5e9, 1e-8);
}

// All-reduce over two nodes: in a tree each sends the sum of its members to the other once, S bytes
// at 0.92 of the rate, where a ring passes 2 x 15/16 S.
TEST(OneAdapter, TwoNodesExchangeOverATree) {
  const Topology topology(v100_mesh(2, 8));
  const std::vector<GpuId> members = gpus(0, 16);
  const CollectiveSchedule s =
      model_of(topology).collective(OpKind::AllReduce, Bytes(kGiB), members);
  EXPECT_EQ(s.algorithm, Algorithm::Tree);
  EXPECT_NEAR((closed_form(s, members, topology) - s.latency).value, kGiB / 0.92 / 12.5e9, 1e-8);
}

// 4 x T4 per node, one 50 Gb/s adapter of which 4 GB/s are usable. Data-parallel rings have one
// member per node; the four rings of a node meet on its adapter, on the same link.
TEST(OneAdapter, IsSharedByTheRingsOfANode) {
  const Topology topology(pcie_nodes("t4", 4, 4, 4));
  const HardwareModel model = model_of(topology);
  LinkId shared{};
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::vector<GpuId> ring = gpus(i, 4, 4);
    EXPECT_NEAR(transfer(topology, OpKind::ReduceScatter, kGiB, ring), 0.75 * kGiB / 4e9, 1e-8);
    const CollectiveSchedule s = model.collective(OpKind::ReduceScatter, Bytes(kGiB), ring);
    ASSERT_EQ(s.edges.size(), 4u);
    const Route out = topology.route(ring[s.edges[0].from], ring[s.edges[0].to]);
    EXPECT_EQ(topology.link(out.links[0]).kind, LinkKind::NicUp);
    if (i == 0) shared = out.links[0];
    EXPECT_EQ(out.links[0], shared);
  }
}

// Four T4s of a node: a ring without NVLink reaches 0.7 of PCIe's usable 12.6 GB/s.
TEST(Pcie, RingsReachAShareOfTheirLinks) {
  const Topology topology(pcie_nodes("t4", 1, 4, 4));
  EXPECT_NEAR(transfer(topology, OpKind::AllReduce, kGiB, gpus(0, 4)), 1.5 * kGiB / (0.7 * 12.6e9),
              1e-9);
}

// A delay of 50 ms, one way: a send pays it once, a ring of four 2 x 3 times, a gather 3 times.
TEST(AddedLatency, ActsOnSendsAndOnEveryStepOfARing) {
  Cluster cluster = pcie_nodes("v100-sxm2-16gb", 4, 1, 0.1);
  const auto latency = [&](OpKind kind, std::vector<GpuId> members) {
    const Topology topology(cluster);
    return model_of(topology).collective(kind, Bytes(kGiB), members).latency.value;
  };
  const std::vector<GpuId> two = gpus(0, 2), four = gpus(0, 4);
  const double send = latency(OpKind::SendTo, two), gather = latency(OpKind::AllGather, four);
  const double reduce = latency(OpKind::AllReduce, four);
  cluster.fabric.nic_latency = cluster.fabric.nic_latency + Seconds(50e-3);
  EXPECT_NEAR(latency(OpKind::SendTo, two) - send, 50e-3, 1e-9);
  EXPECT_NEAR(latency(OpKind::AllGather, four) - gather, 150e-3, 1e-9);
  EXPECT_NEAR(latency(OpKind::AllReduce, four) - reduce, 300e-3, 1e-9);
  // Small all-reduces take the tree: up and down its depth of two.
  const Topology topology(cluster);
  const CollectiveSchedule small =
      model_of(topology).collective(OpKind::AllReduce, Bytes(4096), four);
  EXPECT_EQ(small.algorithm, Algorithm::Tree);
  EXPECT_GT(small.latency.value, 200e-3);
}

// 64 GPUs of 16 nodes are one NVLink domain: a gather moves 63/64 at 660 GB/s, no adapter is
// passed, and NVLS reduces in the switches where the stack allows it.
TEST(NvLinkDomain, SpansNodes) {
  const Topology topology(nvl72(16));
  const std::vector<GpuId> members = gpus(0, 64);
  EXPECT_NEAR(transfer(topology, OpKind::AllGather, kGiB, members), 63.0 / 64 * kGiB / 660e9, 1e-9);
  EXPECT_NEAR(transfer(topology, OpKind::SendTo, kGiB, {GpuId(0), GpuId(63)}), kGiB / 770e9, 1e-9);
  const CollectiveSchedule reduce =
      model_of(topology, "nccl-tests").collective(OpKind::AllReduce, Bytes(kGiB), members);
  EXPECT_EQ(reduce.algorithm, Algorithm::NvLink);
  for (const FlowEdge& edge : reduce.edges) {
    EXPECT_EQ(topology.path(members[edge.from], members[edge.to]), PathKind::NvLink);
  }
}

// 128 GPUs: a full domain of 72 and one of 56. Each sends to the other through the 56 adapters that
// both have, 127/128 S / 56 over 50 GB/s; inside, 660 GB/s limit.
TEST(NvLinkDomain, UnequalOnesUseAllAdaptersBothHave) {
  const Topology topology(nvl72(32));
  const double moved = 127.0 / 128 * 16 * kGiB;
  EXPECT_NEAR(transfer(topology, OpKind::ReduceScatter, 16 * kGiB, gpus(0, 128)),
              std::max(moved / 56 / 50e9, moved / 660e9), 1e-8);
  const CollectiveSchedule s =
      model_of(topology).collective(OpKind::ReduceScatter, Bytes(16 * kGiB), gpus(0, 128));
  EXPECT_EQ(s.edges.size(), 128u + 2 * 56u);
}

}  // namespace
}  // namespace gputwin
