#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hwmodels/kernels/attention.h"
#include "hwmodels/kernels/gemm.h"
#include "hwmodels/kernels/memory_bound.h"
#include "tests/unit/hwmodels/world.h"

namespace gputwin {
namespace {

// Round numbers: 100 SMs of 1 TFLOP/s each, 1 TB/s; efficiency of a 256 x 128 tile 1 - exp(-0.1 x
// 181.02 / 64).
Device round_device() {
  Device device;
  device.sms = 100;
  device.peak[static_cast<std::size_t>(DType::Bf16)] = FlopsPerSecond(100e12);
  device.peak[static_cast<std::size_t>(DType::F16)] = FlopsPerSecond(100e12);
  device.peak[static_cast<std::size_t>(DType::F32)] = FlopsPerSecond(10e12);
  device.memory_bandwidth = BytesPerSecond(1e12);
  device.gemm.start_up = Seconds(1e-6);
  device.gemm.tile_efficiency = 1.0;
  device.gemm.tile_saturation = 0.1;
  device.gemm.memory_efficiency = 1.0;
  device.gemm.norm_exponent = 1.0;
  device.gemm.split_cost = Seconds(1.0);  // no split-K unless a test lowers it
  device.attention.kernels[static_cast<std::size_t>(AttentionKernel::Flash2)] = {
      FlopsPerSecond(50e12), FlopsPerSecond(40e12)};
  device.attention.misaligned_head_time = 9.0;
  device.attention.small_head_rate = 0.5;
  device.attention.start_up = Seconds(2e-6);
  device.memory_bound = {Seconds(3e-6), 0.8, 0.5, 0.4, 0.6, 0.5, 0.7};
  return device;
}

constexpr double kBigTile = 65.536e-6;  // 2 x 256 x 128 x 1000 FLOPs on one SM
const double kBigTileEfficiency = 1.0 - std::exp(-0.1 * std::sqrt(32768.0) / 64.0);

// 10 x 10 tiles of 256 x 128 fill 100 SMs once: t = 1 us + 65.536 us / 0.2464.
TEST(Gemm, OneFullWave) {
  const Cost cost = gemm_cost(round_device(), {.m = 2560, .n = 1280, .k = 1000});
  EXPECT_NEAR(cost.time.value, 1e-6 + kBigTile / kBigTileEfficiency, 1e-12);
  EXPECT_NEAR(cost.term(Term::Wave).value, 0.0, 1e-15);
  EXPECT_STREQ(cost.op_class, "gemm");
}

// One row more needs a second wave of the big tile (11 x 10 tiles); every smaller tile is slower
// still: 128 x 128 takes 3 waves of 32.768 us / 0.1813.
TEST(Gemm, OneRowMoreCostsAWave) {
  const Cost cost = gemm_cost(round_device(), {.m = 2561, .n = 1280, .k = 1000});
  EXPECT_NEAR(cost.time.value, 1e-6 + 2 * kBigTile / kBigTileEfficiency, 1e-12);
  // Of 200 places the 110 tiles leave 90 empty.
  EXPECT_NEAR(cost.term(Term::Wave).value, 0.9 * kBigTile / kBigTileEfficiency, 1e-12);
}

// With p = 1 compute and memory add up: 1 MB at 1 TB/s is 1 us more.
TEST(Gemm, MemoryJoinsByThePNorm) {
  const Device device = round_device();
  const GemmShape shape{.m = 2560, .n = 1280, .k = 1000};
  GemmShape with_bytes = shape;
  with_bytes.traffic = Bytes(1'000'000);
  EXPECT_NEAR(gemm_cost(device, with_bytes).time.value - gemm_cost(device, shape).time.value, 1e-6,
              1e-12);
}

// One tile with k = 6,400 leaves 99 SMs idle; 16 slices of 400 take 1/16 of its time plus the
// reduction.
TEST(Gemm, SplitsDeepProducts) {
  Device device = round_device();
  device.gemm.split_cost = Seconds(5e-6);
  const Cost cost = gemm_cost(device, {.m = 16, .n = 64, .k = 6400});
  const double efficiency = 1.0 - std::exp(-0.1 * 32.0 / 64.0);
  const double whole = 2.0 * 16 * 64 * 6400 / 1e12 / efficiency;
  EXPECT_NEAR(cost.time.value, 1e-6 + whole / 16 + 5e-6, 1e-12);
  EXPECT_NEAR(cost.term(Term::SplitK).value, 5e-6, 1e-15);
}

// GEMMs of a GPT-3 175B layer, tp 8, 2,048 tokens, on an A100: QKV 2048 x 4608 x 12288 and both MLP
// products reach 0.75-0.86 of 312 TFLOP/s; the attention output (k = 1536) has short sums and
// reaches 0.65-0.75.
TEST(Gemm, FlagshipShapesOnA100) {
  const Device a100 = load_device(test::data_folder() / "devices" / "a100-sxm-80gb.json");
  const auto share = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    const Cost cost =
        gemm_cost(a100, {.m = m, .n = n, .k = k, .traffic = Bytes(2 * (m * k + k * n + m * n))});
    return 2.0 * static_cast<double>(m * n * k) / cost.time.value / 312e12;
  };
  EXPECT_THAT(share(2048, 4608, 12288), testing::AllOf(testing::Gt(0.75), testing::Lt(0.86)));
  EXPECT_THAT(share(2048, 6144, 12288), testing::AllOf(testing::Gt(0.75), testing::Lt(0.86)));
  EXPECT_THAT(share(2048, 12288, 6144), testing::AllOf(testing::Gt(0.75), testing::Lt(0.86)));
  EXPECT_THAT(share(2048, 12288, 1536), testing::AllOf(testing::Gt(0.65), testing::Lt(0.75)));
}

// Weight gradients read and write their fp32 result: dW[1024, 1024] over 8 tokens moves 8 MiB + 32
// KiB.
TEST(Gemm, AccumulationReadsTheResultFirst) {
  const Topology topology(test::nvswitch_cluster("a100-sxm-80gb", 1, 300, 25));
  const HardwareModel model(topology, Job{.stack = "default"}, test::data_folder());
  Op op{.kind = OpKind::Gemm, .dtype = DType::F16, .out = DType::F32, .trans_a = true};
  op.dims = {1024, 1024, 8};
  const Bytes read(2 * 2 * 1024 * 8), written(4 * 1024 * 1024);
  const double plain = model.kernel(op, read, written, DeviceKindId(0)).term(Term::Memory).value;
  op.accumulate = true;
  const double added = model.kernel(op, read, written, DeviceKindId(0)).term(Term::Memory).value;
  const double read_bytes = 32768, result = 4194304;
  // The learned correction sees the bytes too and may differ by a few per cent.
  EXPECT_NEAR(added / plain, (read_bytes + 2 * result) / (read_bytes + result), 0.15);
}

// Peaks differ by 10: fp32 products take 10 times as long as bf16 ones, start-up apart.
TEST(Gemm, FollowsThePeakOfItsFormat) {
  const Device device = round_device();
  const Cost half = gemm_cost(device, {.m = 2560, .n = 1280, .k = 1000});
  const Cost full = gemm_cost(device, {.m = 2560, .n = 1280, .k = 1000, .dtype = DType::F32});
  EXPECT_NEAR((full.time.value - 1e-6) / (half.time.value - 1e-6), 10.0, 1e-9);
}

// Half the bytes and twice the peak: an 8-bit product moves its operands at 1 byte and its result
// at 2, as its views say, and multiplies at the device's fp8 rate, of which 0.77 is sustained where
// the bf16 rate is sustained whole. Corrections of the two formats differ, by less than 15 %.
TEST(Gemm, EightBitOperandsMoveHalfTheBytes) {
  const Topology topology(test::nvswitch_cluster("h100-sxm-80gb", 1, 450, 50));
  const HardwareModel model(topology, Job{.stack = "default"}, test::data_folder());
  Op op{.kind = OpKind::Gemm, .dtype = DType::Bf16, .out = DType::Bf16, .trans_b = true};
  op.dims = {8192, 8192, 8192};
  const std::int64_t n = 8192 * 8192;
  const auto operands = [&](DType dtype) {
    const View v{.rows = 8192, .cols = 8192, .ld = 8192, .dtype = dtype};
    op.dtype = dtype;
    return model.kernel(op, v.bytes() + v.bytes(), Bytes(2 * n), DeviceKindId(0));
  };
  const Cost wide = operands(DType::Bf16), narrow = operands(DType::F8);
  EXPECT_NEAR(narrow.term(Term::Memory).value / wide.term(Term::Memory).value, 4.0 / 6.0, 0.1);
  EXPECT_NEAR(narrow.term(Term::Compute).value / wide.term(Term::Compute).value, 0.5 / 0.77, 0.1);
}

Op attention(OpKind kind, std::int64_t b, std::int64_t a, std::int64_t s, std::int64_t d,
             bool causal) {
  Op op{.kind = kind, .dtype = DType::Bf16, .out = DType::Bf16};
  op.causal = causal;
  op.attention = AttentionKernel::Flash2;
  op.dims = {b, a, a, s, s, d};
  return op;
}

// b a = 200 heads, s = 1024: 8 x 8 tiles, of which 36 at or below the diagonal. A tile is 4 x 128^3
// = 8.389 MFLOP: 200 x 64 x 8.389e6 / 50e12 = 2.1475 ms without mask, 36/64 of it with. Each row
// of 8 tiles takes 134.2 us on its SM; the squares add up.
TEST(Flash, CausalMaskSkipsTilesAboveTheDiagonal) {
  const Device device = round_device();
  const Cost all =
      flash_cost(device, attention(OpKind::FlashForward, 2, 100, 1024, 128, false), Bytes(0));
  const Cost causal =
      flash_cost(device, attention(OpKind::FlashForward, 2, 100, 1024, 128, true), Bytes(0));
  const double work = 200 * 64 * 4.0 * 128 * 128 * 128 / 50e12, row = 134.217728e-6;
  EXPECT_NEAR(all.time.value, 2e-6 + std::hypot(work, row), 1e-12);
  EXPECT_NEAR(causal.time.value, 2e-6 + std::hypot(work * 36 / 64, row), 1e-12);
}

// Backward: 2.5 x the FLOPs at 40 instead of 50 TFLOP/s; rows of tiles end evenly.
TEST(Flash, BackwardDoesFiveProducts) {
  const Device device = round_device();
  const Cost forward =
      flash_cost(device, attention(OpKind::FlashForward, 2, 100, 1024, 128, true), Bytes(0));
  const Cost backward =
      flash_cost(device, attention(OpKind::FlashBackward, 2, 100, 1024, 128, true), Bytes(0));
  EXPECT_NEAR(backward.time.value - 2e-6, forward.term(Term::Compute).value * 2.5 * 50 / 40, 1e-12);
}

// One head of 1,024 queries: 8 rows of tiles on 100 SMs. The last row's 8 tiles, on one SM of 0.5
// TFLOP/s, take 8 x 8.389e6 / 0.5e12 = 134.2 us; all 36 tiles spread evenly, 6.04 us, add little.
// Blackwell gives an SM two rows.
TEST(Flash, FewHeadsWaitForTheLongestRow) {
  Device device = round_device();
  const Op op = attention(OpKind::FlashForward, 1, 1, 1024, 128, true);
  const double row = 134.217728e-6, all = 36 * 4.0 * 128 * 128 * 128 / 50e12;
  EXPECT_NEAR(flash_cost(device, op, Bytes(0)).time.value, 2e-6 + std::hypot(row, all), 1e-12);
  device.architecture = Architecture::Blackwell;
  EXPECT_NEAR(flash_cost(device, op, Bytes(0)).time.value, 2e-6 + std::hypot(2 * row, all), 1e-12);
}

// Few heads in the backward pass: the longest row alone, 2.5 x the FLOPs at 0.4 TFLOP/s per SM.
TEST(Flash, BackwardOfFewHeadsTakesItsLongestRow) {
  const Cost cost =
      flash_cost(round_device(), attention(OpKind::FlashBackward, 1, 1, 1024, 128, true), Bytes(0));
  EXPECT_NEAR(cost.time.value, 2e-6 + 8 * 10.0 * 128 * 128 * 128 / 0.4e12, 1e-12);
}

// A sequence of 2,048 over two context-parallel ranks: queries 1,024, two chunks of 4 rows of tiles
// out of 16. Over all keys: 3 whole chunks of 16 tiles and two triangles of 10, half of the 136
// tiles of the whole sequence. As a ring: 36 over the own keys and 32 over the other rank's.
TEST(Flash, ContextParallelRanksShareTheWorkEvenly) {
  const Device device = round_device();
  const auto tiles = [&](std::int64_t s, std::int64_t u, bool cut, std::uint32_t step) {
    Op op = attention(OpKind::FlashForward, 2, 100, s, 128, true);
    op.dims[4] = u;
    if (cut) op.cp_slot = SlotId(0);
    op.ring_step = step;
    const double tile = 200 * 4.0 * 128 * 128 * 128 / 50e12;
    return flash_cost(device, op, Bytes(0)).term(Term::Compute).value / tile;
  };
  EXPECT_NEAR(tiles(2048, 2048, false, 0), 136, 1e-6);
  EXPECT_NEAR(tiles(1024, 2048, true, 0), 68, 1e-6);
  EXPECT_NEAR(tiles(1024, 1024, true, 0), 36, 1e-6);
  EXPECT_NEAR(tiles(1024, 1024, true, 1), 32, 1e-6);
}

// Joining 1 MB of context and 0.1 MB of log-sum-exp to as much: read both, write one: 3.3 MB.
TEST(Flash, MergesAtTheSpeedOfMemory) {
  Op op{.kind = OpKind::AttentionMerge, .dtype = DType::Bf16, .out = DType::Bf16};
  EXPECT_EQ(moved_bytes(op, Bytes(1'100'000), Bytes(1'100'000)).value, 3'300'000);
}

TEST(Flash, PricesKernelsTheDeviceLacksAndSaysSo) {
  Op op = attention(OpKind::FlashForward, 2, 100, 1024, 128, true);
  const Cost known = flash_cost(round_device(), op, Bytes(0));
  op.attention = AttentionKernel::Flash3;
  const Cost lacking = flash_cost(round_device(), op, Bytes(0));
  EXPECT_EQ(known.time.value, lacking.time.value);
  EXPECT_FALSE(known.extrapolated);
  EXPECT_TRUE(lacking.extrapolated);
}

// S = Q K^T of 2 x 50 heads: tiles of all heads fill the waves. s = u = 256, k = 1000: 100 heads x
// 2 tiles of 256 x 128 are two full waves.
TEST(UnfusedAttention, CountsTheTilesOfAllHeads) {
  const Cost cost = attention_gemm_cost(
      round_device(), attention(OpKind::AttentionScores, 2, 50, 256, 1000, true), Bytes(0));
  EXPECT_NEAR(cost.time.value, 1e-6 + 2 * kBigTile / kBigTileEfficiency, 1e-12);
}

// With ALiBi the biases are copied over all 100 x 256 x 256 scores of 2 bytes, 13.1 MB at 0.8 of
// 1 TB/s after 3 us, and the product reads them again at 1 TB/s (p = 1: memory adds).
TEST(UnfusedAttention, AlibiWritesAndReadsAllScores) {
  Op op = attention(OpKind::AttentionScores, 2, 50, 256, 1000, true);
  const Cost plain = attention_gemm_cost(round_device(), op, Bytes(0));
  op.alibi = true;
  const Cost biased = attention_gemm_cost(round_device(), op, Bytes(0));
  const double bytes = 2.0 * 100 * 256 * 256;
  EXPECT_NEAR(biased.time.value - plain.time.value, 3e-6 + bytes / 0.8e12 + bytes / 1e12, 1e-12);
  op = attention(OpKind::FlashForward, 2, 50, 256, 128, true);
  const double flash = flash_cost(round_device(), op, Bytes(0)).time.value;
  op.alibi = true;
  EXPECT_EQ(flash_cost(round_device(), op, Bytes(0)).time.value, flash);
}

// Head sizes 104 and 108 have about the same work; 108 is no multiple of 8 and pays the factor 9.
TEST(UnfusedAttention, MisalignedHeadsAreSlow) {
  const Device device = round_device();
  const auto time = [&](std::int64_t d) {
    return attention_gemm_cost(device, attention(OpKind::AttentionScores, 2, 50, 256, d, true),
                               Bytes(0))
        .time.value;
  };
  EXPECT_NEAR(time(108) / time(104), 9.0, 0.5);
}

// t = 3 us + bytes / (eff 1 TB/s). Add of three 1 MB arrays at 0.8: 3.75 us more. The norm runs at
// 0.5.
TEST(MemoryBound, StartUpPlusBytes) {
  const Device device = round_device();
  Op op{.kind = OpKind::Add, .dtype = DType::F16, .out = DType::F16};
  EXPECT_NEAR(memory_bound_cost(device, op, Bytes(2'000'000), Bytes(1'000'000)).time.value, 6.75e-6,
              1e-15);
  op.kind = OpKind::NormForward;
  EXPECT_NEAR(memory_bound_cost(device, op, Bytes(1'000'000), Bytes(1'000'000)).time.value, 7e-6,
              1e-15);
}

// `fused` says how many launches one kernel saves; its device time is that of its bytes.
TEST(MemoryBound, FusionSavesOnlyLaunches) {
  Op op{.kind = OpKind::BiasDropoutAdd, .dtype = DType::F16, .out = DType::F16};
  op.dims = {100, 100};
  const double one = memory_bound_cost(round_device(), op, Bytes(1000), Bytes(1000)).time.value;
  op.fused = 3;
  EXPECT_EQ(memory_bound_cost(round_device(), op, Bytes(1000), Bytes(1000)).time.value, one);
}

// A table of 50,000 rows of 1,000 halves is 100 MB, but 10 tokens read 10 rows: 20 kB in, 20 kB
// out.
TEST(MemoryBound, EmbeddingReadsTheRowsItNeeds) {
  Op op{.kind = OpKind::EmbeddingForward, .dtype = DType::F16, .out = DType::F16};
  op.dims = {10, 1000, 50'000};
  EXPECT_EQ(moved_bytes(op, Bytes(100'000'080), Bytes(20'000)).value, 40'000);
}

// Causal softmax reads half of the scores and writes all; dropout reads and writes them again and a
// mask.
TEST(MemoryBound, SoftmaxReadsBelowTheDiagonal) {
  Op op{.kind = OpKind::SoftmaxForward, .dtype = DType::F16, .out = DType::F16};
  op.dims = {1, 1, 100, 100};
  op.causal = true;
  EXPECT_EQ(moved_bytes(op, Bytes(20'000), Bytes(20'000)).value, 30'000);
  op.dropout = 0.1f;
  EXPECT_EQ(moved_bytes(op, Bytes(20'000), Bytes(20'000)).value, 30'000 + 40'000 + 10'000);
}

// Per element: gradient 4 read; master, m, v 12 written and read back; weight 2 written: 30 bytes.
TEST(MemoryBound, AdamReadsBackItsStates) {
  Op op{.kind = OpKind::AdamStep, .dtype = DType::F32, .out = DType::F32};
  op.dims = {1000};
  EXPECT_EQ(moved_bytes(op, Bytes(4000), Bytes(14'000)).value, 30'000);
}

// Pure bf16: gradient 2 read; m, v and weight 6 written and read back.
TEST(MemoryBound, StatesHaveTheirFormat) {
  Op op{.kind = OpKind::AdamStep, .dtype = DType::Bf16, .out = DType::Bf16};
  op.dims = {1000};
  EXPECT_EQ(moved_bytes(op, Bytes(2000), Bytes(6000)).value, 14'000);
}

// Of a tensor of 8 ranks a copy of one rank's part moves 1000 elements in and out.
TEST(MemoryBound, OwnPartsAreReadAlone) {
  Op op{.kind = OpKind::CastCopy, .dtype = DType::Bf16, .out = DType::Bf16};
  op.slot = SlotId(0);
  op.dims = {1000};
  EXPECT_EQ(moved_bytes(op, Bytes(16'000), Bytes(2000)).value, 4000);
}

// SGD has one state less than Adam: gradient 4; master and momentum 8 twice; weight 2. LAMB passes
// over its fp32 update three times (written, read, read) and twice more over the weight: 20 bytes.
TEST(MemoryBound, OtherOptimizersBesideAdam) {
  Op op{.kind = OpKind::SgdStep, .dtype = DType::F32, .out = DType::F32};
  op.dims = {1000};
  EXPECT_EQ(moved_bytes(op, Bytes(4000), Bytes(10'000)).value, 22'000);
  op.kind = OpKind::LambStep;
  EXPECT_EQ(moved_bytes(op, Bytes(4000), Bytes(14'000)).value, 30'000 + 20'000);
}

// 16 cores and 80 GB/s per GPU: 1.312e9 elements take 1 s of cores, and 28 B each at 48 GB/s less;
// at 15 GB/s memory binds. One rank alone has all 128 cores.
TEST(HostAdam, CoresOrMemoryLimit) {
  NodeType node;
  node.gpus = 8;
  node.host = {2, 128, Bytes(0), BytesPerSecond(640e9)};
  EXPECT_NEAR(cpu_adam_cost(node, 1'312'000'000).time.value, 1.0, 1e-12);
  EXPECT_NEAR(cpu_adam_cost(node, 1'312'000'000, 1).time.value, 1.0 / 8, 1e-12);
  node.host.dram = BytesPerSecond(200e9);
  EXPECT_NEAR(cpu_adam_cost(node, 1'312'000'000).time.value, 1.312 * 28 / 15, 1e-12);
}

// Pinned: 32 GB/s x 0.8 = 25.6 GB/s, so 256 MB take 10 ms and a start-up of 10 us; pageable 2.5 x
// the former.
TEST(Copies, PinnedAndPageable) {
  const Topology topology(test::nvswitch_cluster("a100-sxm-80gb", 1, 300, 25));
  const HardwareModel model(topology, Job{.stack = "default"}, test::data_folder());
  const Bytes bytes(256'000'000);
  EXPECT_NEAR(model.copy(CopyKind::HostToDevice, bytes, true, GpuId(3)).time.value, 10.01e-3, 1e-9);
  EXPECT_NEAR(model.copy(CopyKind::DeviceToHost, bytes, false, GpuId(3)).time.value, 25.01e-3,
              1e-9);
}

// Every kernel kind has a finite, positive price and names its model and class.
TEST(HardwareModel, PricesEveryKernelKind) {
  const Topology topology(test::nvswitch_cluster("h100-sxm-80gb", 1, 450, 50));
  const HardwareModel model(topology, Job{.stack = "default"}, test::data_folder());
  for (int k = 0; k < static_cast<int>(OpKind::AllReduce); ++k) {
    Op op{.kind = static_cast<OpKind>(k), .dtype = DType::Bf16, .out = DType::Bf16};
    op.attention = AttentionKernel::Flash2;
    op.dims = {64, 64, 64, 64, 64, 64};
    if (is_convolution(op.kind)) op.filter = {3, 3, 1, 1, 1, 1};
    op.flops = Flops(1e9);
    const Cost cost = model.kernel(op, Bytes(1 << 20), Bytes(1 << 20), DeviceKindId(0));
    EXPECT_GT(cost.time.value, 0) << k;
    EXPECT_TRUE(std::isfinite(cost.time.value)) << k;
    EXPECT_LT(cost.low, 1.0) << k;
    EXPECT_GT(cost.high, 1.0) << k;
    EXPECT_STRNE(cost.model, "") << k;
    EXPECT_STRNE(cost.op_class, "") << k;
  }
}

// Head sizes 192 and 128 of latent attention: a forward tile takes 2 x 128 x 128 x (192 + 128)
// FLOPs, 5/6 of what it takes with 192 twice; backward 2 x 128 x 128 x (3 x 192 + 2 x 128), 13/15.
TEST(FlashAttention, CountsSmallerValues) {
  Device device = round_device();
  device.attention.start_up = Seconds(0.0);
  const auto compute = [&](OpKind kind, std::int32_t values) {
    const Op op{.kind = kind,
                .dtype = DType::Bf16,
                .causal = true,
                .attention = AttentionKernel::Flash2,
                .value_size = values,
                .dims = {1, 128, 128, 4096, 4096, 192}};
    return flash_cost(device, op, Bytes(0)).term(Term::Compute).value;
  };
  EXPECT_NEAR(compute(OpKind::FlashForward, 128) / compute(OpKind::FlashForward, 0), 5.0 / 6, 1e-9);
  EXPECT_NEAR(compute(OpKind::FlashBackward, 128) / compute(OpKind::FlashBackward, 0), 13.0 / 15,
              1e-9);
}

// A window of 128 keys: 32 rows of tiles see 2 tiles each, the first one, of 32 x 33 / 2 = 528.
TEST(FlashAttention, SkipsTilesBeforeAWindow) {
  const Device device = round_device();
  const auto compute = [&](std::int32_t window) {
    const Op op{.kind = OpKind::FlashForward,
                .dtype = DType::Bf16,
                .causal = true,
                .attention = AttentionKernel::Flash2,
                .window = window,
                .dims = {1, 8, 8, 4096, 4096, 128}};
    return flash_cost(device, op, Bytes(0)).term(Term::Compute).value;
  };
  EXPECT_NEAR(compute(128) / compute(0), 63.0 / 528, 1e-9);
  EXPECT_EQ(compute(4096), compute(0));
}

}  // namespace
}  // namespace gputwin
