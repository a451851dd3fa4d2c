// The interpreter itself: kernels against finite differences and hand arithmetic, and the faults it
// must see.
#include "tests/support/interpreter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "sim/core/plan_text.h"
#include "tests/support/interpreter_state.h"

namespace gputwin {
namespace {

using interpreted::Work;
using Array = std::vector<double>;
using testing::ElementsAre;
using testing::HasSubstr;

// ---- kernels ----

Array random_array(std::uint64_t seed, std::int64_t n) {
  Array values;
  for (std::int64_t k = 0; k < n; ++k) values.push_back(seeded_value(seed, k));
  return values;
}

/// Runs one kernel on `reads`; outputs have the given sizes and start at 0.
std::vector<Array> run(const Op& op, const std::vector<Array>& reads,
                       const std::vector<std::int64_t>& sizes, std::int64_t member = 0,
                       std::int64_t members = 1) {
  const InterpretOptions options;
  Work work{op, reads, {}, member, members, 1, options};
  for (const std::int64_t size : sizes) work.writes.emplace_back(static_cast<std::size_t>(size));
  interpreted::compute(work);
  return work.writes;
}

double dot(const Array& a, const Array& b) {
  double total = 0.0;
  for (std::size_t k = 0; k < a.size(); ++k) total += a[k] * b[k];
  return total;
}

/// d/dx of f at x by central differences; with a step of 1e-5 good to about 1e-9 for values near 1.
Array differences(const std::function<double(const Array&)>& f, Array x) {
  constexpr double kStep = 1e-5;
  Array slope;
  for (double& value : x) {
    const double middle = value;
    value = middle + kStep;
    const double above = f(x);
    value = middle - kStep;
    slope.push_back((above - f(x)) / (2 * kStep));
    value = middle;
  }
  return slope;
}

void expect_near(const Array& found, const Array& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t k = 0; k < found.size(); ++k)
    EXPECT_NEAR(found[k], expected[k], 1e-7) << what << " " << k;
}

/// `gradients[i]` must be the slope of sum(weight x output 0 of op(reads)) towards reads[i].
void expect_gradients(const Op& op, const std::vector<Array>& reads,
                      const std::vector<std::int64_t>& sizes, const Array& weight,
                      const std::vector<Array>& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const auto f = [&](const Array& x) {
      std::vector<Array> moved = reads;
      moved[i] = x;
      return dot(weight, run(op, moved, sizes)[0]);
    };
    expect_near(gradients[i], differences(f, reads[i]), "read " + std::to_string(i));
  }
}

TEST(InterpreterKernels, GemmTransposesAccumulatesAndAddsABias) {
  // A = [1 2; 3 4], B = [5 6; 7 8]: A B = [19 22; 43 50], A^T B = [26 30; 38 44], A B^T = [17 23;
  // 39 53].
  const Array a{1, 2, 3, 4}, b{5, 6, 7, 8};
  Op op{.kind = OpKind::Gemm, .dims = {2, 2, 2}};
  EXPECT_THAT(run(op, {a, b}, {4})[0], ElementsAre(19, 22, 43, 50));
  EXPECT_THAT(run(op, {a, b, {10, 20}}, {4})[0], ElementsAre(29, 42, 53, 70));
  op.trans_a = true;
  EXPECT_THAT(run(op, {a, b}, {4})[0], ElementsAre(26, 30, 38, 44));
  op.trans_a = false;
  op.trans_b = true;
  EXPECT_THAT(run(op, {a, b}, {4})[0], ElementsAre(17, 23, 39, 53));
  op.accumulate = true;
  const InterpretOptions options;
  Work work{op, {a, b}, {{1, 1, 1, 1}}, 0, 1, 1, options};
  interpreted::compute(work);
  EXPECT_THAT(work.writes[0], ElementsAre(18, 24, 40, 54));
  EXPECT_THROW(run(op, {a, {1, 2, 3}}, {4}), Fault);
}

