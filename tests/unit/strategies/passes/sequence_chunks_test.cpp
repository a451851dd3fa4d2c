// Chunks of one sequence, which attend to the keys and values of the chunks before them.
#include <gtest/gtest.h>

#include <numeric>

#include "strategies/passes/overlap.h"
#include "tests/unit/strategies/passes/split_meaning.h"
#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

Transformer gpt() {
  Transformer model = tiny_gpt();
  model.max_positions = 8;
  return model;
}

// One sample of 8 tokens a micro-batch over tp 2, in the given chunks.
Layout chunked(bool sp, const std::vector<std::int64_t>& chunks) {
  Layout l;
  l.tp = 2;
  l.sp = sp;
  l.micro_batch = 1;
  l.bucket_elements = 500;
  l.chunk_overlap = {
      .max_chunks = 4, .split = ChunkSplit::Sequence, .forward = chunks, .backward = chunks};
  return l;
}

Job job_of(std::int64_t batch, AttentionKernel attention = AttentionKernel::Unfused) {
  Job job = tiny_job(batch);
  job.sequence = 8;
  job.attention = attention;
  return job;
}

std::vector<Layout> split_layouts() {
  std::vector<Layout> list;
  for (const bool sp : {false, true}) {
    list.push_back(chunked(sp, {4, 4}));
    list.push_back(chunked(sp, {2, 4, 2}));
    list.push_back(chunked(sp, {2, 2, 2, 2}));
    for (const Recompute r : {Recompute::Selective, Recompute::Full}) {
      list.push_back(chunked(sp, {2, 4, 2}));
      list.back().recompute = r;
    }
    list.push_back(chunked(sp, {6, 2}));
    list.back().recompute_modules = kRecomputeNorms | kRecomputeMlp;
    list.push_back(chunked(sp, {4, 4}));
    list.back().pp = 2;
    list.push_back(chunked(sp, {2, 6}));
    list.back().dp = 2;
    list.back().zero = 1;
    list.push_back(chunked(sp, {4, 4}));
    list.back().single_queue = true;
  }
  list.push_back(chunked(false, {1, 4, 3}));  // without token shards tp need not divide chunks
  return list;
}

TEST(SequenceChunks, LossAndGradientsAreThoseOfOneGpu) {
  Transformer alibi = gpt(), windowed = tiny_llama();
  alibi.positions = Positions::Alibi;
  alibi.max_positions = 0;
  windowed.window = 3;
  Layout one = on_one_gpu();
  one.micro_batch = 1;
  for (const Transformer& model : {gpt(), tiny_llama(), alibi, windowed}) {
    for (const AttentionKernel attention : {AttentionKernel::Unfused, AttentionKernel::Flash2}) {
      if (model.window > 0 && attention == AttentionKernel::Unfused) continue;
      Job job = job_of(2, attention);
      const Results expected = meaning(model, one, job, 0);
      std::uint64_t seed = 0;
      for (const Layout& layout : split_layouts()) {
        job.stack = ++seed % 2 == 0 ? "megatron-core" : "megatron-lm-2019";
        EXPECT_LT(worst_difference(expected, meaning(model, layout, job, seed)), 1e-9)
            << model.name << " layout " << seed;
      }
    }
  }
}

TEST(SequenceChunks, LeaveWeightGradientsToTheSchedule) {
  Layout l = chunked(false, {2, 6}), one = on_one_gpu();
  l.pp = 2;
  l.schedule = Schedule::ZbH1;
  one.micro_batch = 1;
  const Job job = job_of(4);
  const Results expected = meaning(tiny_llama(), one, job, 0);
  EXPECT_LT(worst_difference(expected, meaning(tiny_llama(), l, job, 2)), 1e-9);
}

TEST(SequenceChunks, OneChunkIsTheUnsplitPlanToTheBit) {
  for (const bool sp : {false, true}) {
    Layout blocking = chunked(sp, {});
    blocking.chunk_overlap = {};
    EXPECT_EQ(plan_of(tiny_llama(), chunked(sp, {8}), job_of(2)),
              plan_of(tiny_llama(), blocking, job_of(2)));
  }
}

// Queries and keys (s, u) of the first micro-batch's calls in the second layer, in order of issue.
using Shapes = std::vector<std::pair<std::int64_t, std::int64_t>>;
Shapes attention_shapes(const Plan& plan, Phase phase, OpKind kind) {
  Shapes list;
  for (const Instruction& i : plan.programs[0].body) {
    if (i.kind != Kind::Kernel) continue;
    const Name& name = plan.names[i.name];
    const Op& op = plan.call(i).op;
    if (name.phase != phase || name.layer != 1 || op.kind != kind || i.frame() != 0) continue;
    list.emplace_back(op.dims[3], op.dims[4]);
  }
  return list;
}

