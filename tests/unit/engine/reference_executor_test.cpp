#include "sim/engine/reference_executor.h"

#include <numeric>

#include "sim/core/plan_text.h"
#include "tests/support/small_cluster.h"
#include "tests/support/table_cost_model.h"

namespace gputwin::test {
namespace {

using namespace literals;

constexpr Ps kUs = 1'000'000;

// Kernels take 1 us per 10^6 flops; NVLink moves a byte in 4 ps, PCIe in 40 ps.
ExecutionOutcome run(const std::string& text, const TableCostModel& costs = {}) {
  const Plan plan = parse_plan(text);
  ReferenceExecutor executor;
  return executor.run(plan, costs, Topology(small_cluster({})), RunOptions{}, nullptr);
}
Execution executed(const std::string& text, const TableCostModel& costs = {}) {
  const ExecutionOutcome outcome = run(text, costs);
  EXPECT_TRUE(std::holds_alternative<Execution>(outcome));
  return std::get<Execution>(outcome);
}

const std::string kOneRank = R"(
program p frames=0
  stream compute compute
  stream other compute
body
)";
const std::string kTwoRanks = R"(
communicator tp0 0 1
program p frames=0
  stream compute compute
  stream comm communication
  slot tp tp
  slot peer pp peer
body
)";

// Streams run side by side: 3 + 4 on one, 5 on the other.
TEST(Reference, RunsStreamsSideBySide) {
  const Execution e = executed(kOneRank + R"(
  kernel compute F/L0/a opaque flops=3e6 : :
  kernel compute F/L0/b opaque flops=4e6 : :
  kernel other F/L0/c opaque flops=5e6 : :
rank p gpu=0
)");
  EXPECT_EQ(e.makespan, 7 * kUs);
  EXPECT_EQ(e.engine.tasks, 3);
}

// b on the other stream waits for a, not for c behind it: 3 + 5 against 3 + 4.
TEST(Reference, WaitsForTheRecordedMoment) {
  const Execution e = executed(kOneRank + R"(
  kernel compute F/L0/a opaque flops=3e6 : :
  record compute e0
  kernel compute F/L0/c opaque flops=4e6 : :
  wait other e0
  kernel other F/L0/b opaque flops=5e6 : :
rank p gpu=0
)");
  EXPECT_EQ(e.makespan, 8 * kUs);
}

// Each launch takes 2 us, kernels 1 us: the last of three is issued at 6 us and ends at 7 us. A
// CUDA graph has no launches: 3 us.
TEST(Reference, PaysLaunchesOnTheHost) {
  TableCostModel costs;
  costs.host_cost.launch = 2.0_us;
  const std::string text = kOneRank + R"(
  kernel compute F/L0/a opaque flops=1e6 : :
  kernel compute F/L0/b opaque flops=1e6 : :
  kernel compute F/L0/c opaque flops=1e6 : :
rank p gpu=0
)";
  EXPECT_EQ(executed(text, costs).makespan, 7 * kUs);
  Plan graph = parse_plan(text);
  graph.cuda_graph = true;
  ReferenceExecutor executor;
  const ExecutionOutcome outcome =
      executor.run(graph, costs, Topology(small_cluster({})), RunOptions{}, nullptr);
  EXPECT_EQ(std::get<Execution>(outcome).makespan, 3 * kUs);
}

// Three launches of 2 us before a: it ends at 7 us; b is issued at 8.
TEST(Reference, PaysTheLaunchesOfEveryKernelOfAnInstruction) {
  TableCostModel costs;
  costs.host_cost.launch = 2.0_us;
  const std::string text = kOneRank + R"(
  kernel compute F/L0/a opaque flops=1e6 launches=3 : :
  kernel compute F/L0/b opaque flops=1e6 : :
rank p gpu=0
)";
  EXPECT_EQ(executed(text, costs).makespan, 9 * kUs);
}

