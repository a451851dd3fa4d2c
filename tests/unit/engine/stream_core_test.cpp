// What a rank does: host, streams, events, rendezvous, interference, repeated bodies, deadlocks.
#include <gmock/gmock.h>

#include "tests/unit/engine/engine_world.h"

namespace gputwin::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string kernel(const std::string& stream, int us, const std::string& name = "k") {
  return "  kernel " + stream + " F/L0/" + name + " opaque flops=" + std::to_string(us) +
         "e6 : :\n";
}

// Launching takes 2 us, each kernel 1 us: issued at 2, 4 and 6, so the device idles 2 + 1 + 1 us.
TEST(Host, LaunchBoundRankWaitsForItsHost) {
  World world;
  world.costs.host_cost.launch = Seconds(2e-6);
  const std::string body = kernel("compute", 1) + kernel("compute", 1) + kernel("compute", 1);
  const std::string plan = "program p\n  stream compute compute\nbody\n" + body + "rank p gpu=0\n";
  const Execution run = world.run(plan);
  EXPECT_EQ(run.makespan, 7 * kUs);
  EXPECT_EQ(part(run, 0, Part::Host), 4 * kUs);
  EXPECT_EQ(part(run, 0, Part::Compute), 3 * kUs);
}

// One instruction that stands for three kernels is issued at 6 us and ends at 7, the next is issued
// at 8 and ends at 9.
TEST(Host, LaunchesEveryKernelOfAnInstruction) {
  World world;
  world.costs.host_cost.launch = Seconds(2e-6);
  const Execution run = world.run(
      "program p\n  stream compute compute\nbody\n"
      "  kernel compute F/L0/a opaque flops=1e6 launches=3 : :\n" +
      kernel("compute", 1) + "rank p gpu=0\n");
  EXPECT_EQ(run.makespan, 9 * kUs);
}

TEST(Host, CudaGraphRemovesTheLaunchCost) {
  World world;
  world.costs.host_cost.launch = Seconds(2e-6);
  Plan plan = parse_plan("program p\n  stream compute compute\nbody\n" + kernel("compute", 1) +
                         kernel("compute", 1) + "rank p gpu=0\n");
  plan.cuda_graph = true;
  EXPECT_EQ(world.run(to_text(plan)).makespan, 2 * kUs);
}

// Two tasks fit into the queue. Task 2 is issued when task 0 is over at 10 us, though its stream
// idles since 1.
TEST(Host, IsAtMostQueueDepthAhead) {
  World world;
  world.costs.host_cost.queue_depth = 2;
  const Execution run =
      world.run("program p\n  stream compute compute\n  stream side communication\nbody\n" +
                kernel("compute", 10) + kernel("side", 1) + kernel("side", 1) + "rank p gpu=0\n");
  EXPECT_EQ(run.makespan, 11 * kUs);
}

// The host waits for the first kernel (10 us) and only then launches the one on the other stream.
TEST(Host, HostWaitHoldsEverythingBehindIt) {
  const Execution run =
      World{}.run("program p\n  stream compute compute\n  stream side communication\nbody\n" +
                  kernel("compute", 10) + "  record compute e0\n  host_wait e0\n" +
                  kernel("side", 5) + "rank p gpu=0\n");
  EXPECT_EQ(run.makespan, 15 * kUs);
}

// Two waits in a row, 7 us to go on after them: the first kernel behind them is issued at 17, the
// second at once after it. The wait at the end is of nothing that follows.
TEST(Host, ResumesOnceAfterItsWaits) {
  World world;
  world.costs.host_cost.resume = Seconds(7e-6);
  const std::string waits = "  host_wait e0\n  host_wait e0\n";
  const Execution run =
      world.run("program p\n  stream compute compute\n  stream side communication\nbody\n" +
                kernel("compute", 10) + "  record compute e0\n" + waits + kernel("side", 5) +
                kernel("side", 5) + "  record side e0\n" + waits + "rank p gpu=0\n");
  EXPECT_EQ(run.makespan, 27 * kUs);
}

// The Record behind the host's wait is not held back by the host: "long" passes it at 100 while the
// host still waits for "short" at 5. Both events keep their own times: the last kernel runs from
// 100 to 101.
TEST(Host, ARecordBehindAHostWaitKeepsItsOwnTime) {
  const Execution run = World{}.run(
      "program p\n  stream compute compute\n  stream long communication\n"
      "  stream short communication\nbody\n" +
      kernel("long", 100) + kernel("short", 5) + "  record short e0\n  host_wait e0\n" +
      "  record long e1\n  wait compute e1\n" + kernel("compute", 1) + "rank p gpu=0\n");
  EXPECT_EQ(run.makespan, 101 * kUs);
}

