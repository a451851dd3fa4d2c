// Exchanges of serving stacks and passes over prompts: what a shape asks of a device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hwmodels/kernels/exchange.h"
#include "hwmodels/kernels/prompt_pass.h"

namespace gputwin {
namespace {

// A device of round numbers: 100 GB/s link, 1 TB/s memory, 100 SMs, 100 TFLOP/s in 16 bits.
Device round_device() {
  Device device;
  device.name = "round";
  device.nvlink.nominal = BytesPerSecond(100e9);
  device.memory_bandwidth = BytesPerSecond(1e12);
  device.sms = 100;
  device.peak[static_cast<std::size_t>(DType::F16)] = FlopsPerSecond(100e12);
  return device;
}

TEST(AllReduceInNode, SendsAndReceivesItsShare) {
  // 8 ranks, 8 MB: 2 x 7/8 x 8 MB = 14 MB over 100 GB/s; read and written once: 16 MB.
  const KernelEstimate e = estimate(round_device(), AllReduceShape{.ranks = 8, .bytes = 8e6});
  EXPECT_DOUBLE_EQ(e.memory_s, 140e-6);
  EXPECT_DOUBLE_EQ(e.compute_s, 16e-6);
}

TEST(AllReduceInNode, GoesOverPcieWithoutNvlink) {
  Device device = round_device();
  device.nvlink.nominal = BytesPerSecond(0);
  // Two ranks: as many bytes as the tensor has, over 31.5 GB/s.
  const KernelEstimate e = estimate(device, AllReduceShape{.ranks = 2, .bytes = 31.5e6});
  EXPECT_DOUBLE_EQ(e.memory_s, 1e-3);
}

TEST(ExpertExchange, SendsATokenToEachExpertWhenLatencyCounts) {
  // 100 tokens of 1,280 in 8 bits with ten scales of 4 bytes: 1,320 B each, 4 experts, 7 of 8 ranks
  // are others: 528 kB x 7/8.
  ExpertExchangeShape shape{.tokens = 100, .hidden = 1280, .top_k = 4, .experts = 64};
  shape.low_latency = true;
  EXPECT_DOUBLE_EQ(estimate(round_device(), shape).memory_s, 528e3 * 7 / 8 / 100e9);
  EXPECT_EQ(estimate(round_device(), shape).compute_s, 0);
}

TEST(ExpertExchange, SendsATokenOnceToEachRankOtherwise) {
  // One expert a token: one copy, as 8 x (1 - 7/8) = 1. Back in 16 bits: 2,560 B. 25 of 100 SMs
  // move a quarter of what memory could.
  ExpertExchangeShape shape{.tokens = 100, .hidden = 1280, .top_k = 1, .experts = 64, .sms = 25};
  shape.combine = true;
  const KernelEstimate e = estimate(round_device(), shape);
  EXPECT_NEAR(e.memory_s, 256e3 * 7 / 8 / 100e9, 1e-15);
  EXPECT_NEAR(e.compute_s, 256e3 / 1e12 * 4, 1e-15);
}

TEST(ExpertExchange, LeavesTheNodeByTheAdapter) {
  // Two nodes: half of the copies leave by 50 GB/s; of the others 7 of 8 cross the link.
  ExpertExchangeShape shape{.tokens = 100, .hidden = 1280, .top_k = 1, .experts = 64, .nodes = 2};
  shape.low_latency = true;
  const double bytes = 132e3;
  EXPECT_NEAR(estimate(round_device(), shape).memory_s, bytes * (0.5 * 7 / 8 / 100e9 + 0.5 / 50e9),
              1e-15);
}

TEST(Versions, LaterOnesHaveLargerNumbers) {
  EXPECT_EQ(version_number("0.5.10"), 51000);
  EXPECT_LT(version_number("0.5.9"), version_number("0.5.10"));
  EXPECT_LT(version_number("1.3.0rc10"), version_number("1.3.0rc20"));
  EXPECT_LT(version_number("0.24.0"), version_number("1.2.0rc5"));
  EXPECT_EQ(version_number(""), 0);
}

TEST(PromptPass, CountsLinearLayersAttentionAndReductions) {
  // One layer, h 100, keys and values of 100, two matrices of 400, vocabulary 1,000; two requests
  // of 10 tokens on two GPUs. Weights of the layer: 100 x 400 + 2 x 100 x 400 = 120,000.
  PromptPassShape shape{.layers = 1, .hidden = 100, .kv_width = 100, .feed_forward = 400};
  shape.vocabulary = 1000;
  shape.tensor_parallel = 2;
  shape.batch = 2, shape.prompt = 10;
  const double flops = 2 * 120e3 * 20 + 2.0 * 20 * 10 * 100 + 2.0 * 1000 * 100 * 2;
  const double bytes = 2 * (120e3 + 100e3) / 2;
  const double reduced = 2 * 2 * 0.5 * 20 * 100 * 2;
  const KernelEstimate e = estimate(round_device(), shape);
  EXPECT_NEAR(e.compute_s, flops / 2 / 100e12, 1e-18);
  EXPECT_NEAR(e.memory_s, bytes / 1e12 + reduced / 100e9, 1e-15);
  EXPECT_EQ(e.starts, 4);
}

TEST(PromptPass, AModelNobodyKnowsHasNoTime) {
  EXPECT_EQ(served_model("llama2-70b").layers, 80);
  EXPECT_EQ(served_model("llama9").layers, 0);
  EXPECT_EQ(prompt_pass_cost(round_device(), served_model("llama9")).time.value, 0);
}

}  // namespace
}  // namespace gputwin