// The host waits for a (2 + 10 us) before it launches b: 12 + 2 + 1.
TEST(Reference, BlocksTheHostOnAnEvent) {
  TableCostModel costs;
  costs.host_cost.launch = 2.0_us;
  EXPECT_EQ(executed(kOneRank + R"(
  kernel compute F/L0/a opaque flops=1e7 : :
  record compute e0
  host_wait e0
  kernel other F/L0/b opaque flops=1e6 : :
rank p gpu=0
)",
                     costs)
                .makespan,
            15 * kUs);
}

// Two places in the queue. a and b are issued at 0; c needs the place of a, which is free at 10 us
// although b ended at 1 us, since places are freed in issue order: c runs 10 .. 12 us on the other
// stream.
TEST(Reference, HoldsTheHostWhenTheQueueIsFull) {
  TableCostModel costs;
  costs.host_cost.queue_depth = 2;
  EXPECT_EQ(executed(kOneRank + R"(
  kernel compute F/L0/a opaque flops=1e7 : :
  kernel other F/L0/b opaque flops=1e6 : :
  kernel other F/L0/c opaque flops=2e6 : :
rank p gpu=0
)",
                     costs)
                .makespan,
            12 * kUs);
}

// Ring all-reduce of 10^6 bytes over two: 10^6 bytes on each NVLink, 4 ps/B: 4 us, plus 2 us
// latency, after the slower rank arrives (3 us; 5 us with its slowdown of 2 on a kernel of 2.5).
TEST(Reference, StartsACollectiveWithItsLastMember) {
  TableCostModel costs;
  costs.latency = 2.0_us;
  const Execution e = executed(kTwoRanks + R"(
  kernel comm F/L0/a opaque flops=2.5e6 : :
  collective comm F/L0/r all_reduce n=250000 slot=tp : :
rank p gpu=0 tp=tp0 peer=1
rank p gpu=1 tp=tp0 peer=0 slowdown=2
)",
                               costs);
  EXPECT_EQ(e.makespan, (5 + 2 + 4) * kUs);
  EXPECT_EQ(e.rank_end[0], e.rank_end[1]);
  EXPECT_EQ(e.engine.flows, 2);
}

// The all-reduce runs 0 .. 4 us; meanwhile kernels run at 1 / 1.25. Of a kernel of 8 us, 3.2 us are
// done by then: it ends at 4 + 4.8.
TEST(Reference, SlowsKernelsUnderACollective) {
  TableCostModel costs;
  costs.compute_slowdown = 1.25;
  const Execution e = executed(kTwoRanks + R"(
  collective comm F/L0/r all_reduce n=250000 slot=tp : :
  kernel compute F/L0/a opaque flops=8e6 : :
rank p gpu=0 tp=tp0 peer=1
rank p gpu=1 tp=tp0 peer=0
)",
                               costs);
  EXPECT_EQ(e.makespan, 8'800'000);
}

// Both send 10^6 bytes (4 us) to each other. Ungrouped, each waits for the other to receive: a
// deadlock. Grouped, the transfers share nothing and end at 4 us.
const std::string kExchange = kTwoRanks + R"(
  send comm P/L0/s send_to n=250000 slot=peer GROUPED : :
  recv comm P/L0/r recv_from n=250000 slot=peer GROUPED : :
rank p gpu=0 tp=tp0 peer=1
rank p gpu=1 tp=tp0 peer=0
)";
std::string exchange(const std::string& flag) {
  std::string text = kExchange;
  for (std::size_t at; (at = text.find("GROUPED")) != std::string::npos;) text.replace(at, 7, flag);
  return text;
}

TEST(Reference, RunsGroupedSendsAndReceivesTogether) {
  EXPECT_EQ(executed(exchange("grouped")).makespan, 4 * kUs);
}

TEST(Reference, ReportsADeadlock) {
  const ExecutionOutcome outcome = run(exchange(""));
  ASSERT_TRUE(std::holds_alternative<Deadlock>(outcome));
  const auto& deadlock = std::get<Deadlock>(outcome);
  EXPECT_EQ(deadlock.total, 2);
  ASSERT_EQ(deadlock.ranks.size(), 2u);
  EXPECT_EQ(deadlock.ranks[1].rank, RankId(1));
  EXPECT_EQ(deadlock.ranks[0].instruction, "P/L0/s on comm");
  EXPECT_EQ(deadlock.ranks[0].waiting_for, "rank 1 to receive #0");
}