// side: 4 | wait for compute's 10 | 3. Without the event it would end at 7.
TEST(Events, OrderStreams) {
  const Execution run =
      World{}.run("program p\n  stream compute compute\n  stream side communication\nbody\n" +
                  kernel("side", 4) + kernel("compute", 10) +
                  "  record compute e0\n  wait side e0\n" + kernel("side", 3) + "rank p gpu=0\n");
  EXPECT_EQ(run.makespan, 13 * kUs);
}

// A Wait means the latest Record issued before it: the kernel behind e0's second Record is not
// waited for.
TEST(Events, AWaitMeansTheLatestRecordBeforeIt) {
  const Execution run = World{}.run(
      "program p\n  stream compute compute\n  stream side communication\nbody\n" +
      kernel("compute", 2) + "  record compute e0\n  wait side e0\n" + kernel("side", 1) +
      kernel("compute", 20) + "  record compute e0\n" + "rank p gpu=0\n");
  EXPECT_EQ(run.makespan, 22 * kUs);
}

constexpr const char* kPairOfRanks = R"(communicator tp 0 1
program a
  stream compute compute
  stream tp communication
  slot tp tp
body
)";

// Ranks arrive at 3 and 8 us; all-reduce of 500,000 B over two ranks: 500,000 B per edge, 4 ps/B =
// 2 us, and 1 us latency. Rank 0 sees 5 us of bubble and 3 us of exposed communication.
TEST(Collective, StartsWhenTheLastMemberArrives) {
  World world;
  world.costs.latency = Seconds(1e-6);
  const std::string rest =
      "  record compute e0\n  wait tp e0\n"
      "  collective tp F/L0/ar all_reduce n=125000 slot=tp : :\n"
      "  record tp e1\n  wait compute e1\n" +
      kernel("compute", 1);
  const Execution run =
      world.run(kPairOfRanks + kernel("compute", 3) + rest +
                "program b\n  stream compute compute\n  stream tp communication\n"
                "  slot tp tp\nbody\n" +
                kernel("compute", 8) + rest + "rank a gpu=0 tp=tp\nrank b gpu=1 tp=tp\n");
  EXPECT_THAT(run.rank_end, ElementsAre(12 * kUs, 12 * kUs));
  EXPECT_EQ(part(run, 0, Part::Bubble), 5 * kUs);
  EXPECT_EQ(part(run, 0, Part::ExposedTp), 3 * kUs);
  EXPECT_EQ(part(run, 1, Part::Bubble), 0);
  EXPECT_EQ(part(run, 1, Part::Compute), 9 * kUs);
}

constexpr const char* kTwoPeers = R"(program a
  stream compute compute
  stream one communication
  stream two communication
  slot peer pp peer
body
)";

// Rank 0 receives on one stream what rank 1 sends last; its other stream and its compute go on
// meanwhile.
TEST(SendReceive, ABlockedStreamBlocksNobodyElse) {
  const std::string a = std::string(kTwoPeers) +
                        "  recv one P/L0/r recv_from n=250000 slot=peer : :\n"
                        "  send two P/L0/s send_to n=250000 slot=peer : :\n" +
                        kernel("compute", 7) + kernel("two", 2);
  const std::string b =
      "program b\n  stream compute compute\n  stream comm communication\n"
      "  slot peer pp peer\nbody\n"
      "  recv comm P/L0/r recv_from n=250000 slot=peer : :\n" +
      kernel("comm", 10) + "  send comm P/L0/s send_to n=250000 slot=peer : :\n";
  const Execution run = World{}.run(a + b + "rank a gpu=0 peer=1\nrank b gpu=1 peer=0\n");
  // 1 MB at 4 ps/B = 4 us: 0 -> 1 until 4, rank 1 works until 14, then 1 -> 0 until 18.
  EXPECT_THAT(run.rank_end, ElementsAre(18 * kUs, 18 * kUs));
}

// Both send first. In a group that is no deadlock: both directions run at once (full duplex), 4 us.
TEST(SendReceive, GroupsStartAndEndTogether) {
  const std::string body =
      "  send one P/L0/s send_to n=250000 slot=peer grouped : :\n"
      "  recv one P/L0/r recv_from n=250000 slot=peer grouped : :\n";
  const Execution run =
      World{}.run(std::string(kTwoPeers) + body + "rank a gpu=0 peer=1\nrank a gpu=1 peer=0\n");
  EXPECT_EQ(run.makespan, 4 * kUs);
}

