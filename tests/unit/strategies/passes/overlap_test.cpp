// Chunks and codecs change when things happen and what is sent, never what a plan means.
#include "strategies/passes/overlap.h"

#include <gtest/gtest.h>

#include "strategies/passes/choose.h"
#include "tests/support/small_cluster.h"
#include "tests/support/table_cost_model.h"
#include "tests/unit/strategies/passes/split_meaning.h"
#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

// Four samples of a micro-batch over tp 2, in the given chunks.
Layout chunked(bool sp, std::vector<std::int64_t> forward, std::vector<std::int64_t> backward) {
  Layout l;
  l.tp = 2;
  l.sp = sp;
  l.micro_batch = 4;
  l.bucket_elements = 500;
  l.chunk_overlap = {
      .max_chunks = 4, .forward = std::move(forward), .backward = std::move(backward)};
  return l;
}

std::vector<Layout> split_layouts() {
  std::vector<Layout> list;
  for (const bool sp : {false, true}) {
    list.push_back(chunked(sp, {2, 2}, {2, 2}));
    list.push_back(chunked(sp, {1, 2, 1}, {1, 2, 1}));
    list.push_back(chunked(sp, {1, 1, 1, 1}, {1, 1, 1, 1}));
    for (const Recompute r : {Recompute::Selective, Recompute::Full}) {
      list.push_back(chunked(sp, {3, 1}, {3, 1}));
      list.back().recompute = r;
    }
    list.push_back(chunked(sp, {2, 2}, {2, 2}));
    list.back().pp = 2;
    list.push_back(chunked(sp, {2, 2}, {2, 2}));
    list.back().dp = 2;
    list.back().zero = 1;
    list.push_back(chunked(sp, {2, 2}, {2, 2}));
    list.back().single_queue = true;
  }
  list.push_back(chunked(false, {4}, {1, 3}));  // directions differ without token shards
  return list;
}

TEST(Overlap, LossAndGradientsAreThoseOfOneGpu) {
  Transformer encoder = tiny_gpt();
  encoder.causal = false;
  for (const Transformer& model : {tiny_gpt(), tiny_llama(), encoder}) {
    for (const AttentionKernel attention : {AttentionKernel::Unfused, AttentionKernel::Flash2}) {
      Job job = tiny_job(8);
      job.attention = attention;
      const Results expected = meaning(model, on_one_gpu(), job, 0);
      std::uint64_t seed = 0;
      for (const Layout& layout : split_layouts()) {
        job.stack = ++seed % 2 == 0 ? "megatron-core" : "megatron-lm-2019";
        EXPECT_LT(worst_difference(expected, meaning(model, layout, job, seed)), 1e-9)
            << model.name << " layout " << seed;
      }
    }
  }
}

// Weight gradients apart: chunks change nothing about what is left for later. Without tied weights,
// whose copies the interpreter compares after an optimizer step that the norm is checked behind.
TEST(Overlap, LeavesWeightGradientsToTheSchedule) {
  Layout l = chunked(false, {2, 2}, {1, 3});
  l.pp = 2;
  l.schedule = Schedule::ZbH1;
  const Job job = tiny_job(16);
  const Results expected = meaning(tiny_llama(), on_one_gpu(), job, 0);
  EXPECT_LT(worst_difference(expected, meaning(tiny_llama(), l, job, 2)), 1e-9);
}

TEST(Overlap, OneChunkIsTheUnsplitPlanToTheBit) {
  for (const bool sp : {false, true}) {
    Layout blocking = chunked(sp, {}, {});
    blocking.chunk_overlap = {};
    EXPECT_EQ(plan_of(tiny_gpt(), chunked(sp, {4}, {4}), tiny_job(8)),
              plan_of(tiny_gpt(), blocking, tiny_job(8)));
  }
}

// Every operation of a layer but the weight gradients once for each chunk; all tokens in all.
TEST(Overlap, CutsLayersButNotWeightGradients) {
  Layout blocking = chunked(false, {}, {});
  blocking.chunk_overlap = {};
  const Plan whole = plan_of(tiny_gpt(), blocking, tiny_job(8));
  const Plan split = plan_of(tiny_gpt(), chunked(false, {2, 1, 1}, {2, 1, 1}), tiny_job(8));
  const auto of = [](const Plan& plan, Phase phase, OpKind kind) {
    return count_ops(plan, phase, 1, kind);
  };
  EXPECT_EQ(of(split, Phase::Forward, OpKind::Gemm), 3 * of(whole, Phase::Forward, OpKind::Gemm));
  EXPECT_EQ(of(split, Phase::Forward, OpKind::AllReduce), 3 * 2);
  EXPECT_EQ(of(split, Phase::Backward, OpKind::AllReduce), 3 * 2);
  EXPECT_EQ(of(split, Phase::WeightGrad, OpKind::Gemm), of(whole, Phase::WeightGrad, OpKind::Gemm));
}

