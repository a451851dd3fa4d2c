#include "hwmodels/flops.h"

#include <gtest/gtest.h>

namespace gputwin {
namespace {

Transformer gpt3() {
  Transformer t;
  t.layers = 96, t.hidden = 12288, t.heads = t.kv_heads = 96, t.head_dim = 128;
  t.ffn = 49152, t.vocab = 51200;
  return t;
}

// Narayanan et al. (SC 2021): 96 B s l h^2 (1 + s/6h + V/16lh) with full recomputation. B = 1536, s
// = 2048, l = 96, h = 12288, V = 51200: 96 x 1536 x 2048 x 96 x 12288^2 = 4.3775e18, times 1 +
// 0.027778 + 0.0027127.
TEST(Flops, EqualTheMegatronFormula) {
  const Job job{.sequence = 2048, .global_batch = 1536};
  Layout layout;
  layout.recompute = Recompute::Full;
  const double base = 96.0 * 1536 * 2048 * 96 * 12288.0 * 12288.0;
  const double with = base * (1 + 2048.0 / (6 * 12288) + 51200.0 / (16.0 * 96 * 12288));
  const double without = base * 3 / 4 * (1 + 2048.0 / (6 * 12288) + 51200.0 / (12.0 * 96 * 12288));
  const IterationFlops flops = iteration_flops(gpt3(), job, layout, FlopsConvention::Megatron);
  EXPECT_NEAR(flops.hardware.value / with, 1.0, 1e-12);
  EXPECT_NEAR(flops.model.value / without, 1.0, 1e-12);
  // 140 TFLOP/s per GPU on 1,024 GPUs, as published, is 31.5 s.
  EXPECT_NEAR(flops.hardware.value / 1024 / 140e12, 31.5, 0.1);
}

// s = 2048: the causal count of attention is (s + 1) / 2s = 0.50024 of the full square.
TEST(Flops, CausalConventionCountsPairsBelowTheDiagonal) {
  const Job job{.sequence = 2048, .global_batch = 1};
  const Layout layout;
  const double full = iteration_flops(gpt3(), job, layout, FlopsConvention::Megatron).model.value;
  const double causal = iteration_flops(gpt3(), job, layout, FlopsConvention::Causal).model.value;
  const double attention = 3.0 * 96 * 4 * 2048 * 2048 * 12288.0;
  EXPECT_NEAR((full - causal) / (attention * (1 - 2049.0 / 4096)), 1.0, 1e-9);
}

// An encoder's pairs are all s x s, whichever the convention.
TEST(Flops, OfAnEncoderCountTheSquare) {
  Transformer encoder = gpt3();
  encoder.causal = false;
  const Job job{.sequence = 2048, .global_batch = 1};
  const auto model = [&](const Transformer& t, FlopsConvention convention) {
    return iteration_flops(t, job, Layout{}, convention).model.value;
  };
  EXPECT_EQ(model(encoder, FlopsConvention::Causal), model(gpt3(), FlopsConvention::Megatron));
}

// Hardware FLOPs count what runs twice: nothing, the attention core, whole layers, or some layers.
TEST(Flops, HardwareCountsWhatIsRecomputed) {
  const Job job{.sequence = 2048, .global_batch = 1};
  Layout layout;
  const auto extra = [&] {
    const IterationFlops f = iteration_flops(gpt3(), job, layout, FlopsConvention::Megatron);
    return f.hardware.value - f.model.value;
  };
  EXPECT_EQ(extra(), 0.0);
  layout.recompute = Recompute::Selective;
  const double core = 4.0 * 2048 * 2048 * 12288.0;
  EXPECT_NEAR(extra() / (96 * core), 1.0, 1e-9);
  layout.recompute = Recompute::Full;
  const double layer = 24.0 * 2048 * 12288.0 * 12288.0 + core;
  EXPECT_NEAR(extra() / (96 * layer), 1.0, 1e-9);
  layout.recompute = Recompute::Block;
  layout.recompute_layers = {5};
  EXPECT_NEAR(extra() / (5 * layer), 1.0, 1e-9);  // one chunk
}

double extra(const Transformer& model, std::uint8_t modules, const Job& job) {
  Layout layout;
  layout.recompute_modules = modules;
  const IterationFlops f = iteration_flops(model, job, layout, FlopsConvention::Megatron);
  return f.hardware.value - f.model.value;
}

// GPT-3, one sample of 2,048: of an MLP the first product (8 s h^2) is repeated, of norms nothing
// that counts, of "ops" half of a gated first product: none here.
TEST(Flops, HardwareCountsWhatModulesRepeat) {
  const Job job{.sequence = 2048, .global_batch = 1};
  EXPECT_NEAR(
      extra(gpt3(), kRecomputeMlp | kRecomputeNorms, job) / (96 * 8.0 * 2048 * 12288.0 * 12288.0),
      1.0, 1e-9);
  EXPECT_EQ(extra(gpt3(), kRecomputeNorms, job), 0.0);
  EXPECT_EQ(extra(gpt3(), kRecomputeOps, job), 0.0);
  Transformer gated = gpt3();
  gated.activation = Activation::Swiglu;
  EXPECT_NEAR(extra(gated, kRecomputeOps, job) / (96 * 2.0 * 2048 * 12288.0 * 49152.0), 1.0, 1e-9);
}

// h = 512; two layers, one dense of width 1,024, one of 8 experts of width 256, two to a token,
// gated. moe repeats the router, 8 x 512 weights, and two first products of 2 x 256 x 512; mlp the
// first product of the dense layer, 2 x 1,024 x 512; the experts' activation function multiplies
// nothing. Latent attention of 8 heads: q of 128 + 64 each from 96, k and v of 128 + 128 from 32.
TEST(Flops, HardwareCountsExpertsAndLatentVectorsThatAreRepeated) {
  Transformer t;
  t.layers = 2, t.hidden = 512, t.heads = t.kv_heads = 8, t.head_dim = 192;
  t.ffn = 1024, t.vocab = 64, t.activation = Activation::Swiglu;
  t.moe = {.experts = 8, .top_k = 2, .ffn = 256, .dense_layers = 1};
  t.mla = {.q_rank = 96, .kv_rank = 32, .nope = 128, .rope = 64, .value = 128};
  const Job job{.sequence = 16, .global_batch = 3};
  const double rows = 2.0 * 16 * 3;
  EXPECT_NEAR(extra(t, kRecomputeMoe, job), rows * (8 * 512 + 2 * 2 * 256 * 512), 1);
  EXPECT_NEAR(extra(t, kRecomputeMlp, job), rows * 2 * 1024 * 512, 1);
  EXPECT_EQ(extra(t, kRecomputeMoeActivation, job), 0.0);
  EXPECT_NEAR(extra(t, kRecomputeMlaUp, job), rows * 2 * (8 * 192 * 96 + 8 * (128 + 128) * 32), 1);
}

// h = 8, ffn = 32, one head, vocabulary 16, sequence 1: linear weights 3 x 64 + 64 + 2 x 256 = 768,
// head 128, both twice (forward, input gradient) instead of three times; attention 4 x 8 and
// adapters of rank 2 on inputs and outputs of 24 + 8 + 8 + 8 + 32 + 8 + 8 + 32 = 128 three times.
TEST(Flops, FrozenWeightsHaveNoGradient) {
  Transformer t;
  t.layers = 1, t.hidden = 8, t.heads = t.kv_heads = 1, t.head_dim = 8, t.ffn = 32, t.vocab = 16;
  const Job job{.sequence = 1, .global_batch = 1, .lora_rank = 2};
  const double flops = iteration_flops(t, job, Layout{}, FlopsConvention::Megatron).model.value;
  EXPECT_NEAR(flops, 2 * 2.0 * (768 + 128) + 3 * (4.0 * 8 + 2.0 * 2 * 128), 1e-9);
}

// Llama-like: h = 4096, 32 heads and 8 key/value heads of 128, gated MLP of 14336. Weights of a
// layer: 4096 x (4096 + 2 x 1024) + 4096^2 + 3 x 4096 x 14336 = 218,103,808.
TEST(Flops, CountGroupedQueriesAndGatedMlps) {
  Transformer t;
  t.layers = 1, t.hidden = 4096, t.heads = 32, t.kv_heads = 8, t.head_dim = 128;
  t.ffn = 14336, t.vocab = 0, t.activation = Activation::Swiglu;
  const Job job{.sequence = 1, .global_batch = 1};
  const double flops = iteration_flops(t, job, Layout{}, FlopsConvention::Megatron).model.value;
  EXPECT_NEAR(flops, 3 * (2.0 * 218'103'808 + 4.0 * 4096), 1.0);
}

// h = 4096, one layer of Mixtral: attention as Llama's above, a router of 8 x 4096, two of eight
// experts of 3 x 4096 x 14336 weights.
TEST(Flops, CountTheExpertsOfAToken) {
  Transformer t;
  t.layers = 1, t.hidden = 4096, t.heads = 32, t.kv_heads = 8, t.head_dim = 128;
  t.ffn = 14336, t.vocab = 0, t.activation = Activation::Swiglu;
  t.moe = {.experts = 8, .top_k = 2, .ffn = 14336};
  const Job job{.sequence = 1, .global_batch = 1};
  const double flops = iteration_flops(t, job, Layout{}, FlopsConvention::Megatron).model.value;
  const double weights = 218'103'808.0 + 3 * 4096.0 * 14336 + 8 * 4096.0;
  EXPECT_NEAR(flops, 3 * (2.0 * weights + 4.0 * 4096), 1.0);
}

}  // namespace
}  // namespace gputwin
