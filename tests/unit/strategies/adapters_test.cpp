// Low-rank adapters: what is trained, what is launched, what the frozen rest costs.
#include <gtest/gtest.h>

#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

Plan with_rank(std::int32_t rank, std::int32_t tp = 1) {
  Layout layout;
  layout.tp = tp;
  Job job = tiny_job(1);
  job.lora_rank = rank;
  return plan_of(tiny_gpt(), layout, job);
}

// A [2, in] and B [out, 2] at qkv (8, 24), proj (8, 8), fc1 (8, 32) and fc2 (32, 8) of 4 layers:
// 2 x (32 + 16 + 40 + 40) x 4 = 1,024 numbers have a gradient. Everything keeps its weight.
TEST(Adapters, AloneAreTrained) {
  const Plan plan = with_rank(2);
  std::int64_t trained = 0, weights = 0;
  for (const Parameter& p : plan.programs[0].parameters) {
    weights += p.rows * p.cols;
    if (!p.gradient.buffer.valid()) continue;
    trained += p.rows * p.cols;
    EXPECT_NE(p.name.find("adapter"), std::string::npos) << p.name;
  }
  EXPECT_EQ(trained, 1024);
  EXPECT_EQ(weights, tiny_gpt().parameters() + 1024);
  std::int64_t states = 0;
  for (const Buffer& b : plan.buffers) {
    if (b.memory == MemoryClass::Gradients || b.memory == MemoryClass::Optimizer) {
      states += b.bytes.value;
    }
  }
  EXPECT_EQ(states, 1024 * (4 + 12));
}

std::int64_t products(const Plan& plan, Phase phase, std::int32_t layer) {
  return count_ops(plan, phase, layer, OpKind::Gemm);
}

// Forward 4 products and 2 thin ones each; backward 4 input gradients and 2 thin ones each; weight
// gradients of adapters alone. The first layer does not pass its gradient on: no input gradient of
// qkv and none of its adapter's first matrix.
TEST(Adapters, AddThinProducts) {
  const Plan plan = with_rank(2);
  EXPECT_EQ(products(plan, Phase::Forward, 1), 4 + 8);
  EXPECT_EQ(products(plan, Phase::Backward, 1), 4 + 8);
  EXPECT_EQ(products(plan, Phase::WeightGrad, 1), 8);
  EXPECT_EQ(products(plan, Phase::Backward, 0), 3 + 7);
  EXPECT_EQ(products(plan, Phase::WeightGrad, 0), 8);
  EXPECT_EQ(products(plan, Phase::WeightGrad, -2), 0);
  EXPECT_EQ(count_ops(plan, Phase::WeightGrad, -1, OpKind::EmbeddingBackward), 0);
  EXPECT_EQ(count_ops(plan, Phase::Backward, 0, OpKind::NormBackward), 1);
}

// Parts join the sums over tp of the layers themselves.
TEST(Adapters, AddNoCollectivesToALayer) {
  const auto all_reduces = [](const Plan& plan) {
    return count_ops(plan, Phase::Forward, 1, OpKind::AllReduce) +
           count_ops(plan, Phase::Backward, 1, OpKind::AllReduce);
  };
  EXPECT_EQ(all_reduces(with_rank(2, 2)), all_reduces(with_rank(0, 2)));
}

}  // namespace
}  // namespace gputwin
