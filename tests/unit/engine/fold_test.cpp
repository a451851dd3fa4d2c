#include "sim/engine/fold.h"

#include "sim/core/plan_text.h"
#include "sim/engine/simgrid_executor.h"
#include "tests/support/grid_plan.h"
#include "tests/support/in_child.h"
#include "tests/support/small_cluster.h"
#include "tests/support/table_cost_model.h"

namespace gputwin::test {
namespace {

std::vector<RankId> ranks(std::initializer_list<std::uint32_t> values) {
  std::vector<RankId> result;
  for (const std::uint32_t v : values) result.emplace_back(v);
  return result;
}

/// Folds a 4 x 2 x 2 grid (ranks 0-7 stage 0, 8-15 stage 1) on `cluster` after `change`.
template <class Change>
Folding fold_grid(Cluster cluster, Change change) {
  Plan plan = grid_plan({.tp = 4, .dp = 2, .pp = 2});
  change(plan, cluster);
  return fold(plan, Topology(cluster), TableCostModel{});
}
Folding fold_grid(const Cluster& cluster) {
  return fold_grid(cluster, [](Plan&, Cluster&) {});
}

// Four nodes of four GPUs, an adapter each: one rank of each stage stands for its eight.
TEST(Fold, KeepsOneRankPerStage) {
  const Folding f = fold_grid(small_cluster({.nodes = 4, .gpus = 4, .nics = 4}));
  EXPECT_TRUE(f.folded);
  EXPECT_EQ(f.unfolded_because, "");
  EXPECT_EQ(f.simulated, ranks({0, 8}));
  // Communicators: 4 of tp, 8 of dp, 8 of ends. tp1 (ranks 4-7) is tp0, and rank 0 meets nobody but
  // itself.
  EXPECT_EQ(f.communicator[1], CommunicatorId(0));
  EXPECT_EQ(f.participants[0], ranks({0}));
  EXPECT_EQ(f.participants[12], ranks({0, 8}));
  // Each up link carries one flow of every kind.
  EXPECT_EQ(f.link_flows[f.link[0].value], 1.0);
}

// One adapter per node of four GPUs: the four tensor ranks send at once, so a folded flow gets a
// quarter of the adapter.
TEST(Fold, DividesASharedAdapter) {
  const Cluster cluster = small_cluster({.nodes = 4, .gpus = 4, .nics = 1});
  const Topology topology(cluster);
  const Folding f = fold_grid(cluster);
  EXPECT_EQ(f.simulated, ranks({0, 8}));
  const Route across = topology.route(GpuId(0), GpuId(4));
  EXPECT_EQ(f.link_flows[across.links[0].value], 4.0);
}

// Rank 5 is slower. It drags its tensor group (4-7) and what talks to it; nobody is like it, and
// ranks 0-3 can no longer be folded with 4-7, whose position relative to it differs.
TEST(Fold, TakesAPlantedStragglerApart) {
  const Folding f = fold_grid(small_cluster({.nodes = 4, .gpus = 4, .nics = 4}),
                              [](Plan& plan, Cluster&) { plan.ranks[5].slowdown = 1.5; });
  EXPECT_EQ(f.representative[5], RankId(5));
  EXPECT_NE(f.representative[4], f.representative[0]);
  EXPECT_NE(f.representative[13], f.representative[12]);
}

// Node 1 has one adapter for its four GPUs, the others four: its ranks are not like those of node
// 0.
TEST(Fold, TakesANodeWithASharedAdapterApart) {
  const Folding f =
      fold_grid(small_cluster({.nodes = 4, .gpus = 4, .nics = 4}), [](Plan&, Cluster& cluster) {
        NodeGroup odd{cluster.groups[0].type, 1}, rest = cluster.groups[0];
        odd.type.nics.per_node = 1;
        rest.count = 2;
        cluster.groups = {{rest.type, 1}, odd, rest};
      });
  EXPECT_NE(f.representative[4], f.representative[0]);
  EXPECT_GT(f.simulated.size(), 2u);
}

// As above with equally many but slower adapters on node 1.
TEST(Fold, TakesANodeWithSlowerLinksApart) {
  const Folding f =
      fold_grid(small_cluster({.nodes = 4, .gpus = 4, .nics = 4}), [](Plan&, Cluster& cluster) {
        NodeGroup odd{cluster.groups[0].type, 1}, rest = cluster.groups[0];
        odd.type.nics.each = BytesPerSecond(6e9);
        rest.count = 2;
        cluster.groups = {{rest.type, 1}, odd, rest};
      });
  EXPECT_NE(f.representative[4], f.representative[0]);
  // Within a node ranks are still alike: t = 0 stands for all four.
  EXPECT_EQ(f.simulated, ranks({0, 4, 8, 12}));
}

// With jitter no two ranks have the same kernel times.
TEST(Fold, KeepsEveryRankUnderJitter) {
  const Folding f = fold_grid(small_cluster({.nodes = 4, .gpus = 4, .nics = 4}),
                              [](Plan& plan, Cluster&) { plan.jitter.sigma = 0.01; });
  EXPECT_FALSE(f.folded);
  EXPECT_EQ(f.simulated.size(), 16u);
  EXPECT_NE(f.unfolded_because.find("jitter"), std::string::npos);
}

// A ring of like ranks: each sends to a rank it would be folded with, so all four stay.
TEST(Fold, KeepsRanksThatExchangeWithTheirLike) {
  const Plan plan = parse_plan(R"(
program p frames=0
  stream comm communication
  slot next pp peer
  slot previous pp peer
body
  send comm P/L0/send send_to n=1000 slot=next grouped : :
  recv comm P/L0/recv recv_from n=1000 slot=previous grouped : :
rank p gpu=0 next=1 previous=3
rank p gpu=1 next=2 previous=0
rank p gpu=2 next=3 previous=1
rank p gpu=3 next=0 previous=2
)");
  const Folding f = fold(plan, Topology(small_cluster({})), TableCostModel{});
  EXPECT_FALSE(f.folded);
  EXPECT_EQ(f.simulated.size(), 4u);
  EXPECT_EQ(f.unfolded_because, "rank 0 exchanges with a rank it would be folded with");
}

// Ranks 0-3 (node 0, stage 0) send to 4-7 (node 1, stage 1), and i and i + 4 all-reduce at the end.
// Without the all-reduce of 3 and 7 their adapters carry less than the others'.
TEST(Fold, SeesWhoElseUsesALink) {
  Plan plan = grid_plan({.tp = 1, .dp = 4, .pp = 2});
  const Topology topology(small_cluster({.nodes = 2, .gpus = 4, .nics = 4}));
  EXPECT_EQ(fold(plan, topology, TableCostModel{}).simulated, ranks({0, 4}));
  plan.communicators.back().members = ranks({3});
  plan.ranks[7].slots[2] = static_cast<std::uint32_t>(plan.communicators.size());
  plan.communicators.push_back({"alone", ranks({7})});
  const Folding f = fold(plan, topology, TableCostModel{});
  EXPECT_NE(f.representative[3], f.representative[0]);
  EXPECT_NE(f.representative[7], f.representative[4]);
}

// Pairs (i, i + count) over two nodes: a kernel of 10 us, then an all-reduce of 10^6 bytes, which
// puts 10^6 bytes on each adapter it uses, 80 ps/B.
Plan pairs(std::uint32_t count, std::initializer_list<std::uint32_t> gpus_of_node) {
  std::string text =
      "program p frames=0\n  stream compute compute\n  slot dp dp\nbody\n"
      "  kernel compute F/L0/a opaque flops=1e7 : :\n"
      "  collective compute D/L0/r all_reduce n=250000 slot=dp : :\n";
  std::string communicators;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::string name = std::to_string(i);
    communicators += "communicator c" + name + ' ' + name + ' ' + std::to_string(i + count) + '\n';
  }
  for (std::uint32_t i = 0; i < 2 * count; ++i) {
    const std::uint32_t gpu = gpus_of_node.begin()[i % count] + (i < count ? 0 : 4);
    text += "rank p gpu=" + std::to_string(gpu) + " dp=c" + std::to_string(i % count) + '\n';
  }
  return parse_plan(communicators + text);
}

/// "simulated ranks: end of every rank in us", run by the stream core as folded.
std::string folded_run(const Plan& plan, const Cluster& cluster) {
  const ChildResult child = in_child([&] {
    SimgridExecutor executor;
    const ExecutionOutcome outcome =
        executor.run(plan, TableCostModel{}, Topology(cluster), RunOptions{}, nullptr);
    const auto& run = std::get<Execution>(outcome);
    std::string text = std::to_string(run.engine.simulated_ranks) + ':';
    for (const Ps end : run.rank_end) text += ' ' + std::to_string((end + 500'000) / 1'000'000);
    return text;
  });
  EXPECT_TRUE(child.ok);
  return child.text;
}

// An adapter per GPU: 10 + 80 us, one rank for all. Then rank 2 takes 15 us for its kernel: it and
// its partner 6 are simulated on their own and end at 95 us.
TEST(FoldedRun, UnfoldsASlowGpu) {
  const Cluster cluster = small_cluster({.nodes = 2, .gpus = 4, .nics = 4});
  Plan plan = pairs(4, {0, 1, 2, 3});
  EXPECT_EQ(folded_run(plan, cluster), "1: 90 90 90 90 90 90 90 90");
  plan.ranks[2].slowdown = 1.5;
  EXPECT_EQ(folded_run(plan, cluster), "3: 90 90 95 90 90 90 95 90");
}

// Two GPUs per adapter: 10 + 2 x 80 us. Without the pair on GPU 3 the second adapter serves GPU 2
// alone, whose pair takes 10 + 80 us.
TEST(FoldedRun, UnfoldsAnAdapterSharedByFewer) {
  const Cluster cluster = small_cluster({.nodes = 2, .gpus = 4, .nics = 2});
  EXPECT_EQ(folded_run(pairs(4, {0, 1, 2, 3}), cluster), "1: 170 170 170 170 170 170 170 170");
  EXPECT_EQ(folded_run(pairs(3, {0, 1, 2}), cluster), "2: 170 170 90 170 170 90");
}

// The adapters of node 0 are half as fast: 10 + 160 us. They pace the pairs on both nodes alike, so
// one rank still stands for all, though the links of the two nodes are kept apart.
TEST(FoldedRun, IsPacedByTheSlowerLinks) {
  Cluster cluster = small_cluster({.nodes = 2, .gpus = 4, .nics = 4});
  cluster.groups = {{cluster.groups[0].type, 1}, {cluster.groups[0].type, 1}};
  cluster.groups[0].type.nics.each = BytesPerSecond(6.25e9);
  EXPECT_EQ(folded_run(pairs(4, {0, 1, 2, 3}), cluster), "1: 170 170 170 170 170 170 170 170");
}

std::size_t simulated_of(const Grid& grid, std::int32_t nodes) {
  const Topology topology(small_cluster({.nodes = nodes}));
  return fold(grid_plan(grid), topology, TableCostModel{}).simulated.size();
}

TEST(Fold, LeavesOneRankPerStageOfLargeJobs) {
  EXPECT_EQ(simulated_of({.tp = 8, .dp = 8, .pp = 16}, 128), 16u);
  EXPECT_EQ(simulated_of({.tp = 8, .dp = 128, .pp = 16}, 2048), 16u);
}

}  // namespace
}  // namespace gputwin::test