TEST(InterpreterKernels, NormBackwardIsTheSlopeOfNormForward) {
  const Array x = random_array(1, 12), gamma = random_array(2, 4), beta = random_array(3, 4);
  const Array dy = random_array(4, 12), add = random_array(5, 12);
  for (const Norm norm : {Norm::LayerNorm, Norm::RmsNorm}) {
    const Op forward{.kind = OpKind::NormForward, .norm = norm, .dims = {3, 4}};
    const Op backward{.kind = OpKind::NormBackward, .norm = norm, .dims = {3, 4}};
    const Array stats = run(forward, {x, gamma, beta}, {12, 6})[1];
    const auto grads = run(backward, {dy, x, gamma, stats}, {12, 4, 4});
    expect_gradients(forward, {x, gamma, beta}, {12, 6}, dy, grads);
    const auto with_add = run(backward, {dy, x, gamma, stats, add}, {12, 4, 4});
    for (std::size_t k = 0; k < 12; ++k) EXPECT_DOUBLE_EQ(with_add[0][k], grads[0][k] + add[k]);
  }
}

TEST(InterpreterKernels, ActivationBackwardIsTheSlopeOfActivationForward) {
  for (const Activation activation : {Activation::Gelu, Activation::Relu, Activation::SqRelu,
                                      Activation::Swiglu, Activation::Geglu}) {
    const std::int64_t width = is_gated(activation) ? 6 : 3;
    const Array x = random_array(1, 2 * width), bias = random_array(2, width),
                dy = random_array(3, 6);
    const Op forward{.kind = OpKind::ActivationForward, .activation = activation, .dims = {2, 3}};
    const Op backward{.kind = OpKind::ActivationBackward, .activation = activation, .dims = {2, 3}};
    const auto grads = run(backward, {dy, x, bias}, {2 * width, width});
    expect_gradients(forward, {x, bias}, {6}, dy, grads);
  }
}

// Two sequences of three tokens; four query heads share two key heads of size 2.
TEST(InterpreterKernels, FlashEqualsUnfusedAndItsGradientsAreSlopes) {
  const std::array<std::int64_t, 6> dims{2, 4, 2, 3, 3, 2};
  const std::array<std::int64_t, 6> rows{2, 4, 3, 3};
  const std::int64_t q_size = 48, k_size = 24, s_size = 72;
  const Array q = random_array(1, q_size), k = random_array(2, k_size), v = random_array(3, k_size);
  const Array grad = random_array(4, q_size);
  const auto op = [&](OpKind kind, bool causal = false) {
    return Op{.kind = kind, .causal = causal, .dims = dims};
  };
  const Op softmax{.kind = OpKind::SoftmaxForward, .causal = true, .dims = rows};
  const Array scores = run(op(OpKind::AttentionScores), {q, k}, {s_size})[0];
  const Array probs = run(softmax, {scores}, {s_size})[0];
  EXPECT_THAT(Array(probs.begin(), probs.begin() + 3), ElementsAre(1, 0, 0))
      << "a query sees itself first";
  const Array context = run(op(OpKind::AttentionContext), {probs, v}, {q_size})[0];
  const auto flash = run(op(OpKind::FlashForward, true), {q, k, v}, {q_size, 24});
  expect_near(flash[0], context, "output");

  const auto grads = run(op(OpKind::FlashBackward, true), {q, k, v, flash[0], flash[1], grad},
                         {q_size, k_size, k_size});
  expect_gradients(op(OpKind::FlashForward, true), {q, k, v}, {q_size, 24}, grad, grads);
  const Op softmax_backward{.kind = OpKind::SoftmaxBackward, .dims = rows};
  const Array d_probs = run(op(OpKind::AttentionGradProbs), {grad, v}, {s_size})[0];
  const Array d_scores = run(softmax_backward, {probs, d_probs}, {s_size})[0];
  expect_near(run(op(OpKind::AttentionGradQuery), {d_scores, k}, {q_size})[0], grads[0], "dQ");
  expect_near(run(op(OpKind::AttentionGradKey), {d_scores, q}, {k_size})[0], grads[1], "dK");
  expect_near(run(op(OpKind::AttentionGradValue), {probs, grad}, {k_size})[0], grads[2], "dV");
}

