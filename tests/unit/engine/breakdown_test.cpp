// What a compute stream waited for, through streams and peers; the same from both executors.
#include <gtest/gtest.h>

#include "sim/engine/reference_executor.h"
#include "sim/engine/stream_core.h"
#include "tests/unit/engine/engine_world.h"

namespace gputwin::test {
namespace {

using engine::History;

/// Microseconds by part; parts that are not named are zero.
using Parts = std::vector<std::pair<Part, Ps>>;

Breakdown in_full(const Parts& parts) {
  Breakdown full{};
  for (const auto& [which, us] : parts) full[static_cast<std::size_t>(which)] = us * kUs;
  return full;
}

/// Rank `rank` of the plan spends its time on exactly these, in both executors.
void expect_parts(const std::string& plan, std::size_t rank, const Parts& parts,
                  const World& world = {}) {
  EXPECT_EQ(world.run(plan).breakdown[rank], in_full(parts));
  ReferenceExecutor reference;
  const Topology topology(small_cluster(world.shape));
  const ExecutionOutcome outcome =
      reference.run(parse_plan(plan), world.costs, topology, world.options, nullptr);
  ASSERT_TRUE(std::holds_alternative<Execution>(outcome));
  EXPECT_EQ(std::get<Execution>(outcome).breakdown[rank], in_full(parts));
}

std::string kernel(int us) {
  return "  kernel compute F/L0/k opaque flops=" + std::to_string(us) + "e6 : :\n";
}
std::string stage(const std::string& name, const std::string& body) {
  return "program " + name +
         "\n  stream compute compute\n  stream tp communication\n  stream pp communication\n"
         "  stream copies copy_out\n  slot tp tp\n  slot peer pp peer\nbody\n" +
         body;
}
/// A first stage that computes for so long, then sends 500,000 B: 2 us.
std::string sender(const std::string& name, int us) {
  return stage(name, kernel(us) +
                         "  record compute e0\n  wait pp e0\n"
                         "  send pp P/L0/s send_to n=125000 slot=peer : :\n");
}
const std::string kReceive = "  recv pp P/L0/r recv_from n=125000 slot=peer : :\n  record pp e1\n";
// 500,000 B over two ranks: 250,000 B per edge, 1 us.
const std::string kGather =
    "  wait tp e1\n  collective tp P/L0/g all_gather n=125000 slot=tp : :\n  record tp e2\n";
const std::string kTwoPairs = "communicator first 0 1\ncommunicator second 2 3\n";

/// Two ranks per stage; `a` and `b` are the first stage, both of the second run `c`.
std::string ranks() {
  return "rank a gpu=0 tp=first peer=2\nrank b gpu=1 tp=first peer=3\n"
         "rank c gpu=2 tp=second peer=0\nrank c gpu=3 tp=second peer=1\n";
}

// The message moves in [10, 12) of the second stage's wait [0, 12).
TEST(Breakdown, WaitForAMessageIsABubbleUntilItMoves) {
  const std::string plan = kTwoPairs + sender("a", 10) + sender("b", 10) +
                           stage("c", kReceive + "  wait compute e1\n" + kernel(1)) + ranks();
  expect_parts(plan, 2, {{Part::Bubble, 10}, {Part::ExposedPp, 2}, {Part::Compute, 1}});
  expect_parts(plan, 0, {{Part::Compute, 10}, {Part::ExposedPp, 2}, {Part::Bubble, 1}});
}

// Message [10, 12), all-gather [12, 13), kernel [13, 14).
TEST(Breakdown, GatherThatWaitsForAMessageIsExposedOnlyWhileItMoves) {
  const std::string plan = kTwoPairs + sender("a", 10) + sender("b", 10) +
                           stage("c", kReceive + kGather + "  wait compute e2\n" + kernel(1)) +
                           ranks();
  const Parts parts = {
      {Part::Bubble, 10}, {Part::ExposedPp, 2}, {Part::ExposedTp, 1}, {Part::Compute, 1}};
  expect_parts(plan, 2, parts);
  expect_parts(plan, 3, parts);
}

// Rank 2 has its message at 12, rank 3 at 15, so rank 2 waits for its partner in [12, 15). Both
// gather in [15, 16).
TEST(Breakdown, GatherThatWaitsForALatePartnerIsABubble) {
  const std::string plan = kTwoPairs + sender("a", 10) + sender("b", 13) +
                           stage("c", kReceive + kGather + "  wait compute e2\n" + kernel(1)) +
                           ranks();
  const Parts parts = {
      {Part::Bubble, 13}, {Part::ExposedPp, 2}, {Part::ExposedTp, 1}, {Part::Compute, 1}};
  expect_parts(plan, 2, parts);
  expect_parts(plan, 3, parts);
}

// The all-reduce (2 us) of the kernel [0, 1) queues behind the all-gather [12, 13): of the gap
// [1, 15) the bubble is [1, 10), the message [10, 12).
TEST(Breakdown, CollectiveBehindAGatherSharesItsReason) {
  const std::string reduce =
      "  record compute e3\n  wait tp e3\n"
      "  collective tp F/L0/ar all_reduce n=125000 slot=tp : :\n  record tp e4\n";
  const std::string plan =
      kTwoPairs + sender("a", 10) + sender("b", 10) +
      stage("c", kernel(1) + kReceive + kGather + reduce + "  wait compute e4\n" + kernel(1)) +
      ranks();
  expect_parts(plan, 2,
               {{Part::Bubble, 9}, {Part::ExposedPp, 2}, {Part::ExposedTp, 3}, {Part::Compute, 2}});
}

// The copy of what arrived, 500,000 B at 25 GB/s, takes [12, 32).
TEST(Breakdown, CopyOfAMessageStallsOnlyWhileItMoves) {
  const std::string copy =
      "  wait copies e1\n  copy copies P/L0/c copy_bytes n=125000 copy=d2h : :\n  record copies "
      "e2\n";
  const std::string plan = kTwoPairs + sender("a", 10) + sender("b", 10) +
                           stage("c", kReceive + copy + "  wait compute e2\n" + kernel(1)) +
                           ranks();
  expect_parts(
      plan, 2,
      {{Part::Bubble, 10}, {Part::ExposedPp, 2}, {Part::CopyStall, 20}, {Part::Compute, 1}});
}

// The host needs 5 us to launch the all-reduce, which then moves in [5, 7).
TEST(Breakdown, CollectiveThatIsIssuedLateWaitsForItsHost) {
  World world;
  world.costs.host_cost.collective_launch = Seconds(5e-6);
  const std::string plan = "communicator first 0 1\n" +
                           stage("p",
                                 "  collective tp F/L0/ar all_reduce n=125000 slot=tp : :\n"
                                 "  record tp e0\n  wait compute e0\n" +
                                     kernel(1)) +
                           "rank p gpu=0 tp=first peer=1\nrank p gpu=1 tp=first peer=0\n";
  expect_parts(plan, 0, {{Part::Host, 5}, {Part::ExposedTp, 2}, {Part::Compute, 1}}, world);
}

// Bubble [0, 10), message [10, 12), gather [12, 13), partner [13, 14), reduce [14, 16): five
// intervals. The shorter of message and gather, 1, joins what was before it; the bubble stays.
TEST(History, KeepsTheLongWaitOfALongChain) {
  History history = History::none(0);
  history.add(Part::Bubble, 0);
  history.add(Part::ExposedPp, 10);
  history.add(Part::ExposedTp, 12);
  history.add(Part::Bubble, 13);
  history.add(Part::ExposedTp, 14);
  Breakdown parts{};
  engine::split_gap(parts, 0, 16, history);
  Breakdown expected{};
  expected[static_cast<std::size_t>(Part::ExposedTp)] = 2;
  expected[static_cast<std::size_t>(Part::ExposedPp)] = 3;
  expected[static_cast<std::size_t>(Part::Bubble)] = 11;
  EXPECT_EQ(parts, expected);
}

}  // namespace
}  // namespace gputwin::test
