// Gradients of the real layers against differences of the loss, and two ranks against one.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "validation/convergence/coded_sum.h"
#include "validation/convergence/grammar_text.h"
#include "validation/convergence/report.h"

namespace gputwin::nn {
namespace {

const Exchange kAlone = [](Phase, std::int64_t, std::int64_t, std::int64_t, float*) {};

GptShape small() { return {11, 8, 2, 2, 6}; }

std::vector<std::int32_t> drawn(std::int64_t count, std::int32_t first) {
  std::vector<std::int32_t> all;
  for (std::int64_t i = 0; i < count; ++i) {
    all.push_back(static_cast<std::int32_t>((i * 7 + first + i * i * 3) % 11));
  }
  return all;
}

// Weights of 0.02 hide attention's part; ten times as much shows it. Central differences over 2^-7
// are right to about 1e-3 of the largest gradient in 32 bits.
TEST(Gpt, GradientsAreDifferencesOfTheLoss) {
  Gpt gpt(small(), 0, 1, 3);
  const auto tokens = drawn(12, 1), targets = drawn(12, 5);
  for (Parameter* p : gpt.parameters()) {
    for (float& v : p->value) v = v == 1.0F ? v : v * 10;
  }
  gpt.step(tokens, targets, kAlone, true);
  for (Parameter* p : gpt.parameters()) {
    float largest = 0;
    for (const float g : p->grad) largest = std::max(largest, std::fabs(g));
    EXPECT_GT(largest, 0.0F);
    const std::size_t stride = std::max<std::size_t>(1, p->value.size() / 9);
    for (std::size_t i = 0; i < p->value.size(); i += stride) {
      const float was = p->value[i], by = 0x1p-7F;
      p->value[i] = was + by;
      const double up = gpt.step(tokens, targets, kAlone, false);
      p->value[i] = was - by;
      const double down = gpt.step(tokens, targets, kAlone, false);
      p->value[i] = was;
      EXPECT_NEAR(p->grad[i], (up - down) / (2 * by), 5e-3 * largest + 2e-5);
    }
  }
}

// 12 h^2 + 4 h per layer, two embeddings and a head, one last norm: as the parts add up.
TEST(Gpt, CountsItsParameters) {
  Gpt gpt(small(), 0, 1, 3);
  std::int64_t count = 0;
  for (const Parameter* p : gpt.parameters()) count += static_cast<std::int64_t>(p->value.size());
  EXPECT_EQ(count, parameter_count(small()));
  const convergence::Experiment e;
  EXPECT_GE(parameter_count(e.shape), 1000000);
  EXPECT_LE(parameter_count(e.shape), 3000000);
}

// Two ranks that sum without a code take the same steps as one rank, up to rounding.
TEST(Gpt, TwoRanksTrainAsOneDoes) {
  const auto tokens = drawn(12, 1), targets = drawn(12, 5);
  const auto losses = [&](std::int32_t ranks) {
    std::vector<double> out;
    std::vector<float> slots[2];
    std::barrier barrier(ranks);
    std::vector<std::thread> threads;
    for (std::int32_t r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        const Exchange sum = [&, r](Phase, std::int64_t, std::int64_t rows, std::int64_t width,
                                    float* x) {
          slots[r].assign(x, x + rows * width);
          barrier.arrive_and_wait();
          std::fill(x, x + rows * width, 0.0F);
          for (std::int32_t o = 0; o < ranks; ++o) {
            for (std::int64_t i = 0; i < rows * width; ++i) x[i] += slots[o][i];
          }
          barrier.arrive_and_wait();
        };
        Gpt gpt(small(), r, ranks, 3);
        for (std::int64_t s = 1; s <= 10; ++s) {
          const double loss = gpt.step(tokens, targets, sum, true);
          gpt.adam(1e-2, s);
          if (r == 0) out.push_back(loss);
        }
      });
    }
    for (std::thread& t : threads) t.join();
    return out;
  };
  const std::vector<double> one = losses(1), two = losses(2);
  EXPECT_LT(one.back(), one.front() - 0.1);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i], one[i], 1e-3);
}

}  // namespace
}  // namespace gputwin::nn

namespace gputwin::convergence {
namespace {

TEST(GrammarText, IsTheSameForASeedAndStaysInItsAlphabet) {
  const std::string text = grammar_text(1 << 20, 5);
  EXPECT_GE(text.size(), std::size_t{1} << 20);
  EXPECT_EQ(text, grammar_text(1 << 20, 5));
  EXPECT_NE(text, grammar_text(1 << 20, 6));
  EXPECT_EQ(tokens_of(text).size(), text.size());
}

Experiment tiny() {
  Experiment e;
  e.shape = {static_cast<std::int64_t>(alphabet().size()), 32, 1, 2, 16};
  e.steps = 30;
  e.plain_steps = 5;
  e.held_out = 2;
  e.seeds = 1;
  e.text_bytes = 20000;
  return e;
}

const auto kAlways = [](const std::vector<Curve>&) { return true; };

// Every codec trains, alike for as long as nothing is compressed, and 8 bits change little.
TEST(Convergence, CodecsShareTheStepsBeforeTheyBegin) {
  const Experiment e = tiny();
  const std::vector<Curve> curves = run_experiment(e, kAlways);
  ASSERT_EQ(curves.size(), e.codecs.size());
  for (const Curve& c : curves) {
    ASSERT_EQ(c.losses.size(), 30u);
    for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(c.losses[i], curves[0].losses[i]);
    EXPECT_LT(final_loss(c), c.losses[0]);
  }
  EXPECT_NEAR(final_loss(curves[1]), final_loss(curves[0]), 0.02);
  EXPECT_LT(curves[1].error, 1e-3);
  EXPECT_GT(curves[6].error, curves[5].error);  // a tenth kept, or three
}

TEST(Convergence, IsTheSameTwiceAndStopsWhenAsked) {
  Experiment e = tiny();
  e.codecs.resize(3);
  const auto once = run_experiment(e, kAlways);
  EXPECT_EQ(convergence_json(e, once), convergence_json(e, run_experiment(e, kAlways)));
  const auto some =
      run_experiment(e, [](const std::vector<Curve>& done) { return done.size() < 2; });
  EXPECT_EQ(some.size(), 2u);
}

// Two seeds: held out 2 and 3, then 2.5 and 3.3: changes 0.5 and 0.3, mean 0.4, deviation 0.1 x
// sqrt(2).
TEST(Convergence, ComparesSeedBySeed) {
  const std::vector<Curve> curves{{"none", 1, {3, 2}, 2.0, 1, 0},
                                  {"int4", 1, {3, 2.5}, 2.5, 0.25, 0.5},
                                  {"none", 2, {4, 3}, 3.0, 1, 0},
                                  {"int4", 2, {4, 3.5}, 3.3, 0.25, 0.7}};
  const std::vector<Compared> c = compare(curves);
  ASSERT_EQ(c.size(), 2u);
  EXPECT_EQ(c[1].codec, "int4");
  EXPECT_NEAR(c[1].change, 0.4, 1e-12);
  EXPECT_NEAR(c[1].change_deviation, 0.1 * std::sqrt(2.0), 1e-12);
  EXPECT_NEAR(c[1].error, 0.6, 1e-12);
  EXPECT_NEAR(c[1].final_loss, 3.0, 1e-12);
  EXPECT_NE(convergence_svg(tiny(), curves).find("int4"), std::string::npos);
}

}  // namespace
}  // namespace gputwin::convergence