// Kernel of 20 us; the all-reduce (500,000 B, 2 us) starts at 5 us. While it is active the kernel
// runs at 1/1.5 of its speed: 2 us of it do 4/3 us of work, so 2/3 us are lost.
TEST(Interference, SlowsKernelsUnderACollective) {
  World world;
  world.costs.compute_slowdown = 1.5;
  const std::string body = kernel("compute", 5) +
                           "  record compute e0\n  wait tp e0\n"
                           "  collective tp F/L0/ar all_reduce n=125000 slot=tp : :\n" +
                           kernel("compute", 20);
  const Execution run = world.run(kPairOfRanks + body + "rank a gpu=0 tp=tp\nrank a gpu=1 tp=tp\n");
  EXPECT_NEAR(static_cast<double>(run.makespan), 25e6 + 2e6 / 3, 1);
}

// The peer arrives at 10 us, in the middle of rank 0's second kernel, which cannot know it
// beforehand.
TEST(Interference, ComesFromPeersThatArriveLate) {
  World world;
  world.costs.compute_slowdown = 2.0;
  const std::string collective =
      "  record compute e0\n  wait tp e0\n"
      "  collective tp F/L0/ar all_reduce n=125000 slot=tp : :\n";
  const std::string b =
      "program b\n  stream compute compute\n  stream tp communication\n  slot tp tp\nbody\n";
  const Execution run =
      world.run(kPairOfRanks + kernel("compute", 1) + collective + kernel("compute", 20) + b +
                kernel("compute", 10) + collective + "rank a gpu=0 tp=tp\nrank b gpu=1 tp=tp\n");
  // Active from 10 to 12: 1 us of work lost, 21 + 1.
  EXPECT_THAT(run.rank_end, ElementsAre(22 * kUs, 12 * kUs));
}

TEST(Factors, AStragglerIsSlowerByItsFactor) {
  const Execution run =
      World{}.run("program p\n  stream compute compute\nbody\n" + kernel("compute", 10) +
                  "rank p gpu=0\nrank p gpu=1 slowdown=1.2\n");
  EXPECT_THAT(run.rank_end, ElementsAre(10 * kUs, 12 * kUs));
  EXPECT_EQ(run.last_rank, RankId(1));
  EXPECT_EQ(part(run, 0, Part::Bubble), 2 * kUs);
}

// The body's kernel (10 us) needs what the copy of the body before fetched: 625,000 B at 40 ps/B
// take 25 us. Copies follow each other without a gap, so the period is 25 us.
TEST(Bodies, RepeatUntilThePeriodConverges) {
  World world;
  world.costs.copy_rate = BytesPerSecond(25e9);
  const std::string copy =
      "  copy in D/L0/fetch copy_bytes n=156250 copy=h2d : :\n  record in e0\n";
  const Execution run = world.run(
      "program p\n  stream compute compute\n  stream in copy_in\nprologue\n" + copy + "body\n" +
      "  wait compute e0 previous\n" + kernel("compute", 10) + copy + "rank p gpu=0\n");
  EXPECT_EQ(run.iteration, 25 * kUs);
  EXPECT_TRUE(run.period_converged);
  EXPECT_EQ(run.engine.bodies, 3);
  EXPECT_EQ(part(run, 0, Part::Compute), 10 * kUs);
  EXPECT_EQ(part(run, 0, Part::CopyStall), 15 * kUs);
}

TEST(Bodies, OneIsEnoughWhereNothingCrosses) {
  const Execution run = World{}.run("program p\n  stream compute compute\nbody\n" +
                                    kernel("compute", 3) + "rank p gpu=0\n");
  EXPECT_EQ(run.engine.bodies, 1);
  EXPECT_EQ(run.engine.tasks, 1);
  EXPECT_EQ(run.iteration, run.makespan);
}

// Nothing computes after the all-reduce that runs last: its time beyond the kernel is exposed.
TEST(Breakdown, TailUnderTheLastCommunicationIsExposed) {
  const std::string body =
      "  collective tp F/L0/ar all_reduce n=125000 slot=tp : :\n" + kernel("compute", 1);
  const Execution run =
      World{}.run(kPairOfRanks + body + "rank a gpu=0 tp=tp\nrank a gpu=1 tp=tp\n");
  EXPECT_EQ(run.makespan, 2 * kUs);
  EXPECT_EQ(part(run, 0, Part::ExposedTp), 1 * kUs);
}

TEST(Deadlocks, NameWhoIsMissing) {
  const Deadlock deadlock =
      World{}.deadlock(std::string(kPairOfRanks) +
                       "  collective tp F/L0/ar all_reduce n=125000 slot=tp : :\n"
                       "program b\n  stream compute compute\n  slot tp tp\nbody\n" +
                       kernel("compute", 1) + "rank a gpu=0 tp=tp\nrank b gpu=1 tp=tp\n");
  ASSERT_EQ(deadlock.total, 1);
  EXPECT_EQ(deadlock.ranks[0].rank, RankId(0));
  EXPECT_THAT(deadlock.ranks[0].instruction, HasSubstr("F/L0/ar on tp"));
  EXPECT_EQ(deadlock.ranks[0].waiting_for, "rank 1 to join all_reduce #0 of tp");
}

