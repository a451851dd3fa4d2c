// Whole plans through the CUDA backend on a double of its libraries: numbers are those of the
// interpreter, calls come in the order of the plan, what fails is named, nothing is kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "strategies/offload/strategies.h"
#include "tests/support/cuda_double/cuda_double.h"
#include "tests/unit/validation/real_runs.h"
#include "validation/executors/cuda/cuda_executor.h"

namespace gputwin::executors {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

CudaOptions quick() {
  CudaOptions options;
  options.bodies = kBodies;
  options.time_out_s = 60;
  options.values = same_values();
  return options;
}

/// Loss of the last of kBodies bodies, so that the optimizer's step of the first counts.
double cuda_loss(const Plan& plan, std::uint64_t seed = 1) {
  cuda_double::start({.devices = 8, .seed = seed});
  const auto obstacle = cuda_obstacle(plan);
  EXPECT_FALSE(obstacle) << obstacle->reason;
  CudaExecutor executor(quick());
  const ExecutionOutcome outcome = executor.run(plan, nullptr);
  EXPECT_TRUE(std::holds_alternative<Execution>(outcome));
  EXPECT_THAT(cuda_double::wrongs(), IsEmpty());
  EXPECT_EQ(cuda_double::alive(), 0);
  return executor.values().loss;
}

void expect_losses_of_the_interpreter(const Transformer& model, AttentionKernel attention) {
  const Job job = single_job(8, attention);
  const double exact = true_loss(plan_of(model, one_rank(), job));
  EXPECT_NEAR(cuda_loss(plan_of(model, one_rank(), job)), exact, kSingle);
  for (const Case& c : layouts()) {
    EXPECT_NEAR(cuda_loss(plan_of(model, c.layout, job)), exact, kSingle) << c.name;
  }
}

TEST(CudaRun, LossesOfAGptAreThoseOfTheInterpreter) {
  expect_losses_of_the_interpreter(tiny_gpt(), AttentionKernel::Unfused);
}

TEST(CudaRun, LossesOfALlamaAreThoseOfTheInterpreter) {
  expect_losses_of_the_interpreter(tiny_llama(), AttentionKernel::Flash2);
}

TEST(CudaRun, OffloadedPlansWithBucketsLoseNothing) {
  const Job job = single_job(8);
  for (const char* strategy : {"greedy", "zero-offload"}) {
    Layout l = one_rank();
    l.bucket_elements = 300;
    const double exact = true_loss(plan_of(tiny_gpt(), l, job));
    l.offload = *find_offload_strategy(strategy);
    l.offload.bucket_elements = 300;
    EXPECT_NEAR(cuda_loss(plan_of(tiny_gpt(), l, job)), exact, kSingle) << strategy;
  }
}

// Weights in slots, activations on the host, steps that are late: each plan has its own meaning.
TEST(CudaRun, OffloadStrategiesHaveTheLossOfTheInterpreter) {
  for (const char* strategy :
       {"zero-offload-dpu", "zero-infinity-cpu", "l2l", "patrickstar", "stronghold", "capuchin"}) {
    Layout l = one_rank();
    l.bucket_elements = 300;
    l.offload = *find_offload_strategy(strategy);
    l.offload.bucket_elements = 300;
    const Plan plan = plan_of(tiny_gpt(), l, single_job(8));
    EXPECT_NEAR(cuda_loss(plan), true_loss(plan), kSingle) << strategy;
  }
}

TEST(CudaRun, OtherSchedulesHaveTheLossOfOneRank) {
  const Job job = single_job(4);
  const double exact = true_loss(plan_of(tiny_gpt(), one_rank(), job));
  for (const Schedule schedule : {Schedule::Gpipe, Schedule::Interleaved, Schedule::DualPipe}) {
    Layout l;
    l.pp = 2, l.micro_batch = 1, l.schedule = schedule;
    if (schedule == Schedule::Interleaved) l.vpp = 2;
    EXPECT_NEAR(cuda_loss(plan_of(tiny_gpt(), l, job)), exact, kSingle)
        << static_cast<int>(schedule);
  }
}

// A product takes the rows of the member whose turn it is: a ring gives the loss of one rank.
TEST(CudaRun, RingsHaveTheLossOfOneRank) {
  const Job job = single_job(4);
  const double exact = true_loss(plan_of(tiny_gpt(), one_rank(), job));
  for (const TpOverlap ring : {TpOverlap::Ring, TpOverlap::RingBothWays}) {
    Layout l;
    l.tp = 2, l.sp = true, l.micro_batch = 2, l.tp_overlap = ring;
    EXPECT_NEAR(cuda_loss(plan_of(tiny_gpt(), l, job)), exact, kSingle);
  }
}

// Streams move in other orders: what the plan orders by events stays ordered.
TEST(CudaRun, TheOrderOfStreamsDoesNotMatter) {
  Layout l;
  l.tp = 2, l.sp = true, l.micro_batch = 2;
  const Plan plan = plan_of(tiny_gpt(), l, single_job(4));
  const double exact = true_loss(plan);
  for (const std::uint64_t seed : {2, 3, 4}) EXPECT_NEAR(cuda_loss(plan, seed), exact, kSingle);
}

/// `plan` without the waits of streams for events.
Plan without_waits(Plan plan) {
  for (Program& program : plan.programs) {
    std::erase_if(program.body, [](const Instruction& i) { return i.kind == Kind::Wait; });
  }
  return plan;
}

TEST(CudaRun, WithoutThePlansWaitsTheLossIsAnother) {
  Layout l;
  l.tp = 2, l.sp = true, l.micro_batch = 2;
  const Plan plan = plan_of(tiny_gpt(), l, single_job(4));
  EXPECT_FALSE(std::abs(cuda_loss(without_waits(plan)) - true_loss(plan)) < 20 * kSingle);
}

TEST(CudaRun, SixteenBitNumbersStayNearTheExactOnes) {
  Layout l;
  l.tp = 2;
  l.micro_batch = 2;
  const Plan plan = plan_of(tiny_gpt(), l, tiny_job(4));  // BF16 with F32 gradients
  EXPECT_NEAR(cuda_loss(plan), true_loss(plan), 0.05);    // 8 bits of mantissa
}

// As on the processor: codes of 12 bits hardly change the loss, of 3 bits more.
TEST(CudaRun, CompressionChangesTheLossByItsErrorOnly) {
  Layout l;
  l.tp = 2;
  l.micro_batch = 2;
  const Job job = tiny_job(4);
  const double exact = cuda_loss(plan_of(tiny_gpt(), l, job));
  const auto off_by = [&](std::int32_t bits) {
    l.compression.forward = l.compression.backward = {CodecKind::Pwq, 1.0, bits, 0};
    return std::abs(cuda_loss(plan_of(tiny_gpt(), l, job)) - exact);
  };
  const double fine = off_by(12), coarse = off_by(3);
  EXPECT_LT(fine, 0.02);
  EXPECT_GT(coarse, fine);
  EXPECT_LT(coarse, 0.5);
}

}  // namespace
}  // namespace gputwin::executors