// ALiBi of one query that sees two keys, all products 0: the bias of key 1 is the head's slope. Two
// heads: 2^-4 and 2^-8, whichever rank has them; a third continues with the first of four, 2^-2.
TEST(InterpreterKernels, AlibiSlopesFollowTheGlobalHead) {
  const auto biases = [](std::int64_t heads, std::int64_t member, std::int64_t members) {
    Op op{.kind = OpKind::AttentionScores, .alibi = true, .dims = {1, heads, heads, 1, 2, 1}};
    const Array zeros(static_cast<std::size_t>(2 * heads));
    return run(op, {Array(static_cast<std::size_t>(heads)), zeros}, {2 * heads}, member,
               members)[0];
  };
  EXPECT_THAT(biases(2, 0, 1), ElementsAre(0.0, 1.0 / 16, 0.0, 1.0 / 256));
  EXPECT_THAT(biases(1, 1, 2), ElementsAre(0.0, 1.0 / 256));
  EXPECT_THAT(biases(3, 0, 1), ElementsAre(0.0, 1.0 / 16, 0.0, 1.0 / 256, 0.0, 1.0 / 4));
}

/// Rows of a matrix of eight rows that context-parallel rank `member` of two holds: chunks 0 and 3,
/// or 1 and 2, of two rows each.
Array cut(const Array& whole, std::int64_t member) {
  const auto width = static_cast<std::ptrdiff_t>(whole.size()) / 8;
  Array part;
  for (const std::ptrdiff_t row : member == 0 ? std::array<std::ptrdiff_t, 4>{0, 1, 6, 7}
                                              : std::array<std::ptrdiff_t, 4>{2, 3, 4, 5}) {
    part.insert(part.end(), whole.begin() + row * width, whole.begin() + (row + 1) * width);
  }
  return part;
}

/// Runs a kernel as context-parallel rank `member` of two.
std::vector<Array> run_part(Op op, const std::vector<Array>& reads, std::vector<Array> writes,
                            std::int64_t member) {
  op.cp_slot = SlotId(0);
  const InterpretOptions options;
  Work work{op, reads, std::move(writes), 0, 1, 1, options, member, 2};
  interpreted::compute(work);
  return work.writes;
}

// One sequence of eight tokens, one head of size 2, over two ranks of four queries: attention over
// gathered keys, and over the keys of one rank after the other, joined, gives the rows of the
// whole.
TEST(InterpreterKernels, PartsOfContextParallelAttentionMakeTheWhole) {
  const Array q = random_array(1, 16), k = random_array(2, 16), v = random_array(3, 16);
  const Array grad = random_array(4, 16);
  Op op{.kind = OpKind::FlashForward, .causal = true, .dims = {1, 1, 1, 8, 8, 2}};
  Op back{.kind = OpKind::FlashBackward, .causal = true, .dims = op.dims};
  const auto whole = run(op, {q, k, v}, {16, 8});
  const auto whole_grads = run(back, {q, k, v, whole[0], whole[1], grad}, {16, 16, 16});
  Array dk(16), dv(16);
  std::array<Array, 2> ring_dk{Array(8), Array(8)};
  for (const std::int64_t rank : {0, 1}) {
    op.dims = back.dims = {1, 1, 1, 4, 8, 2};
    const Array own_q = cut(q, rank), own_grad = cut(grad, rank);
    const auto all = run_part(op, {own_q, k, v}, {Array(8), Array(4)}, rank);
    expect_near(all[0], cut(whole[0], rank), "output over all keys");
    expect_near(all[1], cut(whole[1], rank), "log-sum-exp");
    const auto grads = run_part(back, {own_q, k, v, all[0], all[1], own_grad},
                                {Array(8), Array(16), Array(16)}, rank);
    expect_near(grads[0], cut(whole_grads[0], rank), "dQ");
    for (std::size_t i = 0; i < 16; ++i) dk[i] += grads[1][i], dv[i] += grads[2][i];

    op.dims = back.dims = {1, 1, 1, 4, 4, 2};
    const Op merge{.kind = OpKind::AttentionMerge, .dims = {1, 1, 4, 2}};
    const std::int64_t other = 1 - rank;
    op.ring_step = back.ring_step = 0;
    auto joined = run_part(op, {own_q, cut(k, rank), cut(v, rank)}, {Array(8), Array(4)}, rank);
    op.ring_step = 1;
    const auto part =
        run_part(op, {own_q, cut(k, other), cut(v, other)}, {Array(8), Array(4)}, rank);
    joined = run_part(merge, part, joined, rank);
    expect_near(joined[0], all[0], "joined output");
    expect_near(joined[1], all[1], "joined log-sum-exp");
    Array dq(8);
    for (const std::uint32_t step : {0u, 1u}) {
      back.ring_step = step;
      const std::int64_t source = step == 0 ? rank : other;
      const auto of_step =
          run_part(back, {own_q, cut(k, source), cut(v, source), joined[0], joined[1], own_grad},
                   {Array(8), Array(8), Array(8)}, rank);
      for (std::size_t i = 0; i < 8; ++i) {
        dq[i] += of_step[0][i];
        ring_dk[static_cast<std::size_t>(source)][i] += of_step[1][i];
      }
    }
    expect_near(dq, grads[0], "dQ of all steps");
  }
  expect_near(dk, whole_grads[1], "dK");
  expect_near(dv, whole_grads[2], "dV");
  expect_near(ring_dk[0], cut(dk, 0), "dK around the ring");
  expect_near(ring_dk[1], cut(dk, 1), "dK around the ring");
}

