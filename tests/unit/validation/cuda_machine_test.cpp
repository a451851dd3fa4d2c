// How the CUDA backend issues plans and what becomes of them when calls fail, streams hang and
// members are missing, on a double of its libraries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "sim/core/plan_text.h"
#include "sim/core/spelling.h"
#include "strategies/offload/strategies.h"
#include "tests/support/cuda_double/cuda_double.h"
#include "tests/unit/validation/real_runs.h"
#include "validation/executors/cuda/cuda_executor.h"
#include "validation/executors/cuda/cuda_memory.h"

namespace gputwin::executors {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Plan tp2() {
  Layout l;
  l.tp = 2;
  l.micro_batch = 2;
  return plan_of(tiny_gpt(), l, single_job(4, AttentionKernel::Flash2));
}

Plan pp2() {
  Layout l;
  l.pp = 2, l.schedule = Schedule::OneFOneB, l.micro_batch = 1;
  return plan_of(tiny_gpt(), l, single_job(4, AttentionKernel::Flash2));
}

/// Weights and Adam's states on the host; its step as well.
Plan offloaded() {
  Layout l;
  l.schedule = Schedule::None, l.micro_batch = 2, l.bucket_elements = 300;
  l.offload = *find_offload_strategy("zero-offload");
  l.offload.bucket_elements = 300;
  return plan_of(tiny_gpt(), l, single_job(4, AttentionKernel::Flash2));
}

CudaOptions quick(double time_out_s = 60) {
  CudaOptions options;
  options.bodies = 2;
  options.time_out_s = time_out_s;
  return options;
}

/// What runs of `plan` end with if they do not end well.
std::string error_of(const Plan& plan, const CudaOptions& options = quick()) {
  try {
    CudaExecutor executor(options);
    const ExecutionOutcome outcome = executor.run(plan, nullptr);
    return std::holds_alternative<Execution>(outcome) ? "" : "no figures";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// ---- order ----

/// What each instruction of a rank leaves in the double's list, of those that leave one entry:
/// products, collectives by their number in their communicator, groups of messages, work of the
/// host. By stream, in order of issue.
std::vector<std::string> expected_of(const Plan& plan, RankId rank, int bodies, int first_stream) {
  std::map<std::uint32_t, int> numbers;
  std::vector<std::string> list;
  const std::vector<Instruction>& body = plan.program_of(rank).body;
  for (int b = 0; b < bodies; ++b) {
    for (std::size_t k = 0; k < body.size(); ++k) {
      const Instruction& i = body[k];
      const std::string on = std::to_string(first_stream + i.stream) + " ";
      if (i.kind == Kind::Kernel && plan.call(i).op.kind == OpKind::Gemm) {
        list.push_back(on + "product");
      } else if (i.kind == Kind::HostTask) {
        list.push_back(on + "host");
      } else if (i.kind == Kind::Collective) {
        const CommunicatorId group = plan.communicator(rank, plan.call(i).op.slot);
        const std::string kind = plan.call(i).op.kind == OpKind::AllReduce ? "AllReduce" : "other";
        list.push_back(on + kind + " #" + std::to_string(numbers[group.value]++));
      } else if (i.kind == Kind::Send || i.kind == Kind::Recv) {
        std::size_t ends = k + 1;
        const auto joins = [&](std::size_t at) {
          return at < body.size() && (body[at].kind == Kind::Send || body[at].kind == Kind::Recv) &&
                 (body[at].flags & body[at - 1].flags & kGrouped) != 0 &&
                 body[at].stream == i.stream;
        };
        while (joins(ends)) ++ends;
        list.push_back(on + "messages " + std::to_string(ends - k));
        k = ends - 1;
      }
    }
  }
  return list;
}

/// The same from what was enqueued on `streams` streams from `first` on.
std::vector<std::string> issued_on(int first, int streams) {
  std::vector<std::string> list;
  for (const cuda_double::Issued& i : cuda_double::issued()) {
    const bool kind = i.what == "product" || i.what == "host" || i.what.starts_with("messages") ||
                      i.what.find('#') != std::string::npos;
    if (kind && i.stream >= first && i.stream < first + streams) {
      list.push_back(std::to_string(i.stream) + " " + i.what);
    }
  }
  return list;
}

void expect_issued_as_planned(const Plan& plan) {
  cuda_double::start({});
  ASSERT_EQ(error_of(plan), "");
  int first = 1;
  for (std::uint32_t r = 0; r < plan.ranks.size(); ++r) {
    const int streams = static_cast<int>(plan.program_of(RankId(r)).streams.size());
    const std::vector<std::string> expected = expected_of(plan, RankId(r), 2, first);
    EXPECT_GT(expected.size(), 20u);
    EXPECT_EQ(issued_on(first, streams), expected) << "rank " << r;
    first += streams;
  }
}

TEST(CudaMachine, IssuesInTheOrderOfThePlanAndCountsCollectives) {
  expect_issued_as_planned(tp2());
}
TEST(CudaMachine, MessagesKeepTheirPlace) { expect_issued_as_planned(pp2()); }
TEST(CudaMachine, WorkOfTheHostKeepsItsPlace) { expect_issued_as_planned(offloaded()); }

// Both ranks send first and receive then, in one group: two kernels after each other would wait for
// the other rank's second one forever; as one they run together.
TEST(CudaMachine, GroupedMessagesRunTogether) {
  const Plan plan = parse_plan(R"(
buffer x 1x64 f32 class=activations persistent seed=3
buffer y 1x64 f32 class=activations persistent seed=4
program one frames=0
  stream pp communication
  slot other pp peer
body
  send pp P/L0/send send_to slot=other n=64 grouped : x :
  recv pp P/L0/recv recv_from slot=other n=64 grouped : : y
rank one gpu=0 other=1
rank one gpu=1 other=0
)");
  cuda_double::start({});
  CudaOptions options = quick(5);
  options.read_values = true;
  CudaExecutor executor(options);
  ASSERT_TRUE(std::holds_alternative<Execution>(executor.run(plan, nullptr)));
  EXPECT_EQ(issued_on(1, 1), (std::vector<std::string>{"1 messages 2", "1 messages 2"}));
  const Results& results = executor.values().results;
  EXPECT_EQ(results.buffer(0, "y"), results.buffer(1, "x"));
  EXPECT_EQ(results.buffer(1, "y"), results.buffer(0, "x"));
}

/// One stream frees what the other takes, with `between` in between. Bytes of GPU memory.
std::int64_t bytes_with(const std::string& between) {
  const Plan plan = parse_plan(R"(
buffer a 1x64 f32 class=activations
buffer b 1x64 f32 class=activations
program one frames=0
  stream compute compute
  stream side communication
body
  alloc a
  kernel compute F/L0/first zero n=64 : : a
  free a
  alloc b
)" + between + R"(
  kernel side F/L0/second zero n=64 : : b
  free b
rank one gpu=0
)");
  return memory_map(plan, plan.programs[0], homes_of(plan), 2).bytes[0];
}

// 64 numbers take 256 bytes. Without an event both stays may be in use at once, and making the
// second stream wait could close a circle of waits over ranks.
TEST(CudaMachine, FreedMemoryIsTakenAgainWhereThePlanOrdersItsUses) {
  EXPECT_EQ(bytes_with(""), 512);
  EXPECT_EQ(bytes_with("  record compute e0\n  wait side e0"), 256);
  EXPECT_EQ(bytes_with("  record compute e0\n  host_wait e0"), 256);
  EXPECT_EQ(bytes_with("  record side e0\n  wait compute e0"), 512);  // the wrong way round
}

// ---- what goes wrong ----

/// Every call that a run of `plan` makes fails once at its first and once at a later time: the run
/// ends with its name, and all streams, events and memory are given back. Returns how many.
int fail_every_call(const Plan& plan) {
  cuda_double::start({});
  EXPECT_EQ(error_of(plan), "");
  std::map<std::string, int> times{{"cudaEventQuery", 40}};  // not kept by the double
  for (const std::string& call : cuda_double::calls()) ++times[call];
  int tried = 0;
  for (const auto& [call, count] : times) {
    // Ends of lives: destructors do not throw.
    if (call.find("Destroy") != std::string::npos || call.find("Free") != std::string::npos) {
      continue;
    }
    for (const int at : std::set<int>{1, (count + 1) / 2}) {
      SCOPED_TRACE(call + " " + std::to_string(at) + " of " + std::to_string(count));
      cuda_double::start({.failing = call, .failing_at = at});
      // A launch reports its error by the name of the kernel.
      const std::string name = call == "cudaGetLastError" ? " failed: cudaErrorUnknown" : call;
      EXPECT_THAT(error_of(plan), HasSubstr(name));
      EXPECT_EQ(cuda_double::alive(), 0);
      EXPECT_THAT(cuda_double::wrongs(), IsEmpty());
      ++tried;
    }
  }
  return tried;
}

TEST(CudaMachine, EveryFailingCallOfCollectivesIsNamed) { EXPECT_GT(fail_every_call(tp2()), 30); }
TEST(CudaMachine, EveryFailingCallOfMessagesIsNamed) { EXPECT_GT(fail_every_call(pp2()), 30); }
TEST(CudaMachine, EveryFailingCallOfOffloadIsNamed) { EXPECT_GT(fail_every_call(offloaded()), 30); }

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

Deadlock deadlock_of(const Plan& plan, double time_out_s, bool hung) {
  CudaExecutor executor(quick(time_out_s));
  const ExecutionOutcome outcome = executor.run(plan, nullptr);
  EXPECT_EQ(executor.values().hung, hung);
  const auto* deadlock = std::get_if<Deadlock>(&outcome);
  EXPECT_NE(deadlock, nullptr);
  return deadlock != nullptr ? *deadlock : Deadlock{};
}

bool names(const Deadlock& deadlock, RankId rank, const std::string& waiting_for) {
  return std::any_of(deadlock.ranks.begin(), deadlock.ranks.end(), [&](const auto& b) {
    return b.rank == rank && b.waiting_for.find(waiting_for) != std::string::npos;
  });
}

TEST(CudaMachine, AMissingMemberIsReportedWithWhoWaitsForWhom) {
  cuda_double::start({});
  const Deadlock report = deadlock_of(without_a_member(tp2()), 3, false);
  EXPECT_TRUE(names(report, RankId(0), "rank 1 to join collective #"));
  EXPECT_EQ(cuda_double::alive(), 0);  // the abort ended what waited
}

// The first rank leaves out its last message.
TEST(CudaMachine, AMessageThatNobodySendsIsReported) {
  Plan plan = pp2();
  Program lone = plan.program_of(RankId(0));
  const auto last = std::find_if(lone.body.rbegin(), lone.body.rend(),
                                 [](const Instruction& i) { return i.kind == Kind::Send; });
  lone.body.erase(std::next(last).base());
  plan.ranks[0].program = ProgramId(static_cast<std::uint32_t>(plan.programs.size()));
  plan.programs.push_back(std::move(lone));
  cuda_double::start({});
  const Deadlock report = deadlock_of(plan, 3, false);
  EXPECT_TRUE(names(report, RankId(1), "rank 0 to send message #"));
  EXPECT_EQ(cuda_double::alive(), 0);
}

// The first stream of the second rank computes. A product does not end, and nothing can end it.
TEST(CudaMachine, AHungStreamIsNamedAndHoldsNobodyUp) {
  const Plan plan = tp2();
  const int streams = static_cast<int>(plan.program_of(RankId(0)).streams.size());
  cuda_double::start({.hung_stream = streams + 1, .hung_at = "product"});
  const Deadlock report = deadlock_of(plan, 3, true);
  EXPECT_TRUE(names(report, RankId(1), "its own end: it runs"));
}

TEST(CudaMachine, ALostMemberEndsTheRunAtOnce) {
  cuda_double::start({.member_lost = true});
  EXPECT_THAT(error_of(without_a_member(tp2()), quick(3600)),
              HasSubstr("tp0: remote process exited"));
  EXPECT_EQ(cuda_double::alive(), 0);
}

TEST(CudaMachine, WorkOfTheHostThatFailsEndsTheRunByItsName) {
  Plan plan = offloaded();
  for (Call& call : plan.calls) {
    if (call.op.kind == OpKind::CpuAdam) call.op.dims[0] += 1;
  }
  cuda_double::start({});
  EXPECT_THAT(error_of(plan), HasSubstr("operands of Adam do not fit its dims"));
  EXPECT_EQ(cuda_double::alive(), 0);
}

// ---- what is refused ----

TEST(CudaMachine, TwoRanksOnOneGpuAreRefused) {
  cuda_double::start({});
  CudaOptions options = quick();
  options.gpus = {1, 1};
  EXPECT_THAT(error_of(tp2(), options), HasSubstr("ranks 0 and 1 share GPU 1"));
  cuda_double::start({.devices = 1});
  EXPECT_THROW(
      {
        try {
          cuda_obstacle(tp2());
        } catch (const InputError& error) {
          EXPECT_THAT(error.what(), HasSubstr("rank 1 wants GPU 1, and this machine has 1"));
          EXPECT_THAT(error.fix, HasSubstr("layout.tp"));
          throw;
        }
      },
      InputError);
}

TEST(CudaMachine, AMachineWithoutGpusIsRefused) {
  cuda_double::start({.devices = 0});
  EXPECT_THROW(need_cuda(), InputError);
}

TEST(CudaMachine, ObstaclesNameTheOpOrTheMemory) {
  cuda_double::start({});
  EXPECT_FALSE(cuda_obstacle(tp2()));
  Plan dropping = tp2();
  for (Call& call : dropping.calls) {
    if (call.op.kind == OpKind::BiasDropoutAdd) call.op.dropout = 0.1f;
  }
  EXPECT_THAT(cuda_obstacle(dropping)->reason, HasSubstr("no kernel here drops out"));
  Job half = single_job(4, AttentionKernel::Flash2);
  half.precision.compute = half.precision.params = DType::F16;
  Layout l;
  l.tp = 2, l.micro_batch = 2;
  EXPECT_THAT(cuda_obstacle(plan_of(tiny_gpt(), l, half))->reason,
              HasSubstr("neither F32 nor BF16"));
  Layout nvme;
  nvme.schedule = Schedule::None, nvme.micro_batch = 2;
  nvme.offload = *find_offload_strategy("zero-infinity-nvme");
  EXPECT_THAT(
      cuda_obstacle(plan_of(tiny_gpt(), nvme, single_job(4, AttentionKernel::Flash2)))->reason,
      HasSubstr("nvme"));
  Layout kept;  // an encoding that reads what the last one dropped
  kept.dp = 2, kept.micro_batch = 2;
  kept.compression = {.reduced = {CodecKind::Pwq, 1.0, 8, 0}, .feedback = true};
  EXPECT_THAT(cuda_obstacle(plan_of(tiny_gpt(), kept, tiny_job(4)))->reason,
              HasSubstr("error feedback"));
  cuda_double::start({.free_bytes = 1000});
  const auto small = cuda_obstacle(tp2());
  ASSERT_TRUE(small && small->short_by);
  EXPECT_GT(small->short_by->value, 0);
}

// ---- figures ----

TEST(CudaMachine, TellsEveryTaskOnceInOrderOfItsStream) {
  for (const Plan& plan : {tp2(), pp2()}) {
    cuda_double::start({});
    StreamOrder sink;
    const auto outcome = CudaExecutor(quick()).run(plan, &sink);
    const auto& execution = std::get<Execution>(outcome);
    EXPECT_EQ(sink.count, 2 * plan.tasks_per_body());
    EXPECT_GT(execution.iteration, 0);
    for (const Breakdown& b : execution.breakdown) {
      Ps sum = 0;
      for (const Ps part : b) sum += part;
      EXPECT_EQ(sum, execution.iteration);
    }
  }
}

TEST(CudaMachine, IsCancelledByItsWatcherAndGivesAllBack) {
  cuda_double::start({});
  StreamOrder sink;
  sink.go_on = false;
  CudaOptions options = quick();
  options.bodies = 1000;
  EXPECT_TRUE(std::holds_alternative<Cancelled>(CudaExecutor(options).run(tp2(), &sink)));
  EXPECT_EQ(sink.count, 0);
  EXPECT_EQ(cuda_double::alive(), 0);
}

}  // namespace
}  // namespace gputwin::executors
