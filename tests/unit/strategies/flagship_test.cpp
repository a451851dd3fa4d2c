// The main job, GPT-3 175B on 1,024 GPUs: how many tasks it has, and how fast its plan is made.
#include <gtest/gtest.h>

#include <cstdio>

#include "strategies/strategy.h"
#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

Transformer gpt3() {
  Transformer m;
  m.name = "gpt3_175b";
  m.layers = 96;
  m.hidden = 12288;
  m.heads = m.kv_heads = 96;
  m.head_dim = 128;
  m.ffn = 4 * 12288;
  m.vocab = 51200;
  m.max_positions = 2048;
  return m;
}

// tp 8, pp 16, dp 8: 192 micro-batches of one sequence per rank, 6 layers per stage.
Plan flagship(std::vector<StepTime>* times) {
  Layout layout;
  layout.tp = 8;
  layout.pp = 16;
  layout.dp = 8;
  layout.recompute = Recompute::Full;
  Job job;
  job.sequence = 2048;
  job.global_batch = 1536;
  job.precision = {DType::F16, DType::F16, DType::F32};
  job.attention = AttentionKernel::Unfused;
  job.stack = "megatron-lm-2021";
  auto outcome = make_plan(gpt3(), one_node(1024), layout, job, times);
  return std::move(std::get<Plan>(outcome));
}

// A layer has 14 operations forward (12 kernels, 2 all-reduces) and the same 14 again when
// recomputed. Backward has 25 + 2: 8 GEMMs of linear layers, 4 of attention, softmax, activation, 2
// norms, 2 residual adds, 4 bias gradients (22) and 2 all-reduces: 24. So 52 x 6 layers x 192
// micro-batches = 59,904 on every rank. A middle stage adds per micro-batch two receives, two
// all-gathers, two shards and two sends (8 x 192 = 1,536), and once: zeroing, reducing and squaring
// its one bucket, zeroing and reducing the norm, Adam (6): 61,446.
TEST(Flagship, HasSixtyThreeMillionTasks) {
  std::vector<StepTime> times;
  const Plan plan = flagship(&times);
  std::size_t instructions = 0;
  for (const Program& p : plan.programs) instructions += p.body.size();
  for (const StepTime& t : times)
    std::printf("%-14s %7.1f ms\n", t.name.c_str(), t.time.value * 1e3);
  std::printf("tasks %lld, instructions %zu in %zu programs\n",
              static_cast<long long>(plan.tasks_per_body()), instructions, plan.programs.size());
  const auto tasks = [](const Instruction& i) { return is_task(i.kind); };
  EXPECT_EQ(count(plan, 7, tasks), 61'449);
  EXPECT_EQ(plan.tasks_per_body(), 63'084'608);
}

}  // namespace
}  // namespace gputwin