TEST(InterpreterKernels, RopeTurnsBackAndLeavesTheFirstPositionAndValuesAlone) {
  // Two sequences of two tokens, two query heads, one key head, one value head of size 4: rows of
  // 16.
  Op op{.kind = OpKind::Rope, .dims = {4, 2, 1, 4, 2}};
  const Array x = random_array(1, 64);
  const Array turned = run(op, {x}, {64})[0];
  for (std::size_t k = 0; k < 64; ++k) {
    const bool kept = (k / 16) % 2 == 0 || k % 16 >= 12;
    EXPECT_EQ(turned[k] == x[k], kept) << k;
  }
  // Row 1, head 0, pair (0, 2) turns by 1 radian.
  EXPECT_NEAR(turned[16], x[16] * std::cos(1.0) - x[18] * std::sin(1.0), 1e-15);
  op.inverse = true;
  expect_near(run(op, {turned}, {64})[0], x, "turned back");
}

TEST(InterpreterKernels, LossFromVocabularyShardsEqualsTheWholeAndItsGradientIsTheSlope) {
  const Array logits = random_array(1, 8), targets{1, 2};  // two tokens, vocabulary of 4
  const Array top{2.0, 2.0};                               // any bound will do
  const auto op = [](OpKind kind, std::int64_t v) {
    return Op{.kind = kind, .scale = 0.5f, .dims = {2, v}};
  };
  const auto loss_of = [&](const Array& x) {
    const Array sums = run(op(OpKind::LogitsSum, 4), {x, top, targets}, {4})[0];
    return run(op(OpKind::LossFromSums, 0), {top, sums}, {1})[0][0];
  };
  const Array sums = run(op(OpKind::LogitsSum, 4), {logits, top, targets}, {4})[0];
  const Array left{logits[0], logits[1], logits[4], logits[5]};
  const Array right{logits[2], logits[3], logits[6], logits[7]};
  const Array part0 = run(op(OpKind::LogitsSum, 2), {left, top, targets}, {4}, 0)[0];
  const Array part1 = run(op(OpKind::LogitsSum, 2), {right, top, targets}, {4}, 1)[0];
  for (std::size_t k = 0; k < 4; ++k) EXPECT_NEAR(part0[k] + part1[k], sums[k], 1e-15);
  const Array grad = run(op(OpKind::CrossEntropyBackward, 4), {logits, top, sums, targets}, {8})[0];
  expect_near(grad, differences(loss_of, logits), "dlogits");
}

// Weight 1, momentum 2, gradient 10 clipped by 1 / sqrt(400): 2 x 0.9 + 0.5 = 2.3, 1 - 2.3e-3.
TEST(InterpreterKernels, SgdKeepsAMomentum) {
  const InterpretOptions options;
  const Op op{.kind = OpKind::SgdStep, .dims = {1}};
  Work work{op, {{10.0}, {400.0}}, {{2.0}, {1.0}}, 0, 1, 1, options};
  interpreted::compute(work);
  EXPECT_NEAR(work.writes[0][0], 2.3, 1e-12);
  EXPECT_NEAR(work.writes[1][0], 1.0 - 2.3e-3, 1e-12);
}