TEST(Deadlocks, NameMismatchedCollectives) {
  const Deadlock deadlock =
      World{}.deadlock(std::string(kPairOfRanks) +
                       "  collective tp F/L0/ar all_reduce n=125000 slot=tp : :\n"
                       "program b\n  stream tp communication\n  slot tp tp\nbody\n"
                       "  collective tp F/L0/ag all_gather n=125000 slot=tp : :\n"
                       "rank a gpu=0 tp=tp\nrank b gpu=1 tp=tp\n");
  ASSERT_EQ(deadlock.total, 2);
  EXPECT_THAT(deadlock.ranks[0].waiting_for, HasSubstr("rank 1 to join all_reduce #0 of tp"));
  EXPECT_THAT(deadlock.ranks[0].waiting_for, HasSubstr("it called all_gather"));
}

TEST(Deadlocks, NameCrossedSends) {
  const std::string body =
      "  send one P/L0/s send_to n=8 slot=peer : :\n"
      "  recv one P/L0/r recv_from n=8 slot=peer : :\n";
  const Deadlock deadlock = World{}.deadlock(std::string(kTwoPeers) + body +
                                             "rank a gpu=0 peer=1\nrank a gpu=1 peer=0\n");
  ASSERT_EQ(deadlock.total, 2);
  EXPECT_EQ(deadlock.ranks[0].waiting_for, "rank 1 to receive #0");
}

TEST(Deadlocks, NameEventsThatAreNeverRecorded) {
  Plan plan =
      parse_plan(std::string("program p\n  stream compute compute\n") +
                 "  stream side communication\nbody\n" + kernel("compute", 1) +
                 "  record compute e0\n  wait side e0\n" + kernel("side", 1) + "rank p gpu=0\n");
  plan.programs[0].body.erase(plan.programs[0].body.begin() + 1);  // the Record
  const Topology topology(small_cluster({}));
  SimgridExecutor executor;
  const auto outcome = executor.run(plan, TableCostModel{}, topology, {.fold = Fold::Off}, nullptr);
  const auto& deadlock = std::get<Deadlock>(outcome);
  ASSERT_EQ(deadlock.total, 1);
  EXPECT_EQ(deadlock.ranks[0].waiting_for, "event e0, which is never recorded");
}

struct Counting final : EventSink {
  std::vector<std::string> ops;
  int flows = 0, looks = 0, cancel_at = -1;
  void op(const OpEvent& event) override {
    ops.push_back(std::to_string(event.rank.value) + ": " + std::to_string(event.start) + "-" +
                  std::to_string(event.end));
  }
  void flow(RankId, RankId, Bytes, const Route& route, Ps start, Ps end) override {
    EXPECT_GT(route.count, 0);
    EXPECT_LT(start, end);
    ++flows;
  }
  bool progress(double fraction) override {
    EXPECT_GE(fraction, 0);
    EXPECT_LE(fraction, 1);
    return looks++ != cancel_at;
  }
};

TEST(Sink, SeesTasksAndFlows) {
  Counting sink;
  const std::string body = kernel("compute", 1) +
                           "  record compute e0\n  wait tp e0\n"
                           "  collective tp F/L0/ar all_reduce n=250000 slot=tp : :\n";
  static_cast<void>(
      World{}.outcome(kPairOfRanks + body + "rank a gpu=0 tp=tp\nrank a gpu=1 tp=tp\n", &sink));
  EXPECT_THAT(sink.ops,
              ::testing::UnorderedElementsAre("0: 0-1000000", "1: 0-1000000", "0: 1000000-5000000",
                                              "1: 1000000-5000000"));
  EXPECT_EQ(sink.flows, 2);
}

TEST(Sink, CanCancel) {
  Counting sink;
  sink.cancel_at = 0;
  EXPECT_TRUE(std::holds_alternative<Cancelled>(World{}.outcome(
      "program p\n  stream compute compute\nbody\n" + kernel("compute", 1) + "rank p gpu=0\n",
      &sink)));
}

// Four events in turn between two streams need two slots, one in each direction; the time is
// unaffected.
TEST(Jitter, IsTheSameInEveryRun) {
  World world;
  const std::string plan = "jitter sigma=0.1 seed=5\nprogram p\n  stream compute compute\nbody\n" +
                           kernel("compute", 10) + kernel("compute", 10) +
                           "rank p gpu=0\nrank p gpu=1\n";
  const Execution once = world.run(plan), again = world.run(plan);
  EXPECT_EQ(once.rank_end, again.rank_end);
  EXPECT_NE(once.rank_end[0], once.rank_end[1]);
  EXPECT_NE(once.rank_end[0], 20 * kUs);
}

}  // namespace
}  // namespace gputwin::test
