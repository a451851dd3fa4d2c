// Codecs change what is sent, never what a plan means, but by what they drop.
#include "strategies/passes/compress.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sim/core/codecs.h"
#include "tests/unit/strategies/passes/split_meaning.h"

namespace gputwin {
namespace {

Layout compressed(bool sp, double keep, CompressedSum sum, std::vector<std::int64_t> chunks) {
  Layout l;
  l.tp = 2;
  l.sp = sp;
  l.micro_batch = 4;
  l.bucket_elements = 500;
  l.chunk_overlap = {.max_chunks = 4, .forward = chunks, .backward = chunks};
  const Codec codec{.kind = CodecKind::TopkPwq, .keep = keep, .bits = 8};
  l.compression = {.forward = codec, .backward = codec, .sum = sum};
  return l;
}

// All values kept: what is decoded is what was encoded, and sums are sums.
TEST(CompressLayers, KeepingEverythingMeansTheSame) {
  const Job job = tiny_job(8);
  const Results expected = meaning(tiny_gpt(), on_one_gpu(), job, 0);
  std::uint64_t seed = 0;
  for (const bool sp : {false, true}) {
    for (const CompressedSum sum : {CompressedSum::Gather, CompressedSum::TwoStep}) {
      for (const std::vector<std::int64_t>& chunks :
           {std::vector<std::int64_t>{4}, {2, 2}, {1, 3}}) {
        const Layout l = compressed(sp, 1.0, sum, chunks);
        EXPECT_LT(worst_difference(expected, meaning(tiny_gpt(), l, job, ++seed)), 1e-9) << seed;
      }
    }
  }
}

// Half of the values: gradients move, by more the fewer are kept, and stay of their size.
TEST(CompressLayers, KeepingLessMovesGradients) {
  const Job job = tiny_job(8);
  const Results expected = meaning(tiny_gpt(), on_one_gpu(), job, 0);
  const auto error = [&](double keep) {
    return worst_difference(
        expected, meaning(tiny_gpt(), compressed(false, keep, CompressedSum::Gather, {4}), job, 1));
  };
  EXPECT_GT(error(0.5), 1e-6);
  EXPECT_GT(error(0.25), error(0.9));
  EXPECT_LT(error(0.9), 0.5);
}

// A rank of tp 2 gathers one payload of each token from the other; two steps exchange the same in
// halves. The payload of 8 values, 4 kept in 8 bits: 4 + 1 byte of bitmap + 8 of scales.
TEST(CompressLayers, SendsPayloads) {
  const Plan plan =
      plan_of(tiny_gpt(), compressed(false, 0.5, CompressedSum::Gather, {4}), tiny_job(8));
  std::int64_t largest = 0;
  for (const Call& call : plan.calls) {
    if (call.op.kind == OpKind::Encode) largest = std::max(largest, call.writes[0].cols);
  }
  EXPECT_EQ(largest, 4 + 1 + 8);
  EXPECT_EQ(count_ops(plan, Phase::Forward, 1, OpKind::AllReduce), 0);
  EXPECT_EQ(count_ops(plan, Phase::Forward, 1, OpKind::AllGather), 2);
  EXPECT_EQ(count_ops(plan, Phase::Forward, 1, OpKind::Decode), 2);
}

// Two data-parallel ranks of two samples each a micro-batch, two micro-batches.
Layout of_gradients(std::int32_t zero, const Codec& codec, CompressedSum sum) {
  Layout l;
  l.dp = 2;
  l.zero = zero;
  l.micro_batch = 2;
  l.bucket_elements = 500;
  l.schedule = Schedule::None;
  l.compression = {.sum = sum, .reduced = codec};
  return l;
}

constexpr Codec kEveryValue{.kind = CodecKind::Block, .bits = 8};

std::vector<Layout> gradient_layouts() {
  std::vector<Layout> list;
  for (const std::int32_t zero : {0, 1}) {
    for (const CompressedSum sum : {CompressedSum::Gather, CompressedSum::TwoStep}) {
      const Layout l = of_gradients(zero, kEveryValue, sum);
      list.push_back(l);
      list.push_back(l);
      list.back().compression.feedback = true;
      list.push_back(l);  // one bucket, after the last backward pass
      list.back().overlap_grad_reduce = false;
      list.push_back(l);
      list.back().tp = 2;
      list.back().sp = true;
      list.push_back(l);  // the embedding is on two stages
      list.back().pp = 2;
      list.back().schedule = Schedule::OneFOneB;
      list.push_back(l);
      list.back().pp = 2;
      list.back().vpp = 2;
      list.back().schedule = Schedule::Interleaved;
      list.push_back(l);
      list.back().dp = 1;
      list.back().cp = 2;
      list.back().micro_batch = 4;
    }
  }
  return list;
}

TEST(CompressGradients, KeepingEverythingMeansTheSame) {
  const Job job = tiny_job(8);
  const Results expected = meaning(tiny_gpt(), on_one_gpu(), job, 0);
  std::uint64_t seed = 0;
  for (const Layout& layout : gradient_layouts()) {
    EXPECT_LT(worst_difference(expected, meaning(tiny_gpt(), layout, job, ++seed)), 1e-9) << seed;
  }
}

// Buckets of 500 parameters are padded to rows of 1,024 on both ranks.
TEST(CompressGradients, BucketsAreWholeRowsOnEveryRank) {
  const Plan plan =
      plan_of(tiny_gpt(), of_gradients(0, kEveryValue, CompressedSum::TwoStep), tiny_job(8));
  std::int64_t encoded = 0;
  for (const Call& call : plan.calls) {
    if (call.op.kind != OpKind::Encode) continue;
    EXPECT_EQ(call.op.dims[1], kGradientRow);
    EXPECT_EQ(call.writes[0].cols, kGradientRow + 8);
    ++encoded;
  }
  EXPECT_GT(encoded, 2);
}

// The steps of a bucket: what ends its sum stands behind every backward pass.
TEST(CompressGradients, DecodesAfterTheLastBackwardPass) {
  const Plan plan =
      plan_of(tiny_gpt(), of_gradients(0, kEveryValue, CompressedSum::Gather), tiny_job(8));
  std::size_t first_decode = 0, last_gemm = 0, first_encode = 0;
  const std::vector<Instruction>& body = plan.programs[0].body;
  for (std::size_t i = 0; i < body.size(); ++i) {
    if (body[i].kind != Kind::Kernel) continue;
    const OpKind kind = plan.call(body[i]).op.kind;
    if (kind == OpKind::Decode && first_decode == 0) first_decode = i;
    if (kind == OpKind::Encode && first_encode == 0) first_encode = i;
    if (kind == OpKind::Gemm) last_gemm = i;
  }
  EXPECT_GT(first_decode, last_gemm);
  EXPECT_LT(first_encode, last_gemm);
}

// Bodies of one batch at learning rate 0: every iteration has the same gradient G.
Results after(const Plan& plan, int bodies) {
  InterpretOptions options;
  options.generic_constants = true;
  options.bodies = bodies;
  options.learning_rate = 0;
  return interpret(plan, options);
}

double sum_of(const std::map<std::string, Tensor>& tensors) {
  double sum = 0;
  for (const auto& [name, tensor] : tensors) {
    for (const double v : tensor.values) sum += v;
  }
  return sum;
}

// Of residuals, over all ranks.
double kept_back(const Results& results) {
  double sum = 0;
  for (const auto& [key, values] : results.buffers) {
    if (std::get<1>(key).find("residual") == std::string::npos) continue;
    for (const double v : values) sum += v;
  }
  return sum;
}

// What has been applied in three iterations and what is kept back add to three gradients, whatever
// the code drops; without feedback much of it is lost.
TEST(CompressGradients, FeedbackConservesTheSumOverSteps) {
  const Job job = tiny_job(8);
  const double whole = sum_of(meaning(tiny_llama(), on_one_gpu(), job, 0).gradients);
  const Codec topk{.kind = CodecKind::Topk, .keep = 0.05};
  const Codec low_rank{.kind = CodecKind::LowRank, .rank = 2};
  for (const std::int32_t zero : {0, 1}) {
    for (const CompressedSum sum : {CompressedSum::Gather, CompressedSum::TwoStep}) {
      for (const Codec& codec : {topk, low_rank}) {
        if (zero == 1 && codec.kind == CodecKind::LowRank) continue;
        Layout l = of_gradients(zero, codec, sum);
        l.compression.feedback = true;
        const Plan plan = readable(plan_of(tiny_llama(), l, job));
        double applied = 0;
        for (int steps = 1; steps <= 3; ++steps) applied += sum_of(after(plan, steps).gradients);
        const double kept = kept_back(after(plan, 3));
        EXPECT_NEAR(applied + kept, 3 * whole, 1e-9) << describe(codec) << ", zero " << zero;
        EXPECT_GT(std::abs(kept), 1e-6);
      }
    }
  }
}

// Eight tokens make gradients of rank 8 at most: rank 8 has all of them, rank 2 has not. Vectors
// and what 8 (rows + columns) would not shorten travel whole.
TEST(CompressGradients, LowRankKeepsWhatHasThatRank) {
  Transformer wide = tiny_llama();
  wide.hidden = 32;
  wide.head_dim = 8;
  wide.ffn = 64;
  const Job job = tiny_job(2);
  Layout one = on_one_gpu();
  one.micro_batch = 2;
  const Results expected = meaning(wide, one, job, 0);
  const auto error = [&](std::int32_t rank) {
    Layout l = of_gradients(0, {.kind = CodecKind::LowRank, .rank = rank}, CompressedSum::TwoStep);
    l.micro_batch = 1;
    l.bucket_elements = 20'000;
    return worst_difference(expected, meaning(wide, l, job, 3));
  };
  EXPECT_LT(error(8), 1e-9);
  EXPECT_GT(error(2), 1e-6);
}

Layout of_messages(std::int32_t vpp, bool sp, Schedule schedule) {
  Layout l;
  l.pp = 2;
  l.vpp = vpp;
  l.tp = 2;
  l.sp = sp;
  l.micro_batch = 2;
  l.bucket_elements = 500;
  l.schedule = schedule;
  l.compression = {.sent = kEveryValue, .sent_back = kEveryValue};
  return l;
}

TEST(CompressMessages, KeepingEverythingMeansTheSame) {
  Job job = tiny_job(16);
  std::uint64_t seed = 0;
  for (const Transformer& model : {tiny_gpt(), tiny_llama()}) {
    const Results expected = meaning(model, on_one_gpu(), job, 0);
    for (const bool sp : {false, true}) {
      std::vector<Layout> list{of_messages(1, sp, Schedule::OneFOneB),
                               of_messages(2, sp, Schedule::Interleaved),
                               of_messages(1, sp, Schedule::Gpipe)};
      if (!model.tied_embeddings) list.push_back(of_messages(2, sp, Schedule::ZbV));
      list.push_back(of_messages(1, sp, Schedule::OneFOneB));
      list.back().recompute = Recompute::Full;
      list.push_back(of_messages(1, sp, Schedule::OneFOneB));
      list.back().dp = 2;
      list.back().zero = 1;
      list.back().compression.reduced = kEveryValue;
      for (const Layout& layout : list) {
        job.stack = ++seed % 2 == 0 ? "megatron-core" : "megatron-lm-2019";
        EXPECT_LT(worst_difference(expected, meaning(model, layout, job, seed)), 1e-9)
            << model.name << " layout " << seed;
      }
    }
  }
}

// One token of 8 values in 8 bits and its scales: 16 bytes, where 16-bit values take 16, and 4 bits
// 12. Forward and back are codes of their own.
TEST(CompressMessages, SendsPayloads) {
  Layout l = of_messages(1, false, Schedule::OneFOneB);
  l.compression.sent = {.kind = CodecKind::Block, .bits = 4};
  l.compression.sent_back = {};
  Job job = tiny_job(8);
  job.stack = "megatron-core";
  const Plan plan = plan_of(tiny_gpt(), l, job);
  std::int64_t coded = 0, plain = 0;
  for (const Call& call : plan.calls) {
    if (call.op.kind != OpKind::SendTo) continue;
    (call.op.dtype == DType::U8 ? coded : plain) = bytes_of(call.reads).value;
  }
  EXPECT_EQ(coded * 16, plain * 12);
}

TEST(Compress, SaysWhatItDoesNotTake) {
  const Job job = tiny_job(8);
  const auto fix = [&](const Layout& l, const Transformer& model = tiny_gpt()) {
    const auto refused = compress_refusal(model, l, job);
    return refused ? refused->fix : "";
  };
  Layout l = of_gradients(0, kEveryValue, CompressedSum::TwoStep);
  EXPECT_EQ(fix(l), "");
  l.zero = 2;
  EXPECT_EQ(fix(l), "set layout.zero to 1");
  l.zero = 1;
  l.compression.reduced = {.kind = CodecKind::LowRank, .rank = 4};
  EXPECT_EQ(fix(l), "set layout.zero to 0, or choose topk, int8 or int4");
  l.dp = 1;
  EXPECT_EQ(fix(l), "set layout.dp to 2 or more");
  Layout m = of_messages(1, false, Schedule::OneFOneB);
  EXPECT_EQ(fix(m), "");
  m.pp = 1;
  EXPECT_EQ(fix(m), "set layout.pp to 2 or more");
  m.compression = {.search = true};
  EXPECT_EQ(fix(m), "");  // the layers are left to take
  m.tp = 1;
  EXPECT_EQ(fix(m), "set layout.tp to 2 or more");
}

}  // namespace
}  // namespace gputwin
