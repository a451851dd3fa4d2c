#include <gtest/gtest.h>

#include "hwmodels/memory/closed_forms.h"
#include "hwmodels/memory/runtime_memory.h"
#include "tests/unit/hwmodels/world.h"

namespace gputwin {
namespace {

Transformer gpt22b() {
  Transformer t;
  t.layers = 48, t.hidden = 6144, t.heads = t.kv_heads = 64, t.head_dim = 96;
  t.ffn = 24576, t.vocab = 51200;
  return t;
}

// Korthikanti et al. (2022), Table 2, with s = 2048, b = 4, h = 6144, a = 64, t = 8: sbh =
// 50,331,648 and 5 a s / h = 106.667.
TEST(Activations, EqualKorthikantisTable) {
  const double sbh = 2048.0 * 4 * 6144, scores = 5.0 * 64 * 2048 / 6144;
  ActivationShape shape{.sequence = 2048, .micro_batch = 4};
  const auto bytes = [&] { return activation_bytes_per_layer(gpt22b(), shape) / sbh; };
  EXPECT_NEAR(bytes(), 34 + scores, 1e-9);
  shape.tp = 8;
  EXPECT_NEAR(bytes(), 10 + 24.0 / 8 + scores / 8, 1e-9);
  shape.recompute = Recompute::Selective;
  EXPECT_NEAR(bytes(), 10 + 24.0 / 8, 1e-9);
  shape.sequence_parallel = true;
  EXPECT_NEAR(bytes(), 34.0 / 8, 1e-9);
  shape.recompute = Recompute::None;
  EXPECT_NEAR(bytes(), (34 + scores) / 8, 1e-9);
  shape.flash = true;
  EXPECT_NEAR(bytes(), 34.0 / 8, 1e-9);
  shape.recompute = Recompute::Full;
  EXPECT_NEAR(bytes(), 2.0, 1e-9);
  // A context-parallel rank has 1 / cp of the tokens; each still meets all keys.
  shape.cp = 4;
  EXPECT_NEAR(bytes(), 2.0 / 4, 1e-9);
  shape = {.sequence = 2048, .micro_batch = 4, .cp = 4};
  EXPECT_NEAR(bytes(), (34 + scores) / 4, 1e-9);
}

// The same paper prints 9.56 GiB of activations for this run (48 layers): 34/8 x 50,331,648 x 48 =
// 9.5625 GiB.
TEST(Activations, EqualThePrintedRunOf22B) {
  const ActivationShape shape{.sequence = 2048,
                              .micro_batch = 4,
                              .tp = 8,
                              .sequence_parallel = true,
                              .flash = false,
                              .recompute = Recompute::Selective};
  EXPECT_NEAR(48 * activation_bytes_per_layer(gpt22b(), shape) / (1 << 30), 9.56, 0.005);
}

// 8 key/value heads instead of 64 keep 1/8 of K and V: 4 h -> 0.5 h. A gated MLP keeps both
// branches and their product: 6 x ffn instead of 4 x ffn bytes.
TEST(Activations, FollowGroupedQueriesAndGatedMlps) {
  Transformer t = gpt22b();
  const ActivationShape shape{.sequence = 1, .micro_batch = 1, .flash = true};
  const double before = activation_bytes_per_layer(t, shape);
  t.kv_heads = 8;
  EXPECT_NEAR(before - activation_bytes_per_layer(t, shape), 3.5 * 6144, 1e-9);
  t.activation = Activation::Swiglu;
  EXPECT_NEAR(activation_bytes_per_layer(t, shape) - (before - 3.5 * 6144), 2.0 * 24576, 1e-9);
}

TEST(States, EighteenBytesOrSharded) {
  EXPECT_DOUBLE_EQ(state_bytes_per_parameter(0, 8), 18.0);
  EXPECT_DOUBLE_EQ(state_bytes_per_parameter(1, 8), 7.5);
}

// p = 8 stages, M = 32: GPipe holds 32, 1F1B 8 - i. Interleaved with v = 2 on stage 0: (8 + 16 - 1)
// / 2 = 11.5.
TEST(LiveMicroBatches, BySchedule) {
  EXPECT_DOUBLE_EQ(live_micro_batches(Schedule::Gpipe, 3, 8, 1, 32), 32);
  EXPECT_DOUBLE_EQ(live_micro_batches(Schedule::OneFOneB, 0, 8, 1, 32), 8);
  EXPECT_DOUBLE_EQ(live_micro_batches(Schedule::OneFOneB, 7, 8, 1, 32), 1);
  EXPECT_DOUBLE_EQ(live_micro_batches(Schedule::OneFOneB, 0, 8, 1, 4), 4);
  EXPECT_DOUBLE_EQ(live_micro_batches(Schedule::Interleaved, 0, 8, 2, 32), 11.5);
  EXPECT_DOUBLE_EQ(live_micro_batches(Schedule::None, 0, 1, 1, 32), 1);
}

// Two of three communicators have two ranks or more and hold NCCL buffers.
TEST(RuntimeMemory, CountsCommunicatorsThatCommunicate) {
  const Device a100 = load_device(test::data_folder() / "devices" / "a100-sxm-80gb.json");
  const std::vector<std::int32_t> sizes{8, 1, 16};
  const MemoryCost cost = runtime_memory(a100, sizes);
  EXPECT_EQ(cost.communicators.value, 2 * (std::int64_t{230} << 20));
  EXPECT_DOUBLE_EQ(cost.reserved_over_allocated, 0.0);  // its allocator is replayed
  EXPECT_EQ(cost.workspace.value, 8'519'680);           // PyTorch: 2 x 4096 KiB + 8 x 16 KiB
}

// 2.851e9 parameters, 8 GPUs, one node (DeepSpeed's pull request 1536, GiB): ZeRO 2 2 P = 5.31
// offloaded, 4 P + 16 P / 8 = 15.93 not; ZeRO 3 optimizer offloaded 2 P / 8 + 4 x 32e6 = 0.78 on
// the GPU and 16 P x 1.5 = 63.7 on the host, parameters too 18 P x 1.5 = 71.7, without zero.Init 32
// P x 1.5 = 127.4.
TEST(DeepSpeedEstimate, IsWhatTheToolPrints) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  const auto estimate = [](int zero, HostOffload offload) {
    return deepspeed_estimate(zero, offload, 2.851e9, 32e6, 8, 1, 1.5);
  };
  EXPECT_NEAR(estimate(2, HostOffload::Optimizer).gpu / kGiB, 5.31, 0.01);
  EXPECT_NEAR(estimate(2, HostOffload::None).gpu / kGiB, 15.93, 0.01);
  EXPECT_NEAR(estimate(3, HostOffload::Optimizer).gpu / kGiB, 0.783, 0.01);
  EXPECT_NEAR(estimate(3, HostOffload::Optimizer).host / kGiB, 63.7, 0.1);
  const DeepSpeedEstimate all = estimate(3, HostOffload::OptimizerAndParameters);
  EXPECT_NEAR(all.host / kGiB, 71.7, 0.1);
  EXPECT_NEAR(all.host_without_init / kGiB, 127.4, 0.1);
}

// T5-large on 4 GPUs of one node (DeepSpeed's documentation, memory.rst), in MiB.
TEST(DeepSpeedEstimate, OfT5LargeAsDocumented) {
  const auto mib = [](std::int32_t zero, HostOffload offload) {
    const double gpu = deepspeed_estimate(zero, offload, 737.67e6, 32.9e6, 4, 1, 1.5).gpu;
    return gpu / (1 << 20);
  };
  EXPECT_NEAR(mib(3, HostOffload::None), 3291, 1);
  EXPECT_NEAR(mib(3, HostOffload::Optimizer), 477, 1);
  EXPECT_NEAR(mib(3, HostOffload::OptimizerAndParameters), 125, 1);
}

}  // namespace
}  // namespace gputwin
