// Codecs and chunks are taken only where they win.
#include "strategies/passes/choose.h"

#include <gtest/gtest.h>

#include <numeric>

#include "strategies/passes/compress.h"
#include "tests/support/small_cluster.h"
#include "tests/support/table_cost_model.h"
#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

// Rings at 1 GB/s without latency; kernels free but for encoding and decoding.
struct WireCosts final : CostModel {
  test::TableCostModel table;
  double codec_seconds = 0, gemm_seconds = 0;

  Cost kernel(const Op& op, Bytes, Bytes, DeviceKindId) const override {
    Cost cost;
    if (op.kind == OpKind::Encode || op.kind == OpKind::Decode) cost.time = Seconds(codec_seconds);
    if (op.kind == OpKind::Gemm) {
      cost.time = Seconds(gemm_seconds * static_cast<double>(op.dims[0]));
    }
    return cost;
  }
  Cost copy(CopyKind k, Bytes b, bool p, GpuId g) const override { return table.copy(k, b, p, g); }
  CollectiveSchedule collective(OpKind kind, Bytes bytes,
                                std::span<const GpuId> members) const override {
    // Every member's own links carry its parts one after the other.
    const OpKind priced = kind == OpKind::AllToAll ? OpKind::AllGather : kind;
    return table.collective(priced, bytes, members);
  }
  Interference interference(DeviceKindId) const override { return {}; }
  HostCost host(DeviceKindId) const override { return {}; }
  MemoryCost memory(DeviceKindId, std::span<const std::int32_t>) const override { return {}; }
};

WireCosts wires() {
  WireCosts costs;
  costs.table.rate_cap = BytesPerSecond(1e9);
  return costs;
}

// Hidden 1,024 over tp 4.
Transformer wide_gpt() {
  Transformer m = tiny_gpt();
  m.hidden = 1024;
  m.head_dim = 256;
  return m;
}

PassChoice choice(const WireCosts& costs, const Layout& layout) {
  const Cluster cluster = test::small_cluster({.gpus = 4});
  const Topology topology(cluster);
  auto outcome = choose_passes(wide_gpt(), cluster, layout, tiny_job(8),
                               {.costs = &costs, .topology = &topology});
  return std::get<PassChoice>(outcome);
}

Layout coded(const Codec& codec, CompressedSum sum) {
  Layout l;
  l.tp = 4;
  l.micro_batch = 4;
  l.compression = {.forward = codec, .backward = codec, .sum = sum};
  return l;
}

// A ring moves 2 (t - 1) / t N h e, the gather (t - 1) P: it pays below P / (N h e) = 2 / t = 0.5.
// A token of 1,024 takes 2,048 B; in 7 bits 896 + 8 = 904 B, 0.441; in 8 bits 1,032 B, 0.504.
TEST(Choose, GatherSumPaysBelowTwoOverT) {
  const auto pays = [](std::int32_t bits) {
    const PassChoice c =
        choice(wires(), coded({.kind = CodecKind::Pwq, .bits = bits}, CompressedSum::Gather));
    return c.chosen_seconds < c.blocking_seconds;
  };
  EXPECT_TRUE(pays(7));
  EXPECT_FALSE(pays(8));
}

// Two steps move P in place of N h e, whatever t: 8 bits save 0.496 of the wire time, as long as
// encoding and decoding (four kernels for each of the 4 sums of a layer) take less than that.
TEST(Choose, TwoStepPaysWhileItSavesMoreThanItsKernelsTake) {
  WireCosts costs = wires();
  const Layout l = coded({.kind = CodecKind::Pwq, .bits = 8}, CompressedSum::TwoStep);
  const PassChoice free = choice(costs, l);
  const double saved = free.blocking_seconds - free.chosen_seconds;
  EXPECT_NEAR(free.chosen_seconds / free.blocking_seconds, 1032.0 / 2048.0, 1e-9);
  costs.codec_seconds = 0.9 * saved / 16;
  EXPECT_LT(choice(costs, l).chosen_seconds, free.blocking_seconds);
  costs.codec_seconds = 1.1 * saved / 16;
  EXPECT_GT(choice(costs, l).chosen_seconds, free.blocking_seconds);
}

TEST(Choose, NeverTakesACodecThatLosesOrErrsTooMuch) {
  WireCosts costs = wires();
  Layout l = coded({}, CompressedSum::TwoStep);
  l.compression = {.search = true, .max_error = 0.9};
  EXPECT_TRUE(choice(costs, l).layout.compression.on());
  l.compression.max_error = 0;
  EXPECT_FALSE(choice(costs, l).layout.compression.on());
  l.compression.max_error = 0.9;
  costs.codec_seconds = 10;
  const PassChoice none = choice(costs, l);
  EXPECT_FALSE(none.layout.compression.on());
  EXPECT_DOUBLE_EQ(none.chosen_seconds, none.blocking_seconds);
}