// [[1, 2, 3], [4, 5, 6]]: a copy, a transposed copy and the sums of the columns on top of 100.
TEST(InterpreterKernels, QuantizeCopiesTransposesAndSumsColumns) {
  const InterpretOptions options;
  const Op op{.kind = OpKind::Quantize, .trans_b = true, .accumulate = true, .dims = {2, 3}};
  const Array x{1, 2, 3, 4, 5, 6};
  Work work{op, {x}, {Array(6), Array(6), {100, 100, 100}}, 0, 1, 1, options};
  interpreted::compute(work);
  EXPECT_EQ(work.writes[0], x);
  EXPECT_THAT(work.writes[1], ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(work.writes[2], ElementsAre(105, 107, 109));
  EXPECT_THAT(run({.kind = OpKind::AbsMax, .dims = {3}}, {{1, -7, 3}}, {1})[0], ElementsAre(7.0));
}

TEST(InterpreterKernels, AdamClipsByTheGlobalNorm) {
  // Norm sqrt(400) = 20 > 1: g = 6 / 20 = 0.3. First step: m / 0.1 = 0.3, sqrt(v / 0.05) = 0.3, so
  // the weight moves by 1e-3 x 0.3 / (0.3 + 1e-8).
  const auto out = run({.kind = OpKind::AdamStep, .dims = {1}}, {{6.0}, {400.0}}, {1, 1, 1, 1});
  EXPECT_NEAR(out[0][0], -1e-3 * 0.3 / (0.3 + 1e-8), 1e-15);
  EXPECT_NEAR(out[1][0], 0.03, 1e-15);
  EXPECT_NEAR(out[2][0], 0.05 * 0.09, 1e-15);
  EXPECT_EQ(out[3], out[0]);
}

// ---- faults ----

std::string fault_of(const std::string& text) {
  try {
    interpret(parse_plan(text));
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "none";
}

std::string one_rank(const std::string& body) {
  return R"(
buffer p 1x4 f32 persistent seed=1
buffer q 1x4 f32 persistent
buffer t 1x4 f32
program only
  stream compute compute
  stream side compute
body
)" + body +
         "\nrank only gpu=0\n";
}

TEST(InterpreterFaults, MemoryIsUsedBetweenItsAllocAndItsFree) {
  EXPECT_EQ(fault_of(one_rank("alloc t\nkernel compute F/a cast_copy n=4 : p : t\nfree t")),
            "none");
  EXPECT_THAT(fault_of(one_rank("kernel compute F/a cast_copy n=4 : p : t")),
              HasSubstr("not allocated"));
  EXPECT_THAT(fault_of(one_rank("alloc t\nfree t\nkernel compute F/a cast_copy n=4 : p : t")),
              HasSubstr("not allocated"));
  EXPECT_THAT(fault_of(one_rank("alloc t\nkernel compute F/a cast_copy n=4 : t : q")),
              HasSubstr("nothing was written"));
  EXPECT_THAT(fault_of(one_rank("alloc t\nalloc t")), HasSubstr("twice"));
  EXPECT_THAT(fault_of(one_rank("free t")), HasSubstr("not allocated"));
}

TEST(InterpreterFaults, BytesOfAnotherFormatAreGarbage) {
  // Two bf16 elements lie in one f32; the first byte of the second is no number.
  EXPECT_THAT(fault_of(one_rank("kernel compute F/a cast_copy n=2 : p{0,1,2,2,bf16} : q[0:1,0:2]")),
              HasSubstr("nothing was written"));
}

TEST(InterpreterFaults, AWaitNeedsARecord) {
  EXPECT_THAT(fault_of(one_rank("wait compute e0")), HasSubstr("without an earlier Record"));
  EXPECT_THAT(fault_of(one_rank("host_wait e0")), HasSubstr("without an earlier Record"));
}

std::string two_ranks(const std::string& first, const std::string& second) {
  const std::string streams = "  stream a communication\n  stream b communication\n";
  const std::string slots = "  slot dp dp\n  slot peer pp peer\nbody\n";
  return "buffer x 1x4 f32 persistent seed=1\nbuffer y 1x4 f32 persistent seed=2\ncommunicator all "
         "0 1\n"
         "program p0\n" +
         streams + slots + first + "\nprogram p1\n" + streams + slots + second +
         "\nrank p0 gpu=0 dp=all peer=1\nrank p1 gpu=1 dp=all peer=0\n";
}

TEST(InterpreterFaults, CollectivesMatchBySequence) {
  const std::string sum = "collective a D/s all_reduce slot=dp n=4 : x : x\n";
  const std::string gather = "collective a D/g all_gather slot=dp n=4 : x[0:1,0:2] : y\n";
  EXPECT_EQ(fault_of(two_ranks(sum + gather, sum + gather)), "none");
  EXPECT_THAT(fault_of(two_ranks(sum + gather, gather + sum)), HasSubstr("different collectives"));
  EXPECT_THAT(fault_of(two_ranks(sum, "")), HasSubstr("deadlock"));
}

TEST(InterpreterFaults, RendezvousInCrossedOrderIsADeadlockUnlessGrouped) {
  const std::string send = "send a P/s send_to slot=peer n=4 : x :\n";
  const std::string receive = "recv a P/r recv_from slot=peer n=4 : : y\n";
  EXPECT_EQ(fault_of(two_ranks(send + receive, receive + send)), "none");
  EXPECT_THAT(fault_of(two_ranks(send + receive, send + receive)), HasSubstr("deadlock"));
  const std::string both =
      "send a P/s send_to slot=peer n=4 grouped : x :\n"
      "recv a P/r recv_from slot=peer n=4 grouped : : y\n";
  EXPECT_EQ(fault_of(two_ranks(both, both)), "none");
}

// ---- read-out ----

// Rank 0 and 1 hold gradients g = (1, 2, 3, 4) x hash; the reduce-scatter sums them into a shard
// each. The optimizer works on the shard, whose weight and master start as the rank's part of the
// weights.
std::string zero1(const std::string& shard) {
  return R"(
buffer source 1x4 f32 persistent seed=9
buffer weights 1x4 bf16 persistent
buffer grads 1x4 f32 persistent
buffer grad_shard 1x2 f32 persistent
buffer weight_shard 1x2 bf16
buffer master 1x2 f32 persistent
buffer m 1x2 f32 persistent
buffer v 1x2 f32 persistent
communicator all 0 1
program replica
  stream compute compute
  slot dp dp
  param w 2x2 weight=weights{0,2,2,2,bf16} gradient=grads{0,2,2,2,f32}
body
  kernel compute W/g cast_copy n=4 : source : grads
  collective compute D/rs reduce_scatter slot=dp n=4 : grads : )" +
         shard + R"(
  alloc weight_shard
  kernel compute O/adam adam_step n=2 : )" +
         shard + R"( : master m v weight_shard
  collective compute G/ag all_gather slot=dp n=4 : weight_shard : weights
  free weight_shard
