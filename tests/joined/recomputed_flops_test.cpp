// Hardware FLOPs count the products that a plan repeats.
#include <gtest/gtest.h>

#include "hwmodels/flops.h"
#include "strategies/strategy.h"
#include "tests/joined/pipeline_world.h"

namespace gputwin::test {
namespace {

// Of all products that a plan repeats, over its ranks.
double repeated_flops(const Plan& plan) {
  double sum = 0;
  for (const Rank& rank : plan.ranks) {
    for (const Instruction& i : plan.programs[rank.program.value].body) {
      if (i.kind != Kind::Kernel || plan.names[i.name].phase != Phase::Recompute) continue;
      const Op& op = plan.call(i).op;
      if (op.kind != OpKind::Gemm && op.kind != OpKind::GroupedGemm) continue;
      const std::int64_t grouped = op.kind == OpKind::GroupedGemm ? op.dims[3] : 1;  // {g,m,n,k}
      sum += 2.0 * static_cast<double>(op.dims[0] * op.dims[1] * op.dims[2] * grouped);
    }
  }
  return sum;
}

// A dense and an expert layer, gated, with latent attention: 8 experts of width 64, two to a token,
// and a shared one of 32. Two micro-batches on each of two ranks that share the experts.
TEST(RecomputedFlops, AreThoseOfThePlanForEveryModule) {
  Transformer m = small_gpt(2);
  m.activation = Activation::Swiglu;
  m.dropout = 0;
  m.moe = {.experts = 8, .top_k = 2, .ffn = 64, .shared_ffn = 32, .dense_layers = 1};
  m.mla = {.q_rank = 24, .kv_rank = 16, .nope = 8, .rope = 8, .value = 8};
  m.head_dim = 16;
  m.positions = Positions::Rope;
  Job job = small_job(4);
  job.attention = AttentionKernel::Flash2;
  for (const int modules :
       {0 + kRecomputeMlaUp, 0 + kRecomputeMoeActivation, 0 + kRecomputeNorms, 0 + kRecomputeMlp,
        0 + kRecomputeMoe, 0 + kRecomputeOps, kRecomputeMlaUp + kRecomputeMlp + kRecomputeMoe}) {
    Layout l;
    l.dp = l.ep = 2;
    l.schedule = Schedule::None;
    l.recompute_modules = static_cast<std::uint8_t>(modules);
    auto outcome = make_plan(m, small_cluster({.gpus = 2}), l, job);
    const auto* plan = std::get_if<Plan>(&outcome);
    ASSERT_NE(plan, nullptr) << std::get<Infeasible>(outcome).reason;
    const IterationFlops f = iteration_flops(m, job, l, FlopsConvention::Causal);
    EXPECT_DOUBLE_EQ(f.hardware.value - f.model.value, repeated_flops(*plan))
        << "modules " << modules;
  }
}

}  // namespace
}  // namespace gputwin::test
