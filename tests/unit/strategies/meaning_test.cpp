// Plans mean what the model says: on real numbers, loss and every gradient equal those of one rank.
#include <gtest/gtest.h>

#include <cmath>

#include "sim/core/plan_builder.h"
#include "tests/support/interpreter.h"
#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

// The interpreter reads sharded gradients and weights at the end, so the shards must outlive their
// use.
Plan with_lasting_shards(Plan plan) {
  for (Buffer& b : plan.buffers) {
    if (b.name.find("_shard") != std::string::npos) b.persistent = true;
  }
  for (Program& p : plan.programs) place_memory(plan, p);
  return plan;
}

Results interpreted(const Transformer& model, const Layout& layout, const Job& job,
                    std::uint64_t seed) {
  InterpretOptions options;
  options.generic_constants = true;
  options.seed = seed;
  return interpret(with_lasting_shards(plan_of(model, layout, job)), options);
}

void expect_equal(const Results& expected, const Results& actual) {
  EXPECT_NEAR(actual.loss, expected.loss, 1e-9);
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (const auto& [name, tensor] : expected.gradients) {
    const auto found = actual.gradients.find(name);
    ASSERT_NE(found, actual.gradients.end()) << name;
    ASSERT_EQ(found->second.values.size(), tensor.values.size()) << name;
    double worst = 0.0;
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      worst = std::max(worst, std::abs(tensor.values[i] - found->second.values[i]));
    }
    // Gradients are up to about 0.1; sums run in other orders.
    EXPECT_LT(worst, 1e-9) << name;
  }
}

std::string label(const Layout& l, const Job& job) {
  return job.stack + " tp" + std::to_string(l.tp) + (l.sp ? " sp" : "") + " pp" +
         std::to_string(l.pp) + " vpp" + std::to_string(l.vpp) + " dp" + std::to_string(l.dp) +
         " zero" + std::to_string(l.zero) + " recompute" +
         std::to_string(static_cast<int>(l.recompute)) + " mb" + std::to_string(l.micro_batch);
}

// Every third of all layouts of these degrees, 8 sequences in all.
std::vector<Layout> some_layouts() {
  std::vector<Layout> list;
  int number = 0;
  for (int code = 0; code < 2 * 2 * 4 * 2 * 2 * 4 * 2; ++code) {
    int rest = code;
    const auto digit = [&rest](int n) { return std::exchange(rest, rest / n) % n; };
    Layout l;
    l.tp = 1 + digit(2);
    l.sp = digit(2) == 1;
    const int pipeline = digit(4);
    l.pp = std::array{1, 2, 4, 2}[static_cast<std::size_t>(pipeline)];
    l.vpp = pipeline == 3 ? 2 : 1;
    l.dp = 1 + digit(2);
    l.zero = digit(2);
    l.recompute = static_cast<Recompute>(digit(4));
    l.recompute_layers = {1};
    l.micro_batch = 1 + digit(2);
    l.schedule = l.vpp > 1            ? Schedule::Interleaved
                 : l.micro_batch == 1 ? Schedule::OneFOneB
                                      : Schedule::Gpipe;
    l.bucket_elements = 500;
    if (l.sp && l.tp == 1) continue;
    if (number++ % 3 == 0) list.push_back(l);
  }
  return list;
}

void expect_one_meaning(const Transformer& model, AttentionKernel attention) {
  Job job = tiny_job(8);
  job.attention = attention;
  Layout one;
  one.schedule = Schedule::None;
  one.micro_batch = 2;
  const Results expected = interpreted(model, one, job, 0);
  EXPECT_GT(expected.loss, 2.0);  // about ln 16
  const std::array<const char*, 4> stacks{"megatron-core", "megatron-lm-2019", "megatron-lm-2021",
                                          "generic"};
  std::uint64_t seed = 0;
  for (const Layout& layout : some_layouts()) {
    job.stack = stacks[++seed % stacks.size()];
    SCOPED_TRACE(label(layout, job));
    expect_equal(expected, interpreted(model, layout, job, seed));
  }
}

TEST(Meaning, OfAGptWithUnfusedAttention) {
  expect_one_meaning(tiny_gpt(), AttentionKernel::Unfused);
}
TEST(Meaning, OfAGptWithFlashAttention) { expect_one_meaning(tiny_gpt(), AttentionKernel::Flash2); }
TEST(Meaning, OfALlamaWithUnfusedAttention) {
  expect_one_meaning(tiny_llama(), AttentionKernel::Unfused);
}
TEST(Meaning, OfALlamaWithFlashAttention) {
  expect_one_meaning(tiny_llama(), AttentionKernel::Flash2);
}

// The gradient itself, not only its agreement: nudging a weight changes the loss as the gradient
// says.
// An encoder's positions see all others: cut over ranks it means the same, and not what the decoder
// of the same sizes means.
TEST(Meaning, OfAnEncoder) {
  Transformer model = tiny_gpt();
  model.causal = false;
  expect_one_meaning(model, AttentionKernel::Unfused);
  const Job job = tiny_job(4);
  const double both_ways = interpreted(model, Layout{}, job, 1).loss;
  EXPECT_GT(std::abs(both_ways - interpreted(tiny_gpt(), Layout{}, job, 1).loss), 1e-6);
}

TEST(Meaning, GradientsAreDerivativesOfTheLoss) {
  for (const Transformer& model : {tiny_gpt(), tiny_llama()}) {
    Layout layout;
    layout.tp = 2;
    layout.pp = 2;
    const Plan plan = plan_of(model, layout, tiny_job(2));
    InterpretOptions options;
    options.generic_constants = true;
    const Results at = interpret(plan, options);
    for (const auto& [name, gradient] : at.gradients) {
      constexpr double kStep = 1e-5;
      options.nudges = {{name, 1, 0, kStep}};
      const double up = interpret(plan, options).loss;
      options.nudges = {{name, 1, 0, -kStep}};
      const double down = interpret(plan, options).loss;
      EXPECT_NEAR((up - down) / (2 * kStep), gradient.at(1, 0), 1e-7) << model.name << " " << name;
    }
  }
}

}  // namespace
}  // namespace gputwin
