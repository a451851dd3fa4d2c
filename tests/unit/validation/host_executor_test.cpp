// Plans run for real on this computer: their numbers are those of the interpreter, what goes wrong
// ends with a report, and links take at least the time that their rate allows.
#include "validation/executors/host/host_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <thread>

#include "strategies/offload/strategies.h"
#include "tests/unit/validation/real_runs.h"

namespace gputwin::executors {
namespace {

HostOptions quick() {
  HostOptions options;
  options.bodies = kBodies;
  options.time_out_s = 20;
  options.poison = true;
  options.values = same_values();
  return options;
}

/// Loss of the last of kBodies bodies, so that the optimizer's step of the first counts.
double host_loss(const Plan& plan, const HostOptions& options = quick()) {
  EXPECT_FALSE(host_obstacle(plan, host_memory_limit()));
  HostExecutor executor(options);
  const ExecutionOutcome outcome = executor.run(plan, nullptr);
  EXPECT_TRUE(std::holds_alternative<Execution>(outcome));
  return executor.values().loss;
}

TEST(HostRun, LossesAreThoseOfOneRankAndOfTheInterpreter) {
  const std::pair<Transformer, AttentionKernel> models[] = {
      {tiny_gpt(), AttentionKernel::Unfused}, {tiny_llama(), AttentionKernel::Flash2}};
  for (const auto& [model, attention] : models) {
    const Job job = single_job(8, attention);
    const double exact = true_loss(plan_of(model, one_rank(), job));
    EXPECT_NEAR(host_loss(plan_of(model, one_rank(), job)), exact, kSingle) << model.name;
    for (const Case& c : layouts()) {
      EXPECT_NEAR(host_loss(plan_of(model, c.layout, job)), exact, kSingle)
          << model.name << ' ' << c.name;
    }
  }
}

TEST(HostRun, TheFirstStepMovesTheLossMoreThanTheTolerance) {
  const Plan plan = plan_of(tiny_gpt(), one_rank(), single_job(8));
  InterpretOptions one = same_values();
  one.bodies = 1;
  EXPECT_GT(std::abs(interpret(plan, one).loss - true_loss(plan)), 20 * kSingle);
}

TEST(HostRun, OffloadedPlansWithBucketsLoseNothing) {
  const Job job = single_job(8);
  for (const char* strategy : {"greedy", "zero-offload"}) {
    Layout l = one_rank();
    l.bucket_elements = 300;
    const double exact = true_loss(plan_of(tiny_gpt(), l, job));
    l.offload = *find_offload_strategy(strategy);
    l.offload.bucket_elements = 300;
    HostOptions options = quick();
    const Plan plan = plan_of(tiny_gpt(), l, job);
    EXPECT_NEAR(host_loss(plan, options), exact, kSingle) << strategy;
  }
}

// Two shards' sums in codes of few bits. The loss is off by what the codec lacks: hardly with 12
// bits, more with 3, and not by much of itself even then.
TEST(HostRun, CompressionChangesTheLossByItsErrorOnly) {
  Layout l;
  l.tp = 2;
  l.micro_batch = 2;
  const Job job = tiny_job(4);  // BF16, which codecs ask for
  const double exact = host_loss(plan_of(tiny_gpt(), l, job));
  const auto off_by = [&](std::int32_t bits) {
    l.compression.forward = l.compression.backward = {CodecKind::Pwq, 1.0, bits, 0};
    return std::abs(host_loss(plan_of(tiny_gpt(), l, job)) - exact);
  };
  const double fine = off_by(12), coarse = off_by(3);
  EXPECT_LT(fine, 0.02);
  EXPECT_GT(coarse, fine);
  EXPECT_LT(coarse, 0.5);
}

// The codes of gradients and messages as they are: fine ones leave the loss after a step where it
// is, and a run of the interpreter's plan of low rank ends where this one does.
TEST(HostRun, CodesOfGradientsAndMessagesRunAsPlanned) {
  const Job job = tiny_job(8);
  Layout l;
  l.dp = 2;
  l.pp = 2;
  l.micro_batch = 2;
  const double exact = host_loss(plan_of(tiny_llama(), l, job));
  const Codec fine{.kind = CodecKind::Pwq, .bits = 12};
  l.compression = {.reduced = fine, .feedback = true, .sent = fine, .sent_back = fine};
  EXPECT_NEAR(host_loss(plan_of(tiny_llama(), l, job)), exact, 0.02);
  l.zero = 1;
  EXPECT_NEAR(host_loss(plan_of(tiny_llama(), l, job)), exact, 0.02);
  l = {.dp = 2, .micro_batch = 2};
  l.compression = {.reduced = {.kind = CodecKind::LowRank, .rank = 2}, .feedback = true};
  const Plan low_rank = plan_of(tiny_llama(), l, job);
  EXPECT_NEAR(host_loss(low_rank), true_loss(low_rank), 0.05);
}

// A rank multiplies the rows of the member whose shard has come around.
TEST(HostRun, RingsTakeTheRowsOfTheMemberTheyCameFrom) {
  Layout l;
  l.tp = 2;
  l.sp = true;
  l.micro_batch = 2;
  const Job job = tiny_job(4);
  const double exact = host_loss(plan_of(tiny_gpt(), l, job));
  for (const TpOverlap ring : {TpOverlap::Ring, TpOverlap::RingBothWays}) {
    l.tp_overlap = ring;
    EXPECT_NEAR(host_loss(plan_of(tiny_gpt(), l, job)), exact, 0.02);
  }
}

TEST(HostRun, SixteenBitNumbersStayNearTheExactOnes) {
  Layout l;
  l.tp = 2;
  l.micro_batch = 2;
  const Plan plan = plan_of(tiny_gpt(), l, tiny_job(4));  // BF16 with F32 gradients
  EXPECT_NEAR(host_loss(plan), true_loss(plan), 0.05);    // 8 bits of mantissa
}

// ---- what goes wrong ----

Layout two_ranks() {
  Layout l;
  l.tp = 2;
  l.micro_batch = 2;
  return l;
}

/// Gives the second rank a program of its own without the last collective of a body.
Plan without_a_member(Plan plan) {
  Program lone = plan.program_of(RankId(1));
  const auto last = std::find_if(lone.body.rbegin(), lone.body.rend(),
                                 [](const Instruction& i) { return i.kind == Kind::Collective; });
  lone.body.erase(std::next(last).base());
  plan.ranks[1].program = ProgramId(static_cast<std::uint32_t>(plan.programs.size()));
  plan.programs.push_back(std::move(lone));
  return plan;
}

TEST(HostRun, AMissingMemberIsReportedWithWhoWaitsForWhom) {
  HostOptions options = quick();
  options.time_out_s = 0.5;
  HostExecutor executor(options);
  const Plan plan = without_a_member(plan_of(tiny_gpt(), two_ranks(), single_job(4)));
  const ExecutionOutcome outcome = executor.run(plan, nullptr);
  const auto* deadlock = std::get_if<Deadlock>(&outcome);
  ASSERT_NE(deadlock, nullptr);
  EXPECT_FALSE(executor.values().hung);
  bool named = false;
  for (const auto& b : deadlock->ranks) {
    named |= b.rank == RankId(0) && b.waiting_for.find("rank 1 to join") != std::string::npos;
  }
  EXPECT_TRUE(named);
}

/// Threads of this process.
std::ptrdiff_t threads() {
  std::ptrdiff_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    count += entry.exists() ? 1 : 0;
  }
  return count;
}

TEST(HostRun, AKernelThatThrowsEndsTheRunWithItsError) {
  const Plan plan = plan_of(tiny_gpt(), two_ranks(), single_job(4));
  const std::ptrdiff_t before = threads();
  HostOptions options = quick();
  options.before_task = [](RankId rank, const Instruction& i) {
    if (rank == RankId(1) && i.kind == Kind::Collective) throw Fault("the wire is cut");
  };
  try {
    HostExecutor(options).run(plan, nullptr);
    FAIL() << "a run with a broken kernel ended well";
  } catch (const Fault& fault) {
    EXPECT_NE(std::string(fault.what()).find("rank 1, "), std::string::npos) << fault.what();
    EXPECT_NE(std::string(fault.what()).find("the wire is cut"), std::string::npos);
  }
  EXPECT_EQ(threads(), before);
}

// A stream sleeps until it is let go, far beyond the time-out and the patience after it.
TEST(HostRun, AHungStreamIsNamedAndHoldsNobodyUp) {
  const Plan plan = plan_of(tiny_gpt(), two_ranks(), single_job(4));
  const auto let_go = std::make_shared<std::atomic<bool>>(false);
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  HostOptions options = quick();
  options.time_out_s = 0.3;
  options.before_task = [let_go, gone](RankId rank, const Instruction& i) {
    if (rank != RankId(1) || i.kind != Kind::Kernel || *gone) return;
    while (!*let_go) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    *gone = true;
  };
  HostExecutor executor(options);
  const ExecutionOutcome outcome = executor.run(plan, nullptr);
  EXPECT_FALSE(*gone);  // it still hangs, and the run has come back
  *let_go = true;
  const auto* deadlock = std::get_if<Deadlock>(&outcome);
  ASSERT_NE(deadlock, nullptr);
  EXPECT_TRUE(executor.values().hung);
  bool named = false;
  for (const auto& b : deadlock->ranks) {
    named |= b.rank == RankId(1) && b.waiting_for == "its own end: it runs";
  }
  EXPECT_TRUE(named);
  while (!*gone) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

struct Stopper final : EventSink {
  void op(const OpEvent&) override { ++events; }
  void flow(RankId, RankId, Bytes, const Route&, Ps, Ps) override {}
  bool progress(double) override { return go_on; }
  bool go_on = true;
  int events = 0;
};

TEST(HostRun, IsCancelledByItsWatcherAndTellsNothingThen) {
  const Plan plan = plan_of(tiny_gpt(), two_ranks(), single_job(4));
  Stopper sink;
  sink.go_on = false;
  HostOptions options = quick();
  options.bodies = 1'000'000;
  EXPECT_TRUE(std::holds_alternative<Cancelled>(HostExecutor(options).run(plan, &sink)));
  EXPECT_EQ(sink.events, 0);
}

TEST(HostRun, TellsEveryTaskOnceInOrderOfItsStream) {
  StreamOrder sink;
  const Plan plan = plan_of(tiny_gpt(), two_ranks(), single_job(4));
  HostExecutor executor(quick());
  const auto outcome = executor.run(plan, &sink);
  const auto& execution = std::get<Execution>(outcome);
  EXPECT_EQ(sink.count,
            kBodies * 2 * count(plan, 0, [](const Instruction& i) { return is_task(i.kind); }));
  for (const Breakdown& b : execution.breakdown) {
    Ps sum = 0;
    for (const Ps part : b) sum += part;
    EXPECT_EQ(sum, execution.iteration);
  }
}

// Bytes over the rate, and a latency for each: a lower bound that no load on this computer breaks.
TEST(HostRun, LinksTakeAtLeastTheirTime) {
  const Plan plan = plan_of(tiny_gpt(), two_ranks(), single_job(4));
  double bytes = 0;
  int collectives = 0;
  for (const Instruction& i : plan.program_of(RankId(0)).body) {
    if (i.kind != Kind::Collective) continue;
    bytes += static_cast<double>(bytes_of(plan.call(i).reads).value);  // 2 (n - 1) / n = 1 of n = 2
    ++collectives;
  }
  ASSERT_GT(collectives, 8);
  HostOptions options = quick();
  options.collectives = {BytesPerSecond(bytes / 0.05), Seconds(1e-3)};
  HostExecutor executor(options);
  const ExecutionOutcome outcome = executor.run(plan, nullptr);
  const double took = to_seconds(std::get<Execution>(outcome).iteration).value;
  EXPECT_GE(took, 0.05 + 1e-3 * collectives);
}

TEST(HostObstacle, NamesWhatThisComputerCannotDo) {
  const Plan plan = plan_of(tiny_gpt(), two_ranks(), single_job(4));
  EXPECT_FALSE(host_obstacle(plan, host_bytes(plan)));
  const auto large = host_obstacle(plan, host_bytes(plan) - Bytes(1));
  ASSERT_TRUE(large && large->short_by);
  EXPECT_EQ(large->short_by->value, 1);
  Job half = single_job(4);
  half.precision.compute = half.precision.params = DType::F16;
  const auto format = host_obstacle(plan_of(tiny_gpt(), two_ranks(), half), Bytes(1 << 30));
  ASSERT_TRUE(format);
  EXPECT_NE(format->reason.find("format"), std::string::npos);
}

}  // namespace
}  // namespace gputwin::executors
