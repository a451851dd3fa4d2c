// What plans cost on a computer that runs them itself.
#include "hwmodels/processor/processor.h"

#include <gtest/gtest.h>

#include "hwmodels/device.h"
#include "hwmodels/hardware_model.h"
#include "sim/core/error.h"

namespace gputwin {
namespace {

const std::filesystem::path kHardware = std::filesystem::path(GPUTWIN_SOURCE_DIR) / "hwmodels";

/// Two ranks on two cores, links of 1 GB/s; kernels and collectives as round numbers.
struct World {
  World() {
    processor.cores = 2;
    processor.products["gemm_nt"] = {
        Seconds(1e-6), FlopsPerSecond(1e9), BytesPerSecond(4e9), BytesPerSecond(8e9), {}};
    processor.operators["add"] = {{}, {{1000, 100000}, {1e-6, 100e-6}}};
    processor.collectives["all_reduce"] = {{1000, 1000000}, {10e-6, 1000e-6}};
    processor.copies["h2d"] = {{1000, 1000000}, {5e-6, 500e-6}};
    processor.wake = Seconds(3e-6);
    processor.oversleep = Seconds(40e-6);
    node.gpus = 2;
    node.pcie.per_gpu = BytesPerSecond(1e9);
  }
  Processor processor;
  NodeType node;
};

Op gemm(std::int64_t m, std::int64_t n, std::int64_t k) {
  Op op;
  op.kind = OpKind::Gemm;
  op.trans_b = true;
  op.dims = {m, n, k};
  return op;
}

TEST(SizeCurve, IsStraightInLogarithmsAndGoesOnAtItsLastRate) {
  const SizeCurve curve{{10, 1000}, {2, 200}};
  EXPECT_DOUBLE_EQ(curve.at(100), 20);    // half way in logarithms
  EXPECT_DOUBLE_EQ(curve.at(1), 2);       // below: as the first
  EXPECT_DOUBLE_EQ(curve.at(3000), 600);  // beyond: 0.2 for each
}

// 2 x 100 x 10 x 50 = 100,000 FLOP at 1 GFLOP/s: 100 us; A and B 4 x 50 x 110 = 22,000 B at 4 GB/s:
// 5.5 us; C 4,000 B at 8 GB/s: 0.5 us, twice where it is added to; 1 us to call.
TEST(HostProduct, AddsCallArithmeticOperandsAndResult) {
  World w;
  w.node.gpus = 1;
  Op op = gemm(100, 10, 50);
  EXPECT_NEAR(processor_kernel(w.processor, w.node, op, {}, {}).time.value, 107e-6, 1e-12);
  op.accumulate = true;
  EXPECT_NEAR(processor_kernel(w.processor, w.node, op, {}, {}).time.value, 107.5e-6, 1e-12);
  w.processor.products["gemm_nt"].factor = {{1e5}, {1.2}};
  op.accumulate = false;
  EXPECT_NEAR(processor_kernel(w.processor, w.node, op, {}, {}).time.value, 1.2 * 107e-6, 1e-12);
}

// 32 heads of 2 samples: 64 products s x u over d.
TEST(HostProduct, AttentionIsOneProductForEachHead) {
  Op op;
  op.kind = OpKind::AttentionContext;
  op.dims = {2, 32, 32, 16, 24, 8};
  const ProductShape shape = host_product(op);
  EXPECT_EQ(shape.batch, 64);
  EXPECT_EQ(shape.m, 16);
  EXPECT_EQ(shape.n, 8);
  EXPECT_EQ(shape.k, 24);
}

// Four ranks on two cores each get half of one; two have one each and share caches alone.
TEST(HostKernel, RanksShareCores) {
  World w;
  Op op;
  op.kind = OpKind::Add;
  w.processor.loaded_operators = 1.1;
  const auto time = [&](std::int32_t ranks) {
    w.node.gpus = ranks;
    return processor_kernel(w.processor, w.node, op, Bytes(8000), Bytes(2000)).time.value;
  };
  EXPECT_NEAR(time(1), 10e-6, 1e-12);
  EXPECT_NEAR(time(2), 11e-6, 1e-12);
  EXPECT_NEAR(time(4), 22e-6, 1e-12);
}

// 10 us alone, a fifth more between copies; the host's Adam was measured there.
TEST(HostKernel, TakesLongerAmongCopies) {
  World w;
  w.node.gpus = 1;
  w.processor.operators["cpu_adam"] = w.processor.operators["add"];
  w.processor.among_copies_operators = 1.2;
  Op add, adam;
  add.kind = OpKind::Add;
  adam.kind = OpKind::CpuAdam;
  const auto time = [&](const Op& op) {
    return processor_kernel(w.processor, w.node, op, Bytes(8000), Bytes(2000)).time.value;
  };
  EXPECT_NEAR(time(add), 10e-6, 1e-12);
  const double alone = time(adam);
  w.processor.among_copies = true;
  EXPECT_NEAR(time(add), 12e-6, 1e-12);
  EXPECT_EQ(time(adam), alone);
}

// 2 x 3 x 5 rows of 100 ns beside the curve's 10 us for 10,000 bytes.
TEST(HostKernel, SoftmaxPaysForItsRows) {
  World w;
  w.node.gpus = 1;
  w.processor.operators["softmax_forward.full"] = {Seconds(100e-9), {{1000, 100000}, {1e-6, 1e-4}}};
  Op op;
  op.kind = OpKind::SoftmaxForward;
  op.dims = {2, 3, 5, 7};
  EXPECT_NEAR(processor_kernel(w.processor, w.node, op, Bytes(5000), Bytes(5000)).time.value, 13e-6,
              1e-12);
}

TEST(HostKernel, AKindThatWasNotMeasuredIsMarked) {
  World w;
  Op op;
  op.kind = OpKind::Rope;
  EXPECT_TRUE(processor_kernel(w.processor, w.node, op, Bytes(1000), {}).extrapolated);
  w.processor.operators.clear();
  EXPECT_THROW(processor_kernel(w.processor, w.node, op, Bytes(1000), {}), InputError);
}

// 1 MB between two ranks: each passes 1 MB on, 1 ms at 1 GB/s, as much as the work itself; so a
// link of 0.25 GB/s lets 4 ms pass and the end of a sleep, a fast one the work. Two wake-ups of 3
// us come on top.
TEST(HostCollective, TakesTheLongerOfWorkAndLink) {
  World w;
  const Bytes size(1000000);
  const auto time = [&](double gigabytes) {
    w.node.pcie.per_gpu = BytesPerSecond(gigabytes * 1e9);
    const CollectiveSchedule s =
        processor_collective(w.processor, w.node, OpKind::AllReduce, size, 2);
    EXPECT_EQ(s.edges.size(), 2u);
    EXPECT_EQ(s.edges[0].bytes.value, 1000000);
    return s.latency.value + 1e6 / (gigabytes * 1e9);
  };
  EXPECT_NEAR(time(0.25), 6e-6 + 40e-6 + 4e-3, 1e-9);
  EXPECT_NEAR(time(100), 6e-6 + 1e-3, 1e-9);
  EXPECT_TRUE(processor_collective(w.processor, w.node, OpKind::AllReduce, size, 1).edges.empty());
}

TEST(HostCopy, TakesTheLongerOfWorkAndLink) {
  World w;
  const Bytes size(1000000);
  w.node.gpus = 1;
  EXPECT_NEAR(processor_copy(w.processor, w.node, CopyKind::HostToDevice, size).time.value,
              6e-6 + 40e-6 + 1e-3, 1e-9);
  w.node.pcie.per_gpu = BytesPerSecond(100e9);
  EXPECT_NEAR(processor_copy(w.processor, w.node, CopyKind::HostToDevice, size).time.value,
              6e-6 + 500e-6, 1e-9);
}

TEST(HostDevice, TheShippedOneHasACurveForWhatTransformersDo) {
  const Device device = load_device(kHardware / "devices" / "host-cpu.json");
  ASSERT_TRUE(device.processor);
  for (const char* layout : {"gemm_nt", "gemm_nn", "gemm_tn"}) {
    EXPECT_TRUE(device.processor->products.contains(layout)) << layout;
  }
  EXPECT_FALSE(device.processor->operators.empty());
}

}  // namespace
}  // namespace gputwin
