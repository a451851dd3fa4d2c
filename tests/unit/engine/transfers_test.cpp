// What flows do on links: alone in closed form, shared by SimGrid; every figure worked by hand.
#include <gmock/gmock.h>

#include "sim/core/plan_builder.h"
#include "tests/unit/engine/engine_world.h"

namespace gputwin::test {
namespace {

using ::testing::ElementsAre;

/// Senders: rank i < senders.size() computes for `delay_us`, then sends `bytes` to rank n + i.
struct Sender {
  GpuId from, to;
  int delay_us = 0;
  std::int64_t bytes = 0;
};

std::string sends(const std::vector<Sender>& senders) {
  std::string text;
  const std::size_t n = senders.size();
  for (std::size_t i = 0; i < n; ++i) {
    const Sender& s = senders[i];
    const std::string id = std::to_string(i), elements = std::to_string(s.bytes / 4);
    text += "program s" + id + "\n  stream c compute\n  slot peer pp peer\nbody\n";
    text += "  kernel c F/L0/k opaque flops=" + std::to_string(s.delay_us) + "e6 : :\n";
    text += "  send c P/L0/s send_to n=" + elements + " slot=peer : :\n";
    text += "program r" + id + "\n  stream c compute\n  slot peer pp peer\nbody\n";
    text += "  recv c P/L0/r recv_from n=" + elements + " slot=peer : :\n";
  }
  for (std::size_t i = 0; i < n; ++i) {
    text += "rank s" + std::to_string(i) + " gpu=" + std::to_string(senders[i].from.value) +
            " peer=" + std::to_string(n + i) + "\n";
  }
  for (std::size_t i = 0; i < n; ++i) {
    text += "rank r" + std::to_string(i) + " gpu=" + std::to_string(senders[i].to.value) +
            " peer=" + std::to_string(i) + "\n";
  }
  return text;
}

/// Two nodes that share one 12.5 GB/s adapter each (80 ps/B).
World one_adapter() {
  World world;
  world.shape = {.nodes = 2, .gpus = 8, .nics = 1};
  return world;
}

World with(World world, Transfers transfers) {
  world.options.transfers = transfers;
  return world;
}

// NVLink 250 GB/s, 1 us latency: 300 kB take 1.2 + 1 us, 1 kB 4 ns + 1 us. Default SimGrid would
// say 13 us.
TEST(Transfers, AreExactOnShortLinks) {
  for (const Transfers transfers : {Transfers::SharedOnly, Transfers::AllSimGrid}) {
    World world = with(World{}, transfers);
    world.costs.latency = Seconds(1e-6);
    const Execution run =
        world.run(sends({{GpuId(0), GpuId(1), 0, 300'000}, {GpuId(2), GpuId(3), 0, 1'000}}));
    EXPECT_THAT(run.rank_end, ElementsAre(2'200'000, 1'004'000, 2'200'000, 1'004'000));
    EXPECT_EQ(run.engine.flows, 2);
    EXPECT_EQ(run.engine.simgrid_flows, transfers == Transfers::AllSimGrid ? 2 : 0);
  }
}

// Both directions at once, 1 MB: 4 us each, as if alone.
TEST(Transfers, LinksAreFullDuplex) {
  for (const Transfers transfers : {Transfers::SharedOnly, Transfers::AllSimGrid}) {
    const Execution run =
        with(World{}, transfers)
            .run(sends({{GpuId(0), GpuId(1), 0, 1'000'000}, {GpuId(1), GpuId(0), 0, 1'000'000}}));
    EXPECT_EQ(run.makespan, 4 * kUs);
  }
}

// Eight flows of 1 .. 8 MB share an adapter. While k flows are left each gets 1/k: flow j ends when
// all before it have moved their bytes and the rest as many as j: t_j = sum over i <= j of (9 - i)
// MB x 80 ps/B.
TEST(Transfers, EightFlowsShareAnAdapter) {
  std::vector<Sender> senders;
  std::vector<Ps> ends;
  Ps end = 0;
  for (std::uint32_t j = 1; j <= 8; ++j) {
    senders.push_back({GpuId(j - 1), GpuId(8 + j - 1), 0, j * 1'000'000});
    end += (9 - j) * 80 * kUs;
    ends.push_back(end);
  }
  const Execution run = one_adapter().run(sends(senders));
  for (std::size_t j = 0; j < 8; ++j) EXPECT_NEAR(run.rank_end[j], ends[j], 2);
  EXPECT_EQ(run.engine.simgrid_flows, 8);
}

/// Latency by the bytes of the transfer, to give two flows on one link different ones.
struct LatencyByBytes final : CostModel {
  TableCostModel table;
  Cost kernel(const Op& op, Bytes r, Bytes w, DeviceKindId d) const override {
    return table.kernel(op, r, w, d);
  }
  Cost copy(CopyKind kind, Bytes bytes, bool pinned, GpuId gpu) const override {
    return table.copy(kind, bytes, pinned, gpu);
  }
  CollectiveSchedule collective(OpKind kind, Bytes bytes,
                                std::span<const GpuId> members) const override {
    CollectiveSchedule schedule = table.collective(kind, bytes, members);
    schedule.latency = Seconds(bytes.value == 1'000'000 ? 1e-6 : 10e-6);
    return schedule;
  }
  Interference interference(DeviceKindId device) const override {
    return table.interference(device);
  }
  HostCost host(DeviceKindId device) const override { return table.host(device); }
  MemoryCost memory(DeviceKindId device, std::span<const std::int32_t> sizes) const override {
    return table.memory(device, sizes);
  }
};

// 1 MB after 1 us and 2 MB after 10 us over one adapter. The first has moved 9 us / 80 ps = 112,500
// B when the second starts; then each gets half (160 ps/B): the first needs 887,500 x 160 ps = 142
// us more and ends at 152 us; the second then has 1,112,500 B left and the adapter to itself: 89
// us, ending at 241 us. Sharing by 1/latency, SimGrid's way with latencies on its links, would
// starve the second.
TEST(Transfers, SharesAreEqualWhateverTheLatency) {
  SimgridExecutor executor;
  const Topology topology(small_cluster(one_adapter().shape));
  const Plan plan =
      parse_plan(sends({{GpuId(0), GpuId(8), 0, 1'000'000}, {GpuId(1), GpuId(9), 0, 2'000'000}}));
  const auto run = std::get<Execution>(
      executor.run(plan, LatencyByBytes{}, topology, {.fold = Fold::Off}, nullptr));
  EXPECT_NEAR(run.rank_end[0], 152 * kUs, 2);
  EXPECT_NEAR(run.rank_end[1], 241 * kUs, 2);
}

// The first flow, 1 MB, has its adapter to itself until 40 us: half its bytes are left when the
// second starts. Both at 6.25 GB/s: the first ends at 120 us, the second then has 500 kB left and
// ends at 160 us.
TEST(Transfers, ALoneFlowIsPromotedWhenASecondJoins) {
  const Execution run = one_adapter().run(
      sends({{GpuId(0), GpuId(8), 0, 1'000'000}, {GpuId(1), GpuId(9), 40, 1'000'000}}));
  EXPECT_NEAR(run.rank_end[0], 120 * kUs, 2);
  EXPECT_NEAR(run.rank_end[1], 160 * kUs, 2);
  EXPECT_EQ(run.engine.simgrid_flows, 2);
}

// The second starts as the first ends: both are alone, and SimGrid sees neither.
TEST(Transfers, FlowsThatFollowEachOtherStayAlone) {
  const Execution run = one_adapter().run(
      sends({{GpuId(0), GpuId(8), 0, 1'000'000}, {GpuId(1), GpuId(9), 80, 1'000'000}}));
  EXPECT_EQ(run.rank_end[0], 80 * kUs);
  EXPECT_EQ(run.rank_end[1], 160 * kUs);
  EXPECT_EQ(run.engine.simgrid_flows, 0);
}

// Capped at 5 GB/s (200 ps/B) each, two flows fit through 12.5 GB/s beside each other; three do
// not: 240 ps/B.
TEST(Transfers, RateCapHoldsEachFlow) {
  World world = one_adapter();
  world.costs.rate_cap = BytesPerSecond(5e9);
  const Sender a{GpuId(0), GpuId(8), 0, 1'000'000}, b{GpuId(1), GpuId(9), 0, 1'000'000},
      c{GpuId(2), GpuId(10), 0, 1'000'000};
  EXPECT_EQ(world.run(sends({a})).makespan, 200 * kUs);
  EXPECT_NEAR(world.run(sends({a, b})).makespan, 200 * kUs, 2);
  EXPECT_NEAR(world.run(sends({a, b, c})).makespan, 240 * kUs, 2);
}

// Two GPUs below one PCIe switch copy 100 kB and 200 kB in: half of 25 GB/s each until 8 us, then
// the second has 100 kB left at full speed: 12 us.
TEST(Transfers, CopiesShareAPcieSwitch) {
  World world;
  world.shape.gpus_per_switch = 2;
  world.costs.copy_rate = BytesPerSecond(100e9);
  const auto program = [](const std::string& name, int elements) {
    return "program " + name + "\n  stream in copy_in\nbody\n  copy in D/L0/c copy_bytes n=" +
           std::to_string(elements) + " copy=h2d : :\n";
  };
  const Execution run =
      world.run(program("a", 25'000) + program("b", 50'000) + "rank a gpu=0\nrank b gpu=1\n");
  EXPECT_NEAR(run.rank_end[0], 8 * kUs, 2);
  EXPECT_NEAR(run.rank_end[1], 12 * kUs, 2);
}

// Two nodes of eight GPUs, one all-reduce per rail between them: 1 MB per edge. Each adapter alone
// takes 80 us; through leaf uplinks oversubscribed 4:1 eight flows share 25 GB/s, so they take four
// times as long.
TEST(Transfers, OversubscribedFabricSlowsAnAllReduceByItsFactor) {
  std::string plan;
  for (int g = 0; g < 8; ++g) {
    plan += "communicator dp" + std::to_string(g) + " " + std::to_string(g) + " " +
            std::to_string(8 + g) + "\n";
  }
  plan +=
      "program p\n  stream c communication\n  slot dp dp\nbody\n"
      "  collective c R/L0/ar all_reduce n=250000 slot=dp : :\n";
  for (int r = 0; r < 16; ++r) {
    plan += "rank p gpu=" + std::to_string(r) + " dp=dp" + std::to_string(r % 8) + "\n";
  }
  World world;
  world.shape = {.nodes = 2, .gpus = 8, .nics = 8};
  EXPECT_EQ(world.run(plan).makespan, 80 * kUs);
  world.shape.oversubscription = 4.0;
  EXPECT_NEAR(world.run(plan).makespan, 320 * kUs, 2);
}

// Ring all-reduce of 8 MB over 8 GPUs: 14 MB per edge at 4 ps/B; as flows of SimGrid and in closed
// form.
TEST(Transfers, ClosedFormEqualsFlows) {
  std::string plan =
      "communicator tp 0 1 2 3 4 5 6 7\nprogram p\n"
      "  stream c communication\n  slot tp tp\n"
      "body\n  collective c F/L0/ar all_reduce n=2000000 slot=tp : :\n";
  for (int r = 0; r < 8; ++r) plan += "rank p gpu=" + std::to_string(r) + " tp=tp\n";
  EXPECT_EQ(World{}.run(plan).makespan, 56 * kUs);
  const Execution run = with(World{}, Transfers::AllSimGrid).run(plan);
  EXPECT_NEAR(run.makespan, 56 * kUs, 1);
  EXPECT_EQ(run.engine.simgrid_flows, 8);
}

}  // namespace
}  // namespace gputwin::test