// Rank 0 joins tp0 then tp1, rank 1 the other way round.
TEST(Reference, NamesTheMissingMemberOfACollective) {
  const ExecutionOutcome outcome = run(R"(
communicator tp0 0 1
communicator tp1 0 1
program p frames=0
  stream comm communication
  slot first tp
  slot second tp
body
  collective comm F/L0/a all_reduce n=8 slot=first : :
  collective comm F/L0/b all_reduce n=8 slot=second : :
rank p gpu=0 first=tp0 second=tp1
rank p gpu=1 first=tp1 second=tp0
)");
  ASSERT_TRUE(std::holds_alternative<Deadlock>(outcome));
  const auto& deadlock = std::get<Deadlock>(outcome);
  EXPECT_EQ(deadlock.ranks[0].waiting_for, "rank 1 to join all_reduce #0 of tp0");
  EXPECT_EQ(deadlock.ranks[1].waiting_for, "rank 0 to join all_reduce #0 of tp1");
}

// 10^6 bytes to the device: 3 us start-up, then 40 ps/B on PCIe = 40 us, slower than the copy's own
// 100 GB/s.
TEST(Reference, CopiesAtTheSlowestLink) {
  TableCostModel costs;
  costs.copy_start_up = 3.0_us;
  costs.copy_rate = 100.0_GBps;
  EXPECT_EQ(executed(kOneRank + R"(
  copy other X/L0/c copy_bytes n=250000 copy=h2d : :
rank p gpu=0
)",
                     costs)
                .makespan,
            43 * kUs);
}

// Forward (4 us) waits for the step of the body before, and the step (6 us) for its forward: 10 us
// per body. Two equal periods need three bodies.
TEST(Reference, RepeatsBodiesUntilThePeriodHolds) {
  const Execution e = executed(R"(
program p frames=0
  stream compute compute
  stream step compute
prologue
  record step e0
body
  wait compute e0 previous
  kernel compute F/L0/a opaque flops=4e6 : :
  record compute e1
  wait step e1
  kernel step O/L0/b opaque flops=6e6 : :
  record step e0
rank p gpu=0
)");
  EXPECT_EQ(e.iteration, 10 * kUs);
  EXPECT_EQ(e.engine.bodies, 3);
  EXPECT_TRUE(e.period_converged);
}

// Forward 3, all-reduce 4 + wait, then 2 of optimizer: on rank 0 the bubble is the wait for the
// slower rank 1.
TEST(Reference, BreaksTheTimeDown) {
  const Execution e = executed(kTwoRanks + R"(
  kernel comm F/L0/a opaque flops=3e6 : :
  collective comm F/L0/r all_reduce n=250000 slot=tp : :
  kernel comm O/L0/b opaque flops=2e6 : :
rank p gpu=0 tp=tp0 peer=1
rank p gpu=1 tp=tp0 peer=0 slowdown=2
)");
  const auto part = [&](std::size_t rank, Part p) {
    return e.breakdown[rank][static_cast<std::size_t>(p)];
  };
  // Rank 1: 6 + 4 + 4 = 14 us. Rank 0: 3 of compute, 3 of bubble, 4 of all-reduce, 2 of optimizer,
  // 2 of bubble.
  EXPECT_EQ(e.iteration, 14 * kUs);
  EXPECT_EQ(e.last_rank, RankId(1));
  EXPECT_EQ(part(0, Part::Compute), 3 * kUs);
  EXPECT_EQ(part(0, Part::Bubble), 5 * kUs);
  EXPECT_EQ(part(0, Part::ExposedTp), 4 * kUs);
  EXPECT_EQ(part(0, Part::Optimizer), 2 * kUs);
  for (const Breakdown& parts : e.breakdown) {
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), Ps{0}), e.iteration);
  }
}

}  // namespace
}  // namespace gputwin::test
