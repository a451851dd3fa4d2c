// A product and the collective beside it take the longer of both and one tile.
#include "strategies/passes/fused_bound.h"

#include <gtest/gtest.h>

#include "strategies/lowering/transformer.h"
#include "strategies/strategy.h"
#include "tests/support/small_cluster.h"
#include "tests/support/table_cost_model.h"
#include "tests/unit/strategies/passes/split_meaning.h"

namespace gputwin {
namespace {

// Products at 1 ns for each 64 multiplications, or what is stated; rings at a given rate.
struct PairCosts final : CostModel {
  test::TableCostModel table;

  explicit PairCosts(double rate) { table.rate_cap = BytesPerSecond(rate); }
  Cost kernel(const Op& op, Bytes, Bytes, DeviceKindId) const override {
    Cost cost;
    if (op.kind != OpKind::Gemm) return cost;
    const auto work = static_cast<double>(op.dims[0] * op.dims[1] * op.dims[2]);
    cost.time = op.stated.value > 0 ? op.stated : Seconds(work / 64 * 1e-9);
    return cost;
  }
  Cost copy(CopyKind k, Bytes b, bool p, GpuId g) const override { return table.copy(k, b, p, g); }
  CollectiveSchedule collective(OpKind kind, Bytes bytes,
                                std::span<const GpuId> members) const override {
    return table.collective(kind, bytes, members);
  }
  Interference interference(DeviceKindId) const override { return {}; }
  HostCost host(DeviceKindId) const override { return {}; }
  MemoryCost memory(DeviceKindId, std::span<const std::int32_t>) const override { return {}; }
};

Layout halves(bool sp, TpOverlap tp_overlap) {
  Layout l;
  l.tp = 2;
  l.sp = sp;
  l.micro_batch = 4;
  l.tp_overlap = tp_overlap;
  return l;
}

// All operations of the first stage's middle layer one after the other.
double layer_seconds(const Layout& layout, const CostModel& costs) {
  const Cluster cluster = test::small_cluster({.gpus = 2});
  const Topology topology(cluster);
  const StagePrices prices{&costs, &topology};
  Lowered lowered = std::get<Lowered>(lower(tiny_gpt(), cluster, layout, tiny_job(4)));
  if (layout.tp_overlap == TpOverlap::FusedBound) lowered = fused_bound(std::move(lowered), prices);
  const StageClock clock(lowered, 0, prices);
  double sum = 0;
  for (const Segment& s : lowered.stages[0].chunks[0].forward) {
    if (s.layer != 1) continue;
    for (const SegmentOp& op : s.ops) {
      const Call& call = lowered.plan.calls[op.call.value];
      sum += op.kind == Kind::Kernel ? clock.kernel(call) : clock.collective(call);
    }
  }
  return sum;
}

// 16 tokens, hidden 8, over tp 2: qkv 16 x 12 x 8 = 1,536 multiplications (24 ns), proj 16 x 8 x 4
// = 512 (8 ns), fc1 and fc2 16 x 16 x 8 = 2,048 each (32 ns): together 96 ns. All are less than a
// tile of 128 x 128, so that one tile is the whole product.
TEST(FusedBound, TakesTheLongerOfProductAndExchangeAndOneTile) {
  for (const bool sp : {false, true}) {
    // Exchanges shorter than products: each product and, if fused, its tile, the exchanges hidden.
    // Without sequence parallelism only proj and fc2 (40 ns) stand beside a sum.
    const PairCosts free(1e30);
    const double products = 96e-9, fused = sp ? 96e-9 : 40e-9;
    EXPECT_GT(layer_seconds(halves(sp, TpOverlap::None), free), products + 1e-9);
    EXPECT_NEAR(layer_seconds(halves(sp, TpOverlap::FusedBound), free), products + fused, 1e-15);
    // Exchanges longer than any product: the product's own time is gone.
    const PairCosts slow(1e6);
    EXPECT_NEAR(layer_seconds(halves(sp, TpOverlap::FusedBound), slow),
                layer_seconds(halves(sp, TpOverlap::None), slow), 1e-12);
    const double exchanges = layer_seconds(halves(sp, TpOverlap::None), slow) - products;
    EXPECT_NEAR(layer_seconds(halves(sp, TpOverlap::FusedBound), slow),
                exchanges + (products - fused) + fused, 1e-12);
  }
}

TEST(FusedBound, MeansTheSameAndSaysThatItIsABound) {
  const Job job = tiny_job(8);
  const PairCosts costs(1e9);
  for (const bool sp : {false, true}) {
    const Layout l = halves(sp, TpOverlap::FusedBound);
    auto made = make_plan(tiny_gpt(), one_node(2), l, job, nullptr, &costs);
    InterpretOptions options;
    options.generic_constants = true;
    const Results bound = interpret(std::get<Plan>(made), options);
    EXPECT_LT(worst_difference(meaning(tiny_gpt(), on_one_gpu(), job, 0), bound), 1e-9);
  }
  EXPECT_EQ(assumptions(halves(true, TpOverlap::None), job).size(), 0u);
  EXPECT_NE(assumptions(halves(true, TpOverlap::FusedBound), job).at(0).find("bound"),
            std::string::npos);
}

}  // namespace
}  // namespace gputwin
