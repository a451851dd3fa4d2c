#include "sim/app/run_log.h"

#include <gtest/gtest.h>

#include "sim/app/twin.h"

namespace gputwin {
namespace {

using Lines = std::vector<LoggedIterations>;

// Every 5 iterations a line, with and without what newer releases add; the second is cut off.
TEST(IterationsOfLog, ReadsMegatron) {
  EXPECT_EQ(
      iterations_of_log(
          " [2026-08-22 15:22:22.123456] iteration        5/  500000 | consumed samples: 5760 | "
          "elapsed time per iteration (ms): 2500.0 | throughput per GPU (TFLOP/s/GPU): 395.1 |\n"
          "noise\n"
          " iteration       10/  500000 | elapsed time per iteration (ms): 1500.0 | lm loss: 2.5 "
          "|\n"
          " iteration       15/  500000 | elapsed time per iteration (ms): 14",
          0),
      (Lines{{1, 2.5}, {5, 1.5}}));
}

// 4,194,304 tokens of 256 ranks are 16,384 of each: at 8,192 per second and device 2 s an
// iteration. Step 1 has a line of its own, colours stand between, a second rank tells step 10
// again, and a validation is no iteration.
TEST(IterationsOfLog, ReadsTorchtitan) {
  const std::string text =
      "[rank0]:[titan] 2026-10-01 08:00:00,000 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: "
      "12.2721  \x1b[38;2;180;60;0mgrad_norm:  4.1  \x1b[36mmemory: 47.74GiB(60.21%)  "
      "\x1b[34mtps: 1,024  \x1b[36mtflops: 59.1  \x1b[35mmfu: 5.97%\x1b[39m\n"
      "[titan] step: 10  loss:  9.9  memory: 47.74GiB(60.21%)  tps: 8,192  tflops: 473  mfu: 47%\n"
      "[titan] step: 10  loss:  9.9  memory: 47.74GiB(60.21%)  tps: 8,191  tflops: 473  mfu: 47%\n"
      "[titan] validate step: 10  loss:  9.9  memory: 47.74GiB(60.21%)  tps: 16,384\n"
      "[titan] step: 20  loss:  9.8  memory: 47.74GiB(60.21%)  tps: 4,096  tflops: 236  mfu: N/A\n"
      "[titan] step: 30  loss:  9.7  memory: 47.74GiB(60.21%)  tps: 8,1";
  EXPECT_EQ(iterations_of_log(text, 4194304.0 / 256), (Lines{{1, 16.0}, {9, 2.0}, {10, 4.0}}));
  EXPECT_TRUE(iterations_of_log(text, 0).empty());
}

TEST(IterationsOfLog, ReadsDeepSpeed) {
  EXPECT_EQ(iterations_of_log(
                "[INFO] steps: 10 loss: 5.5508 iter time (s): 0.936 samples/sec: 136.706\n"
                "steps: 20 loss: 5.5 lm loss: 5.4 moe loss: 0.0405 iter time (s): 0.5 samples/sec: "
                "256.0\nsteps: 30 loss: 5.4 iter time (s): 0.",
                0),
            (Lines{{1, 0.936}, {10, 0.5}}));
}

// A line that stands for ten iterations fills a window; lines of one need ten of them. The first
// line is warm-up, and two iterations at the end are no window.
TEST(WindowsOfLog, HoldTenIterations) {
  EXPECT_EQ(windows_of({{1, 9}, {10, 2}, {10, 3}, {2, 4}}), (std::vector<double>{2, 3}));
  Lines single{{1, 9}};
  for (int i = 0; i < 13; ++i) single.push_back({1, i < 10 ? 2.0 : 3.0});
  EXPECT_EQ(windows_of(single), (std::vector<double>{2, 3}));
  EXPECT_EQ(windows_of({{1, 9}}), std::vector<double>{9});
}

}  // namespace
}  // namespace gputwin
