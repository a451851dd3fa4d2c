// Layer graphs: every cut, replica count, schedule and recomputation means what one GPU computes.
#include "strategies/lowering/layer_graph.h"

#include <gmock/gmock.h>

#include <cmath>

#include "sim/core/verify.h"
#include "tests/support/interpreter.h"
#include "tests/unit/strategies/tiny_graph.h"

namespace gputwin {
namespace {

// Tokens: embedding, attention between linear layers, layer norm, GeLU.
LayerGraph tiny_encoder() {
  LayerGraph g;
  g.name = "encoder";
  g.input = {1, 3, 1};
  g.tokens = true;
  const auto sequence = [](std::int64_t width) { return Extent{width, 3, 1}; };
  GraphLayer table = layer(LayerKind::Embedding, {}, sequence(4), 0);
  table.vocab = 7;
  g.layers.push_back(table);
  g.layers.push_back(layer(LayerKind::LayerNorm, {0}, sequence(4), 0));
  g.layers.push_back(layer(LayerKind::Linear, {1}, sequence(12), 1));
  GraphLayer attention = layer(LayerKind::Attention, {2}, sequence(4), 1);
  attention.heads = 2;
  g.layers.push_back(attention);
  g.layers.push_back(layer(LayerKind::Add, {3, 1}, sequence(4), 1));
  g.layers.push_back(layer(LayerKind::Gelu, {4}, sequence(4), 2));
  g.layers.push_back(layer(LayerKind::Linear, {5}, sequence(7), 2));
  g.layers.push_back(layer(LayerKind::Loss, {6}, sequence(7), 2));
  return g;
}

Plan plan_of(const LayerGraph& graph, const Layout& layout, const Job& job) {
  Outcome<Plan> outcome = lower_graph(graph, gpus(64), layout, job);
  if (const auto* no = std::get_if<Infeasible>(&outcome)) throw std::runtime_error(no->reason);
  Plan plan = std::get<Plan>(std::move(outcome));
  verify_or_throw(plan, "lower");
  return plan;
}

std::string refusal_of(const Layout& layout) {
  const auto outcome = lower_graph(tiny_cnn(), gpus(8), layout, job_of(12));
  const auto* no = std::get_if<Infeasible>(&outcome);
  return no != nullptr ? no->reason : "";
}

void expect_equal(const Results& expected, const Results& actual) {
  EXPECT_NEAR(actual.loss, expected.loss, 1e-9 * std::abs(expected.loss));
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (const auto& [name, tensor] : expected.gradients) {
    ASSERT_TRUE(actual.gradients.contains(name)) << name;
    const Tensor& other = actual.gradients.at(name);
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      ASSERT_NEAR(other.values[i], tensor.values[i], 1e-9) << name << " " << i;
    }
  }
}

struct Case {
  std::vector<std::int32_t> units, replicas;  // replicas of one entry: dp
  std::int64_t micro_batch;
  Schedule schedule;
  Recompute recompute;
};

class Means : public testing::TestWithParam<Case> {};

TEST_P(Means, WhatOneGpuComputes) {
  const Case& c = GetParam();
  Layout l = alone(c.micro_batch);
  l.pp = static_cast<std::int32_t>(c.units.size());
  l.stage_layers = c.units;
  if (c.replicas.size() == 1) {
    l.dp = c.replicas[0];
  } else {
    l.stage_replicas = c.replicas;
  }
  l.schedule = c.schedule;
  l.recompute = c.recompute;
  l.bucket_elements = 60;
  const LayerGraph graph = tiny_cnn();
  const Results expected = interpret(plan_of(graph, alone(12), job_of(12)));
  for (const std::uint64_t seed : {1, 2}) {
    expect_equal(expected, interpret(plan_of(graph, l, job_of(12)), 1, seed));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Means,
    testing::Values(Case{{4}, {3}, 2, Schedule::None, Recompute::None},
                    Case{{4}, {1}, 3, Schedule::None, Recompute::Full},
                    Case{{1, 3}, {1}, 2, Schedule::OneFOneB, Recompute::None},
                    Case{{2, 2}, {2}, 1, Schedule::Gpipe, Recompute::Full},
                    Case{{2, 1, 1}, {1}, 2, Schedule::Gpipe, Recompute::AllButLast},
                    Case{{1, 1, 1, 1}, {1}, 1, Schedule::OneFOneB, Recompute::AllButLast},
                    Case{{2, 2}, {3, 1}, 6, Schedule::OneFOneB, Recompute::None},
                    Case{{2, 2}, {2, 3}, 6, Schedule::OneFOneB, Recompute::Full},
                    Case{{1, 2, 1}, {1, 3, 2}, 6, Schedule::Gpipe, Recompute::None},
                    Case{{1, 1, 2}, {2, 1, 4}, 4, Schedule::OneFOneB, Recompute::None}));

// Codes of sums that keep every value mean the same, in buckets of 60 parameters padded to rows,
// under the backward pass or after it, on every stage that has replicas.
TEST(LayerGraph, CodedGradientsMeanTheSame) {
  const LayerGraph graph = tiny_cnn();
  const Results expected = interpret(plan_of(graph, alone(12), job_of(12)));
  const Codec every{.kind = CodecKind::Block, .bits = 8};
  for (const CompressedSum sum : {CompressedSum::Gather, CompressedSum::TwoStep}) {
    for (const bool overlaps : {true, false}) {
      for (const bool pipeline : {true, false}) {
        Layout l = alone(pipeline ? 6 : 2);
        l.dp = pipeline ? 1 : 3;
        if (pipeline) {
          l.pp = 2;
          l.stage_layers = {2, 2};
          l.stage_replicas = {3, 1};
          l.schedule = Schedule::OneFOneB;
        }
        l.bucket_elements = 60;
        l.overlap_grad_reduce = overlaps;
        l.compression = {.sum = sum, .reduced = every, .feedback = overlaps};
        const Plan plan = plan_of(graph, l, job_of(12));
        const auto is = [&](OpKind kind) {
          return [&plan, kind](const Instruction& i) {
            const bool task = i.kind == Kind::Kernel || i.kind == Kind::Collective;
            return task && plan.call(i).op.kind == kind;
          };
        };
        const auto& body = plan.programs[0].body;
        EXPECT_EQ(std::count_if(body.begin(), body.end(), is(OpKind::AllReduce)), 0);
        EXPECT_GT(std::count_if(body.begin(), body.end(), is(OpKind::Encode)), 1);
        expect_equal(expected, interpret(plan, 1, 5));
      }
    }
  }
}

// Matrices of rank 4 and less, as all of the tiny network's, go through factors of rank 4 unharmed
// but for the 16 bits of a factor, which the interpreter does not round.
TEST(LayerGraph, LowRankSumsKeepWhatHasThatRank) {
  const LayerGraph graph = tiny_cnn();
  Layout l = alone(4);
  l.dp = 3;
  l.compression = {.reduced = {.kind = CodecKind::LowRank, .rank = 4}};
  const Results expected = interpret(plan_of(graph, alone(12), job_of(12)));
  expect_equal(expected, interpret(plan_of(graph, l, job_of(12)), 1, 7));
}

TEST(LayerGraph, SaysWhichCodecsItDoesNotTake) {
  Layout l = alone(4);
  l.compression.reduced = {.kind = CodecKind::Block, .bits = 8};
  EXPECT_THAT(refusal_of(l), testing::HasSubstr("gradients that no other rank has a part of"));
  l.dp = 3;
  EXPECT_EQ(refusal_of(l), "");
  l.compression.sent = l.compression.reduced;
  EXPECT_THAT(refusal_of(l), testing::HasSubstr("codes gradients alone"));
}

// Central differences of the loss: gradients are those of the network, not only the same
// everywhere.
TEST(LayerGraph, GradientsAreDerivatives) {
  for (const LayerGraph& graph : {tiny_cnn(), tiny_encoder()}) {
    Layout l = alone(2);
    l.pp = 2;
    l.schedule = Schedule::OneFOneB;
    const Plan plan = plan_of(graph, l, job_of(4));
    const Results at = interpret(plan);
    for (const auto& [name, gradient] : at.gradients) {
      const std::int64_t column = gradient.cols / 2;
      const auto loss_at = [&](double delta) {
        InterpretOptions o;
        o.nudges = {{name, 0, column, delta}};
        return interpret(plan, o).loss;
      };
      constexpr double kStep = 1e-5;
      const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
      EXPECT_NEAR(gradient.at(0, column), slope, 1e-6) << graph.name << " " << name;
    }
  }
}

// Two tensors cross the border of units 1 and 2: the sum and the activation that unit 3 reads.
TEST(LayerGraph, HandsOnWhatLaterStagesRead) {
  Layout l = alone(12);
  l.pp = 2;
  l.schedule = Schedule::OneFOneB;
  const Plan plan = plan_of(tiny_cnn(), l, job_of(12));
  std::int64_t sent = 0;
  for (const Instruction& i : plan.programs[0].body) {
    if (i.kind == Kind::Send) sent += plan.call(i).op.dims[0];
  }
  EXPECT_EQ(sent, 2 * 12 * 4 * 4 * 4);
}

TEST(LayerGraph, RefusesWhatCannotBe) {
  Layout l = alone(12);
  l.tp = 2;
  EXPECT_THAT(refusal_of(l), testing::HasSubstr("stages and replicas only"));
  l = alone(12);
  l.pp = 5;
  l.schedule = Schedule::OneFOneB;
  EXPECT_THAT(refusal_of(l), testing::HasSubstr("4 units"));
  l.pp = 2;
  l.stage_replicas = {5, 1};
  EXPECT_THAT(refusal_of(l), testing::HasSubstr("5 replicas do not divide"));
  l.stage_replicas = {6, 4};
  EXPECT_THAT(refusal_of(l), testing::HasSubstr("10 GPUs"));
}

}  // namespace
}  // namespace gputwin