// 8 tokens in 2 + 4 + 2: queries 2, 4, 2 over keys 2, 6, 8, and in the backward pass from the end,
// where both chunks that are not the last add a part to the gradients of keys and values.
TEST(SequenceChunks, AttendToTheKeysBeforeAndRunBackwardFromTheEnd) {
  const Plan plan =
      plan_of(tiny_llama(), chunked(false, {2, 4, 2}), job_of(2, AttentionKernel::Flash2));
  EXPECT_EQ(attention_shapes(plan, Phase::Forward, OpKind::FlashForward),
            (Shapes{{2, 2}, {4, 6}, {2, 8}}));
  EXPECT_EQ(attention_shapes(plan, Phase::Backward, OpKind::FlashBackward),
            (Shapes{{2, 8}, {4, 6}, {2, 2}}));
  const auto adds_part = [&](const Instruction& i) {
    return i.kind == Kind::Kernel && i.frame() == 0 &&
           plan.names[i.name].op == "flash_attention_add";
  };
  EXPECT_EQ(count(plan, 0, adds_part), tiny_llama().layers * 2 * 2);
  EXPECT_EQ(count_ops(plan, Phase::Forward, 1, OpKind::AllReduce), 3 * 2);
  EXPECT_EQ(count_ops(plan, Phase::WeightGrad, 1, OpKind::Gemm),
            count_ops(plan_of(tiny_llama(), chunked(false, {8}), job_of(2)), Phase::WeightGrad, 1,
                      OpKind::Gemm));
}

// Tokens, or samples, of each part.
std::vector<std::int64_t> parts(const Layout& layout, std::int64_t sequence) {
  Job job = tiny_job(2);
  job.sequence = sequence;
  std::vector<std::int64_t> borders = chunk_borders(layout, job);
  std::adjacent_difference(borders.begin(), borders.end(), borders.begin());
  return {borders.begin() + 1, borders.end()};
}
std::vector<std::int64_t> alike(std::size_t count, std::int64_t each) {
  return std::vector<std::int64_t>(count, each);
}

// 4,096 tokens: 16 parts of 256. 1,920: 15 tiles, with token shards over tp 2 as well. 8 tokens
// over tp 2: 8 parts, or 4 of two tokens with token shards.
TEST(SequenceChunks, AreWholeTilesWhereTheyFit) {
  Layout l = chunked(false, {}), shards = chunked(true, {});
  EXPECT_EQ(parts(l, 4096), alike(16, 256));
  EXPECT_EQ(parts(shards, 1920), alike(15, 128));
  EXPECT_EQ(parts(l, 8), alike(8, 1));
  EXPECT_EQ(parts(shards, 8), alike(4, 2));
  l.chunk_overlap.split = ChunkSplit::Samples;
  l.micro_batch = 6;
  EXPECT_EQ(parts(l, 8), alike(6, 1));
}

// 4,097 tokens, which nothing but 17 and 241 divides: the last of 16 parts has one more. Over
// shards of tp 8 509 x 8 tokens are 31 tiles and 104 tokens: 15 parts of two tiles, the first of
// one, as 31 tiles over 16 parts round down.
TEST(SequenceChunks, NeedNotBeAlike) {
  std::vector<std::int64_t> expected = alike(16, 256);
  expected.back() = 257;
  EXPECT_EQ(parts(chunked(false, {}), 4097), expected);
  Layout shards = chunked(true, {});
  shards.tp = 8;
  expected = alike(16, 256);
  expected.front() = 128;
  expected.back() = 256 + 104;
  EXPECT_EQ(parts(shards, 4072), expected);
}

TEST(SequenceChunks, SayWhatTheyDoNotCut) {
  const Job job = job_of(8);
  Layout l = chunked(false, {4, 4});
  EXPECT_FALSE(overlap_refusal(tiny_gpt(), l, job).has_value());
  Transformer encoder = tiny_gpt();
  encoder.causal = false;
  EXPECT_TRUE(overlap_refusal(encoder, l, job).has_value());
  l.cp = 2;
  EXPECT_EQ(overlap_refusal(tiny_gpt(), l, job)->fix, "set layout.cp to 1");
  l.cp = 1;
  Transformer latent = tiny_llama();
  latent.mla.kv_rank = 4;
  EXPECT_EQ(overlap_refusal(latent, l, job)->fix, "set split of the pass overlap to samples");
  l.micro_batch = 2;
  EXPECT_EQ(overlap_refusal(tiny_gpt(), l, job)->fix,
            "set layout.micro_batch to 1, or split of the pass overlap to samples");
  l.chunk_overlap.split = ChunkSplit::Auto;  // samples then
  EXPECT_FALSE(overlap_refusal(latent, l, job).has_value());
}

}  // namespace
}  // namespace gputwin
