// Iteration times from lines as the programs write them.
#include "sim/app/training_log.h"

#include <gmock/gmock.h>

namespace gputwin {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// 256 samples of 4,096 tokens on 64 GPUs: 16,384 tokens a GPU.
constexpr IterationSize kSize{.samples = 256, .tokens_per_gpu = 16384};

TEST(TrainingLog, OfMegatron) {
  EXPECT_THAT(
      iterations_of_log("[2024-03-07 15:27:02] iteration 10/ 100 | consumed samples: 2560 | "
                        "elapsed time per iteration (ms): 1453.2 | lm loss: 5.9E+00 |\n"
                        "saving checkpoint\n"
                        " iteration 11/ 100 | elapsed time per iteration (ms): 1500.0 | lm loss\n",
                        kSize),
      ElementsAre(1.4532, 1.5));
}

TEST(TrainingLog, OfDeepSpeedsPipeline) {
  EXPECT_THAT(
      iterations_of_log("steps: 10 loss: 4.1200 iter time (s): 1.453 samples/sec: 176.2\n", kSize),
      ElementsAre(1.453));
}

// 256 samples at 128 in a second.
TEST(TrainingLog, OfDeepSpeedsTimer) {
  EXPECT_THAT(
      iterations_of_log("[2024-03-07 15:27:02,646] [INFO] [timer.py:260:stop] "
                        "epoch=0/micro_step=199/global_step=199, RunningAvgSamplesPerSec=58.73, "
                        "CurrSamplesPerSec=128.0, MemAllocated=6.01GB, MaxMemAllocated=19.52GB\n",
                        kSize),
      ElementsAre(2.0));
}

// 16,384 tokens of a GPU at 8,192 in a second, in colours; validation tells no iteration.
TEST(TrainingLog, OfTorchtitan) {
  EXPECT_THAT(
      iterations_of_log(
          "[rank0]:\x1b[31mstep: 10  \x1b[32mloss:  4.1200  \x1b[33mmemory: 42.10GiB(44.20%)"
          "  \x1b[34mtps: 8,192  \x1b[36mtflops: 330.10  \x1b[35mmfu: 33.38%\x1b[39m\n"
          "validate step: 10  loss:  4.0  memory: 42.10GiB(44.20%)  tps: 4,096\n",
          kSize),
      ElementsAre(2.0));
}

// Megatron-DeepSpeed writes both: the iteration counts once.
TEST(TrainingLog, TakesOneTellerOfSeveral) {
  EXPECT_THAT(
      iterations_of_log("RunningAvgSamplesPerSec=1, CurrSamplesPerSec=128.0, MemAllocated=6\n"
                        " iteration 199 | elapsed time per iteration (ms): 2000.0 |\n",
                        kSize),
      ElementsAre(2.0));
}

// A log is read while it is written, and holds anything: what is cut off, empty, no number, zero or
// negative tells nothing.
TEST(TrainingLog, PassesOverWhatTellsNothing) {
  for (const char* text :
       {"", "\n", "step: 10 loss: 4.1 tps: 8,1", "elapsed time per iteration (ms): 1453.2 |",
        "elapsed time per iteration (ms): |\n", "elapsed time per iteration (ms): nan |\n",
        "steps: 1 iter time (s): -1\n", "steps: 1 iter time (s): 0\n", "loss: 1 tps:\n",
        "loss: 1 tps: 1.2.3\n", "step: 1 loss: 1 tps: N/A\n", "\x1b[31\n", "\x1b"}) {
    EXPECT_THAT(iterations_of_log(text, kSize), IsEmpty()) << text;
  }
}

}  // namespace
}  // namespace gputwin
