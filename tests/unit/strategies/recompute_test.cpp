// What recomputation repeats.
#include <gtest/gtest.h>

#include "tests/unit/strategies/passes/split_meaning.h"
#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

std::int64_t repeated(const Plan& plan, std::int32_t layer) {
  return count(plan, 0, [&](const Instruction& i) {
    return is_task(i.kind) && i.frame() == 0 && plan.names[i.name].phase == Phase::Recompute &&
           plan.names[i.name].layer == layer;
  });
}

Plan with(Recompute recompute, AttentionKernel attention = AttentionKernel::Unfused) {
  Layout layout;
  layout.recompute = recompute;
  layout.recompute_layers = {2};
  Job job = tiny_job(2);
  job.attention = attention;
  return plan_of(tiny_gpt(), layout, job);
}

// A layer has 12 kernels forward.
TEST(RecomputePass, RepeatsWholeLayers) {
  EXPECT_EQ(repeated(with(Recompute::None), 1), 0);
  EXPECT_EQ(repeated(with(Recompute::Full), 1), 12);
  EXPECT_EQ(repeated(with(Recompute::Full), -2), 0);  // not the head
}

TEST(RecomputePass, BlockTakesTheFirstLayersOfAChunk) {
  const Plan plan = with(Recompute::Block);
  EXPECT_EQ(repeated(plan, 1), 12);
  EXPECT_EQ(repeated(plan, 2), 0);
}

// One entry per stage: two stages of two layers, the first recomputes both, the second none.
TEST(RecomputePass, BlockCountsByStage) {
  Layout layout;
  layout.pp = 2;
  layout.recompute = Recompute::Block;
  layout.recompute_layers = {2, 0};
  const Plan plan = plan_of(tiny_gpt(), layout, tiny_job(2));
  const auto kernels = [&](std::int32_t layer) {
    std::int64_t n = 0;
    for (std::uint32_t program = 0; program < 2; ++program) {
      n += count(plan, program, [&](const Instruction& i) {
        return is_task(i.kind) && i.frame() == 0 && plan.names[i.name].layer == layer &&
               plan.names[i.name].phase == Phase::Recompute;
      });
    }
    return n;
  };
  EXPECT_EQ(kernels(0), 12);
  EXPECT_EQ(kernels(1), 12);
  EXPECT_EQ(kernels(2), 0);
  EXPECT_EQ(kernels(3), 0);
}

// Scores, softmax, context; or the one flash kernel.
TEST(RecomputePass, SelectiveRepeatsTheAttentionCore) {
  EXPECT_EQ(repeated(with(Recompute::Selective), 1), 3);
  EXPECT_EQ(repeated(with(Recompute::Selective, AttentionKernel::Flash2), 1), 1);
}

// The core is repeated after the output projection's gradients, right before its own backward.
TEST(RecomputePass, SelectiveRepeatsLate) {
  const Plan plan = with(Recompute::Selective);
  std::vector<std::string> ops;
  for (const Instruction& i : plan.programs[0].body) {
    if (!is_task(i.kind) || i.frame() != 0) continue;
    const Name& name = plan.names[i.name];
    if (name.layer == 1 && name.phase != Phase::Forward) ops.push_back(name.op);
  }
  const auto scores = std::find(ops.begin(), ops.end(), "attention_scores");
  ASSERT_NE(scores, ops.end());
  EXPECT_EQ(*(scores - 1), "proj");
  EXPECT_EQ(*(scores + 3), "attention_grad_probabilities");
}

// fc2 and what follows it are read by no backward kernel: a reentrant checkpoint (Megatron) repeats
// them, torch's stops before.
TEST(RecomputePass, StopsEarlyWhereTheStackDoes) {
  const auto repeated = [](const char* stack, const char* name) {
    Layout layout;
    layout.recompute = Recompute::Full;
    Job job = tiny_job(1);
    job.stack = stack;
    const Plan plan = plan_of(tiny_gpt(), layout, job);
    return count(plan, 0, [&](const Instruction& i) {
      if (!is_task(i.kind)) return false;
      const Name& n = plan.names[i.name];
      return n.phase == Phase::Recompute && n.op == name;
    });
  };
  EXPECT_EQ(repeated("megatron-lm-2022", "fc2"), 4);
  EXPECT_EQ(repeated("megatron-lm-2022", "fc2_residual"), 4);
  EXPECT_EQ(repeated("torch-fsdp-2024", "fc2"), 0);
  EXPECT_EQ(repeated("torch-fsdp-2024", "fc2_residual"), 0);
  EXPECT_EQ(repeated("torch-fsdp-2024", "fc1"), 4);
}

// Products, attention and sums stay, but for half of a gated fc1; and all means what it meant.
TEST(RecomputePass, ByOperatorRepeatsHalfOfAGatedFirstProduct) {
  const Job job = tiny_job(2);
  const Results expected = meaning(tiny_llama(), Layout{}, job, 0);
  for (const TpOverlap overlap : {TpOverlap::None, TpOverlap::AsyncTp}) {
    Layout layout;
    layout.tp = 2;
    layout.sp = true;
    layout.tp_overlap = overlap;
    layout.recompute_modules = kRecomputeOps;
    EXPECT_LT(worst_difference(expected, meaning(tiny_llama(), layout, job, 1)), 1e-9);
    const Plan plan = plan_of(tiny_llama(), layout, job);
    std::int64_t forward = 0, again = 0, others = 0;  // columns of fc1; products repeated
    for (const Instruction& i : plan.programs[0].body) {
      if (i.kind != Kind::Kernel || i.frame() != 0) continue;
      const Name& name = plan.names[i.name];
      const Op& op = plan.call(i).op;
      if (op.kind != OpKind::Gemm || name.layer != 1) continue;
      if (name.op == "fc1" && name.phase == Phase::Forward) forward += op.dims[0] * op.dims[1];
      if (name.phase == Phase::Recompute) {
        (name.op == "fc1" ? again : others) += op.dims[0] * op.dims[1];
      }
    }
    EXPECT_GT(forward, 0);
    EXPECT_EQ(2 * again, forward);
    EXPECT_EQ(others, 0);
  }
}

}  // namespace
}  // namespace gputwin