// Two replicas of two stages: gradients and messages are coded where that is faster by these costs,
// each class on its own, and left alone where the code's kernels cost more than they save.
TEST(Choose, CodesGradientsAndMessagesWhereTheyGain) {
  WireCosts costs = wires();
  Layout l;
  l.dp = 2;
  l.pp = 2;
  l.micro_batch = 2;
  l.compression = {.search = true, .max_error = 0.3};
  const Compression chosen = choice(costs, l).layout.compression;
  EXPECT_TRUE(chosen.on_gradients());
  EXPECT_TRUE(chosen.on_messages());
  EXPECT_FALSE(chosen.on_layers());
  l.compression.max_error = 0;
  EXPECT_FALSE(choice(costs, l).layout.compression.on());
  l.compression.max_error = 0.3;
  l.pp = 1;
  l.dp = 4;
  EXPECT_FALSE(choice(costs, l).layout.compression.on_messages());
  l.zero = 2;
  EXPECT_TRUE(compress_refusal(wide_gpt(), l, tiny_job(8)).has_value());
  l.zero = 0;
  costs.codec_seconds = 10;
  EXPECT_FALSE(choice(costs, l).layout.compression.on());
}

// Compute as long as communication: chunks win, by no more than the bound; without compute nothing
// is there to hide under.
TEST(Choose, CutsWhereThereIsSomethingToHideUnder) {
  WireCosts costs = wires();
  Layout l;
  l.tp = 4;
  l.micro_batch = 8;
  l.chunk_overlap = {.max_chunks = 4};
  EXPECT_EQ(choice(costs, l).layout.chunk_overlap.forward.size(), 1u);
  costs.gemm_seconds = 1e-6;
  const PassChoice split = choice(costs, l);
  EXPECT_GT(split.layout.chunk_overlap.forward.size(), 1u);
  EXPECT_LT(split.chosen_seconds, split.blocking_seconds);
  EXPECT_LE(split.blocking_seconds / split.chosen_seconds, 2.0);
}

// One sample of 4 tokens: the same, with the same chunks of tokens both ways.
TEST(Choose, CutsOneSequenceAlikeBothWays) {
  WireCosts costs = wires();
  costs.gemm_seconds = 1e-6;
  Layout l;
  l.tp = 4;
  l.micro_batch = 1;
  l.chunk_overlap = {.max_chunks = 4, .split = ChunkSplit::Auto};
  for (const bool equal : {false, true}) {
    l.chunk_overlap.equal = equal;
    const PassChoice split = choice(costs, l);
    const ChunkOverlap& chunks = split.layout.chunk_overlap;
    EXPECT_GT(chunks.forward.size(), 1u);
    EXPECT_EQ(chunks.forward, chunks.backward);
    EXPECT_EQ(std::accumulate(chunks.forward.begin(), chunks.forward.end(), 0), 4);
    EXPECT_LT(split.chosen_seconds, split.blocking_seconds);
  }
  costs.gemm_seconds = 0;
  l.chunk_overlap.equal = false;
  EXPECT_EQ(choice(costs, l).layout.chunk_overlap.forward, (std::vector<std::int64_t>{4}));
}

// 259 tokens, which 7 and 37 divide, are cut after a tile of 128, asked for or searched.
TEST(Choose, CutsASequenceThatNoCountDivides) {
  WireCosts costs = wires();
  costs.gemm_seconds = 1e-6;
  Layout l;
  l.tp = 4;
  l.micro_batch = 1;
  Job job = tiny_job(8);
  job.sequence = 259;
  Transformer model = wide_gpt();
  model.max_positions = 259;
  const Cluster cluster = test::small_cluster({.gpus = 4});
  const Topology topology(cluster);
  for (const bool equal : {false, true}) {
    l.chunk_overlap = {.max_chunks = 4, .equal = equal, .split = ChunkSplit::Sequence};
    auto outcome = choose_passes(model, cluster, l, job, {.costs = &costs, .topology = &topology});
    const auto& split = std::get<PassChoice>(outcome);
    EXPECT_EQ(split.layout.chunk_overlap.forward, (std::vector<std::int64_t>{128, 131}));
    EXPECT_EQ(split.layout.chunk_overlap.backward, split.layout.chunk_overlap.forward);
    EXPECT_LT(split.chosen_seconds, split.blocking_seconds);
  }
}

}  // namespace
}  // namespace gputwin
