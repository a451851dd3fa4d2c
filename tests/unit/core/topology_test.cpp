#include "sim/core/topology.h"

#include "sim/core/cost.h"

namespace gputwin {
namespace {

using namespace literals;

// `nodes` DGX-like nodes of eight GPUs with one 25 GB/s adapter each.
Cluster dgx(std::int32_t nodes, std::vector<FabricLevel> levels, bool rails,
            std::int32_t nics = 8) {
  NodeType type;
  type.device = "a100-sxm-80gb";
  type.gpus = 8;
  type.intra = {IntraKind::NvSwitch, 300.0_GBps, 1.0, 0};
  type.pcie = {4, 25.0_GBps, 25.0_GBps, 2, 1.0};
  type.host.dram = 200.0_GBps;
  type.nics = {nics, 25.0_GBps, 1.0};
  Cluster cluster;
  cluster.groups = {{type, nodes}};
  cluster.fabric = {FabricKind::InfiniBand, rails, std::move(levels), 1.0_us, 0.5_us};
  return cluster;
}

std::string path_of(const Topology& topology, std::uint32_t from, std::uint32_t to) {
  std::string text;
  for (const LinkId link : topology.route(GpuId(from), GpuId(to))) {
    text += (text.empty() ? "" : " > ") + topology.link_name(link);
  }
  return text;
}

TEST(Topology, GoesOverNvSwitchInsideANode) {
  const Topology t(dgx(2, {{2, 1.0}}, true));
  EXPECT_EQ(path_of(t, 1, 3), "node 0 gpu 1 NVLink up > node 0 gpu 3 NVLink down");
}

// A full-bisection leaf can carry everything below it, so only the adapters can be bottlenecks.
TEST(Topology, LeavesOutLinksThatCannotBeBottlenecks) {
  const Topology t(dgx(4, {{2, 1.0}, {4, 1.0}}, true));
  EXPECT_EQ(path_of(t, 0, 24), "node 0 nic 0 up > node 3 nic 0 down");
}

// Four nodes per leaf and rail, 4:1 oversubscribed: uplink 4 x 25 / 4 = 25 GB/s, used only across
// leaves.
TEST(Topology, PassesOversubscribedUplinksAcrossLeaves) {
  const Topology t(dgx(8, {{4, 4.0}, {8, 1.0}}, true));
  EXPECT_EQ(path_of(t, 0, 24), "node 0 nic 0 up > node 3 nic 0 down");
  const Route across = t.route(GpuId(1), GpuId(33));
  ASSERT_EQ(across.count, 4);
  EXPECT_EQ(t.link(across.links[1]).kind, LinkKind::FabricUp);
  EXPECT_DOUBLE_EQ(t.link(across.links[1]).capacity.value, 25e9);
  // One adapter and three switches: 1 us + 3 x 0.5 us.
  EXPECT_DOUBLE_EQ(across.latency.value, 2.5e-6);
}

TEST(Topology, SharesAnAdapterAmongGpus) {
  const Topology t(dgx(2, {{2, 1.0}}, false, 2));
  EXPECT_EQ(t.nic_of(GpuId(3)), 0);
  EXPECT_EQ(t.nic_of(GpuId(4)), 1);
  EXPECT_EQ(path_of(t, 3, 12), "node 0 nic 0 up > node 1 nic 1 down");
}

// Of eight adapters number 3 of node 1 is dead and number 5 runs at a quarter. GPU 3 moves to the
// nearest one alive, 2 (of 2 and 4 the lower), and on rails thereby to rail 2; other nodes keep
// theirs.
TEST(Topology, GpusOfADeadAdapterUseTheNearestOneAlive) {
  Cluster cluster = dgx(2, {{1, 1.0}, {2, 1.0}}, true);
  cluster.nic_faults = {{1, 3, 0.0}, {1, 5, 0.25}};
  const Topology t(cluster);
  EXPECT_EQ(t.nic_of(GpuId(8 + 3)), 2);
  EXPECT_EQ(t.nic_of(GpuId(8 + 2)), 2);
  EXPECT_EQ(t.nic_of(GpuId(8 + 4)), 4);
  EXPECT_EQ(t.nic_of(GpuId(3)), 3);
  EXPECT_EQ(path_of(t, 3, 11), "node 0 nic 3 up > node 1 nic 2 down");
  const auto capacity = [&](std::uint32_t from, std::uint32_t to) {
    return t.link(t.route(GpuId(from), GpuId(to)).links[0]).capacity.value;
  };
  EXPECT_DOUBLE_EQ(capacity(8 + 5, 5), capacity(8 + 4, 4) / 4);
}

// Sixteen adapters for eight GPUs are used in pairs: without one of the two a GPU has half.
TEST(Topology, OneOfTwoAdaptersOfAGpuLeavesHalfItsSpeed) {
  Cluster cluster = dgx(2, {{2, 1.0}}, false);
  cluster.groups[0].type.nics.per_node = 16;
  cluster.nic_faults = {{0, 7, 0.0}};
  const Topology t(cluster);
  EXPECT_EQ(t.nic_of(GpuId(3)), 3);
  const auto capacity = [&](std::uint32_t from) {
    return t.link(t.route(GpuId(from), GpuId(15)).links[0]).capacity.value;
  };
  EXPECT_DOUBLE_EQ(capacity(3), capacity(2) / 2);
}

Cluster v100_mesh(std::int32_t gpus) {
  Cluster cluster = dgx(1, {}, false);
  NodeType& type = cluster.groups[0].type;
  type.gpus = gpus;
  type.intra = {IntraKind::NvLinkMesh, 150.0_GBps, 1.0, 0};
  return cluster;
}

// DGX-1V: of six links of 25 GB/s GPU 0 has two to GPUs 3 and 4, one to 1 and 2, none to 5, 6, 7.
// To 5 it goes over 1 (or 4): one link and two links.
TEST(Topology, EightGpusOfAMeshFormACube) {
  const Topology t(v100_mesh(8));
  EXPECT_DOUBLE_EQ(t.direct_nvlink(GpuId(0), GpuId(3)).value, 50e9);
  EXPECT_DOUBLE_EQ(t.direct_nvlink(GpuId(0), GpuId(1)).value, 25e9);
  EXPECT_DOUBLE_EQ(t.direct_nvlink(GpuId(0), GpuId(5)).value, 0);
  EXPECT_EQ(path_of(t, 0, 4), "node 0 NVLink 0 to 4");
  EXPECT_EQ(path_of(t, 0, 5), "node 0 NVLink 0 to 1 > node 0 NVLink 1 to 5");
  EXPECT_EQ(t.path(GpuId(0), GpuId(5)), PathKind::NvLink);
  for (std::uint32_t a = 0; a < 8; ++a) {
    double out = 0;
    for (std::uint32_t b = 0; b < 8; ++b) {
      out += t.direct_nvlink(GpuId(a), GpuId(b)).value;
      EXPECT_EQ(t.direct_nvlink(GpuId(a), GpuId(b)).value,
                t.direct_nvlink(GpuId(b), GpuId(a)).value);
    }
    EXPECT_DOUBLE_EQ(out, 150e9) << a;
  }
}

// Four GPUs: two of the six links to each of the three others.
TEST(Topology, FourGpusOfAMeshAreAllJoined) {
  const Topology t(v100_mesh(4));
  for (std::uint32_t b : {1u, 2u, 3u}) {
    EXPECT_DOUBLE_EQ(t.direct_nvlink(GpuId(0), GpuId(b)).value, 50e9);
  }
}

TEST(Topology, CopiesPassTheSharedPcieSwitch) {
  const Topology t(dgx(1, {}, false));
  const Route a = t.copy_route(GpuId(0), CopyKind::HostToDevice);
  const Route b = t.copy_route(GpuId(1), CopyKind::HostToDevice);
  EXPECT_EQ(a.links[1], b.links[1]);
  EXPECT_NE(a.links[2], b.links[2]);
}

// A ring of eight over NVSwitch: every GPU sends 2 x 7/8 x 80 MB = 140 MB at 300 GB/s; 10 us of
// steps.
TEST(ClosedForm, IsLatencyPlusTheSlowestLink) {
  const Topology t(dgx(1, {}, false));
  CollectiveSchedule ring;
  std::vector<GpuId> members;
  for (std::uint32_t i = 0; i < 8; ++i) {
    members.emplace_back(i);
    ring.edges.push_back({i, (i + 1) % 8, Bytes(140'000'000)});
  }
  ring.latency = 10.0_us;
  EXPECT_DOUBLE_EQ(closed_form(ring, members, t).value, 10e-6 + 140e6 / 300e9);
  ring.rate_cap = 100.0_GBps;
  EXPECT_DOUBLE_EQ(closed_form(ring, members, t).value, 10e-6 + 140e6 / 100e9);
}

}  // namespace
}  // namespace gputwin
