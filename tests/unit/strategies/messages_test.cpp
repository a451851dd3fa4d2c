// Pipeline messages that the host waits for (Megatron-LM to 2023, DeepSpeed), and that it does not.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/core/progress.h"
#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

Plan pipeline(const char* stack, std::int32_t pp, std::int32_t vpp, std::int64_t micro_batches) {
  Layout layout{.pp = pp, .vpp = vpp};
  layout.schedule = vpp > 1 ? Schedule::Interleaved : Schedule::OneFOneB;
  Job job = tiny_job(micro_batches);
  job.stack = stack;
  return plan_of(tiny_gpt(), layout, job);
}

std::int64_t count_kind(const Plan& plan, std::uint32_t program, Kind kind) {
  return count(plan, program, [kind](const Instruction& i) { return i.kind == kind; });
}

// Two stages, one forward and one backward of 4 micro-batches each. Stage 0 sends 4 activations and
// receives 4 gradients; 1F1B has one warm-up pass, so of its 8 passes the first is F0 and the last
// B3. Its exchanges: {send F0}, {send F1, receive B0}, {}, {send F2, receive B1}, {}, {send F3,
// receive B2}, {receive B3}, {}: each stream in an exchange is waited for once, 4 sends + 4
// receives.
TEST(BlockingMessages, HostWaitsOnceForEveryMessage) {
  const Plan plan = pipeline("megatron-lm-2021", 2, 1, 4);
  for (const std::uint32_t stage : {0u, 1u}) {
    EXPECT_EQ(count_kind(plan, stage, Kind::Send) + count_kind(plan, stage, Kind::Recv), 8);
    EXPECT_GE(count_kind(plan, stage, Kind::HostWait), 7) << "stage " << stage;
    EXPECT_LE(count_kind(plan, stage, Kind::HostWait), 8) << "stage " << stage;
  }
}

// A message is issued after all compute before it, so no kernel lies between a send and the wait
// for it.
TEST(BlockingMessages, NothingIsComputedBetweenASendAndTheWaitForIt) {
  for (const std::int32_t vpp : {1, 2}) {
    const Plan plan = pipeline("megatron-lm-2022", 2, vpp, 4);
    for (const Program& program : plan.programs) {
      bool sent = false;
      for (const Instruction& i : program.body) {
        if (i.kind == Kind::Send) sent = true;
        if (i.kind == Kind::HostWait) sent = false;
        EXPECT_FALSE(sent && i.kind == Kind::Kernel) << plan.full_name(i);
      }
    }
  }
}

TEST(BlockingMessages, MegatronCoreOverlapsThemWithSeveralChunksAlone) {
  EXPECT_GT(count_kind(pipeline("megatron-core", 2, 1, 4), 0, Kind::HostWait), 0);
  EXPECT_EQ(count_kind(pipeline("megatron-core", 2, 2, 4), 0, Kind::HostWait), 0);
  EXPECT_EQ(count_kind(pipeline("generic", 2, 1, 4), 0, Kind::HostWait), 0);
}

// Every number of micro-batches, one group included, where the last forward is not paired with the
// first backward.
TEST(BlockingMessages, NoNumberOfMicroBatchesDeadlocks) {
  for (const std::int32_t pp : {2, 4}) {
    const std::int32_t vpp = 4 / pp;
    for (const std::int64_t groups : {1, 2, 3}) {
      const Plan plan = pipeline("megatron-lm-2021", pp, vpp, groups * pp);
      EXPECT_GT(count_kind(plan, 0, Kind::HostWait), 0);
      EXPECT_TRUE(blocked_ranks(plan).empty()) << "pp " << pp << ", groups " << groups;
    }
  }
}

}  // namespace
}  // namespace gputwin