rank replica gpu=0 dp=all
rank replica gpu=1 dp=all
)";
}

TEST(InterpreterReadOut, FindsReduceScatteredGradientsAndGatheredWeights) {
  const Results results = interpret(parse_plan(zero1("grad_shard")));
  Parameter w;
  w.name = "w";
  for (std::int64_t k = 0; k < 4; ++k) {
    const double g = seeded_value(9, k);
    EXPECT_DOUBLE_EQ(results.gradients.at("w").at(k / 2, k % 2), 2 * g);
    // First step of Adam without clipping: 1e-3 x sign of the gradient, to 1e-8 / |g|.
    const double start = initial_value(w, k / 2, k % 2, 2, {});
    EXPECT_NEAR(results.weights.at("w").at(k / 2, k % 2), start - std::copysign(1e-3, g), 1e-9);
  }
}

TEST(InterpreterReadOut, ReplicasMustAgree) {
  const std::string text = R"(
buffer g 1x2 f32 persistent seed=4
buffer w 1x2 f32 persistent
communicator all 0 1
program first
  stream compute compute
  slot dp dp
  param w 1x2 weight=w gradient=g
body
program second
  stream compute compute
  slot dp dp
  param w 1x2 weight=w gradient=g
body
  kernel compute W/add add n=2 : g g : g
rank first gpu=0 dp=all
rank second gpu=1 dp=all
)";
  EXPECT_THAT(fault_of(text), HasSubstr("replicas of the gradient of w disagree"));
}

}  // namespace
}  // namespace gputwin
