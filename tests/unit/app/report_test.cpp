#include "sim/app/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/unit/app/sample_result.h"

namespace gputwin {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ReportContext plain() {
  ReportContext context;
  context.job = "tiny Transformer, sequence 2,048, global batch 80, bf16";
  context.layout = "tp 2, pp 2, 1f1b, micro-batch 1";
  context.flops_convention = "2 per multiply-add, attention causal";
  context.gpus = 4;
  context.notes = {"jitter is off"};
  context.files = {{"trace", "out/trace.json.gz", "open in https://ui.perfetto.dev"}};
  context.ascii = true;
  context.timings = false;
  return context;
}

// Compute is 7 of 10 s: 28 of 40 cells. 16,384 tokens/s over 4 GPUs are 4,096. Device memory is 64
// of 80 GiB: 80 %, 9.6 of 12 cells.
TEST(Report, ReadsLikeThis) {
  EXPECT_EQ("\n" + report(sample_result(), plain()), R"(
tiny__a100_1x4__tp2_pp2
  tiny Transformer, sequence 2,048, global batch 80, bf16
  tp 2, pp 2, 1f1b, micro-batch 1

  iteration   10.00 s   80 % interval 9.500 s to 10.75 s
  makespan    10.25 s   first start to last end
  throughput  16,384 tokens/s   8 samples/s   4096 tokens/s per GPU
  MFU         45.0 %   140.4 TFLOP/s per GPU   model FLOPs / (time x GPUs x dense peak)
  HFU         50.0 %   156.0 TFLOP/s per GPU   the same, recomputed FLOPs counted too
  FLOPs       2 per multiply-add, attention causal

Where the time goes (rank 3, which ends last)
  compute              7.000 s   70.0 %  ############################
  tp communication     1.000 s   10.0 %  ####
  pipeline bubble      1.500 s   15.0 %  ######
  optimizer           500.0 ms    5.0 %  ##
  sum                  10.00 s  100.0 %

Memory per role at its peak (GiB)
  role       weights  grads   optim   activ   temp  alloc reserved  device  of capacity
  stage0       10.00  20.00   15.00    8.00   3.00  56.00    60.00   64.00   80 % of 80 ##########
  stage1       10.00  20.00   15.00    4.00   3.00  52.00    60.00   60.00   75 % of 80 #########
  device = reserved by the allocator + CUDA context + communicators; temp includes communication

Simulation
  1,234,567 tasks, 9,876 flows (12 shared a link and ran on SimGrid)
  4 ranks folded to 2 that differ

Warnings
  - stage0 is close to its limit

Priced outside the range its model was fitted on
  - vocabulary_gemm

Notes
  - jitter is off

Files
  trace   out/trace.json.gz   open in https://ui.perfetto.dev
)");
}

// What the pass overlap did is told only where it was asked for: compression alone has one chunk.
TEST(Report, TellsOfChunksOnlyWhereTheyWereAskedFor) {
  RunResult result = sample_result();
  result.passes.emplace();
  result.passes->forward_chunks = result.passes->backward_chunks = {1024, 512};
  result.passes->gain_bound = 1.25;
  const std::string alone = report(result, plain());
  EXPECT_THAT(alone, Not(HasSubstr("splitting")));
  EXPECT_THAT(alone, Not(HasSubstr("chunks")));
  result.passes->chunks_asked = true;
  EXPECT_THAT(report(result, plain()), HasSubstr("forward 2 of 1024 + 512 samples, backward"));
  result.passes->sequence_chunks = true;
  const std::string both = report(result, plain());
  EXPECT_THAT(both, HasSubstr("forward 2 of 1024 + 512 tokens, backward"));
  EXPECT_THAT(both, HasSubstr("splitting a forward layer wins at most 1.25 times"));
}

// The plain report has no escape sequence, even with block characters; colours appear only when
// asked for.
TEST(Report, IsPlainUnlessColoursAreAskedFor) {
  ReportContext context = plain();
  context.ascii = false;
  EXPECT_THAT(report(sample_result(), context), Not(HasSubstr("\x1b")));
  EXPECT_THAT(report(sample_result(), context), HasSubstr("████"));
  context.colour = true;
  EXPECT_THAT(report(sample_result(), context), HasSubstr("\x1b[1m10.00 s\x1b[0m"));
}

// 1,234,567 tasks in half a second are 2.5 M tasks/s.
TEST(Report, TellsTheSimulationsOwnTimeOnlyIfAsked) {
  ReportContext context = plain();
  context.timings = true;
  EXPECT_THAT(report(sample_result(), context), HasSubstr("took 500.0 ms (2.5 M tasks/s), 20 MB"));
  EXPECT_THAT(report(sample_result(), plain()), Not(HasSubstr("took")));
}

// 4 ms of 10 s are 0.04 %: summed up under "others" instead of a row of zeros.
TEST(Report, KeepsSmallPartsInTheSum) {
  RunResult result = sample_result();
  Breakdown& parts = result.execution.breakdown[3];
  parts[static_cast<std::size_t>(Part::Host)] = 4'000'000'000;
  parts[static_cast<std::size_t>(Part::Compute)] -= 4'000'000'000;
  EXPECT_THAT(report(result, plain()), HasSubstr("others              4.000 ms    0.0 %"));
  EXPECT_THAT(report(result, plain()), HasSubstr("sum                  10.00 s  100.0 %"));
}

// 40 roles: the 16 that need most, in their own order, and how many are left out.
TEST(Report, ShowsTheFullestOfManyRoles) {
  RunResult result = sample_result();
  const RoleMemory role = result.memory[0];
  result.memory.clear();
  for (int i = 0; i < 40; ++i) {
    result.memory.push_back(role);
    result.memory.back().role = "stage" + std::to_string(i);
    result.memory.back().figures.device += Bytes(i);
  }
  const std::string text = report(result, plain());
  EXPECT_THAT(text, HasSubstr("stage24"));
  EXPECT_THAT(text, HasSubstr("stage39"));
  EXPECT_THAT(text, Not(HasSubstr("stage23")));
  EXPECT_THAT(text, HasSubstr("and 24 roles that need less"));
}

TEST(Report, KeepsLinesWithin100Columns) {
  RunResult result = sample_result();
  std::string warning(120, 'a');
  warning[60] = ' ';
  result.warnings.push_back(warning);
  std::istringstream lines(report(result, plain()));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(Report, WritesNumbersForPeople) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(grouped(-1234), "-1,234");
  EXPECT_EQ(grouped(-123), "-123");
  EXPECT_EQ(human_time(31.523), "31.52 s");
  EXPECT_EQ(human_time(0.8153), "815.3 ms");
  EXPECT_EQ(human_time(4e-6), "4.000 us");
  EXPECT_EQ(human_time(12.5e-9), "12.50 ns");
  EXPECT_EQ(human_time(12345), "12345 s");
}

// Half of 4 cells are 2; 0.3 of one cell are 2.4 eighths, so 2; more than full is full.
TEST(Report, DrawsBarsInEighths) {
  EXPECT_EQ(bar(0.5, 4, false), "██");
  EXPECT_EQ(bar(0.3, 1, false), "▎");
  EXPECT_EQ(bar(1.7, 2, false), "██");
  EXPECT_EQ(bar(0.6, 10, true), "######");
  EXPECT_EQ(bar(-1, 10, true), "");
}

}  // namespace
}  // namespace gputwin