TEST(Columns, CutAllReducesInTwoAndMeanTheSame) {
  Layout l = chunked(false, {}, {});
  l.chunk_overlap = {};
  l.tp_overlap = TpOverlap::Columns;
  const Job job = tiny_job(8);
  EXPECT_EQ(count_ops(plan_of(tiny_gpt(), l, job), Phase::Forward, 1, OpKind::AllReduce), 2 * 2);
  const Results expected = meaning(tiny_gpt(), on_one_gpu(), job, 0);
  EXPECT_LT(worst_difference(expected, meaning(tiny_gpt(), l, job, 5)), 1e-9);
  l.chunk_overlap = {.max_chunks = 2, .forward = {2, 2}, .backward = {2, 2}};  // Domino in 2-D
  EXPECT_LT(worst_difference(expected, meaning(tiny_gpt(), l, job, 6)), 1e-9);
}

TEST(AsyncTp, CutsAlsoTheScattersOfInputGradients) {
  Layout l = chunked(true, {}, {});
  l.chunk_overlap = {};
  l.tp_overlap = TpOverlap::AsyncTp;
  const Job job = tiny_job(8);
  const Plan plan = plan_of(tiny_gpt(), l, job);
  EXPECT_EQ(count_ops(plan, Phase::Backward, 1, OpKind::ReduceScatter), 2 * 2);
  const Results expected = meaning(tiny_gpt(), on_one_gpu(), job, 0);
  EXPECT_LT(worst_difference(expected, meaning(tiny_gpt(), l, job, 3)), 1e-9);
}

// tp 4, one sample of 8 tokens or four of 4: every gather and scatter of a layer in 3 messages, of
// which both ways at once take 2 one after the other, and 4 products of a quarter of the tokens.
TEST(RingExchange, PassesShardsAndMeansTheSame) {
  std::uint64_t seed = 0;
  for (const Transformer& model : {tiny_gpt(), tiny_llama()}) {
    if (model.kv_heads % 4 != 0) continue;
    for (const TpOverlap ring : {TpOverlap::Ring, TpOverlap::RingBothWays}) {
      for (const Recompute recompute : {Recompute::None, Recompute::Selective, Recompute::Full}) {
        Layout l = chunked(true, {}, {});
        l.tp = 4;
        l.chunk_overlap = {};
        l.tp_overlap = ring;
        l.recompute = recompute;
        const Job job = tiny_job(8);
        const Results expected = meaning(model, on_one_gpu(), job, 0);
        EXPECT_LT(worst_difference(expected, meaning(model, l, job, ++seed)), 1e-9) << seed;
        l.tp = 2;
        l.pp = 2;
        EXPECT_LT(worst_difference(expected, meaning(model, l, job, ++seed)), 1e-9) << seed;
      }
    }
  }
  EXPECT_GT(seed, 0u);
}

TEST(RingExchange, CutsGathersAndScattersInMessages) {
  Layout l = chunked(true, {}, {});
  l.tp = 4;
  l.chunk_overlap = {};
  for (const TpOverlap ring : {TpOverlap::Ring, TpOverlap::RingBothWays}) {
    l.tp_overlap = ring;
    const Plan plan = plan_of(tiny_gpt(), l, tiny_job(8));
    EXPECT_EQ(count_ops(plan, Phase::Forward, 1, OpKind::AllGather), 0);
    EXPECT_EQ(count_ops(plan, Phase::Forward, 1, OpKind::ReduceScatter), 0);
    EXPECT_EQ(count_ops(plan, Phase::Forward, 1, OpKind::SendTo), 4 * 3);
    EXPECT_EQ(count_ops(plan, Phase::Backward, 1, OpKind::SendTo), (2 + 4) * 3);
    EXPECT_EQ(count_ops(plan, Phase::Forward, 1, OpKind::Gemm), 4 * 4);
    EXPECT_EQ(count_ops(plan, Phase::WeightGrad, 1, OpKind::Gemm), 4 * 4);
  }
}

// Refusals name a way out.
TEST(Overlap, SaysWhatItDoesNotCut) {
  const Job job = tiny_job(8);
  Layout l = chunked(false, {2, 2}, {2, 2});
  l.micro_batch = 1;
  EXPECT_EQ(overlap_refusal(tiny_gpt(), l, job)->fix,
            "set layout.micro_batch to 2 or more, or split of the pass overlap to sequence");
  l.tp = 1;
  EXPECT_EQ(overlap_refusal(tiny_gpt(), l, job)->fix, "set layout.tp to 2 or more");
  EXPECT_FALSE(overlap_refusal(tiny_gpt(), chunked(false, {2, 2}, {2, 2}), job).has_value());
}

}  // namespace
}  // namespace gputwin
