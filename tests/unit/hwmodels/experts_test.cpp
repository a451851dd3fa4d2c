// Factors of a release's kernels around experts, and grouped products.
#include "hwmodels/experts.h"

#include <gtest/gtest.h>

#include "hwmodels/constants_file.h"
#include "tests/unit/hwmodels/world.h"

namespace gputwin {
namespace {

const std::filesystem::path kExperts = test::data_folder() / "stacks" / "experts";

TEST(Experts, AreOnesForAStackWithoutAFile) {
  const ExpertFactors none = choose_experts(kExperts, "nobody-knows-2025");
  EXPECT_EQ(none.products, 1.0);
  EXPECT_EQ(none.rows, 1.0);
  EXPECT_EQ(none.exchange, 1.0);
  EXPECT_EQ(choose_experts(kExperts / "absent", "megatron-bridge-nemo-26.08").products, 1.0);
}

TEST(Experts, OfEveryShippedReleaseLoad) {
  for (const std::string& name : list_json_names(kExperts)) {
    const ExpertFactors f = choose_experts(kExperts, name + ".01");
    for (const double factor : {f.products, f.rows, f.exchange}) {
      EXPECT_GT(factor, 0.2) << name;
      EXPECT_LT(factor, 4.0) << name;
    }
  }
}

// A100 PCIe, 20 experts of 1,232 rows: SimuMax measured 70.7 % of 312 TFLOP/s for 3072 x 5120, and
// 60.4 % for the weight gradient.
TEST(Experts, GroupedProductsRunNearTheirMeasuredRate) {
  const Topology topology(test::nvswitch_cluster("a100-pcie-80gb", 1, 300, 25));
  Job job;
  job.stack = "generic";
  const HardwareModel model(topology, job, test::data_folder());
  const double flops = 2.0 * 20 * 1232 * 3072 * 5120;
  const auto share = [&](Op op) {
    op.kind = OpKind::GroupedGemm;
    op.dtype = DType::Bf16;
    const Bytes traffic(2 * 20 * (1232 * 5120 + 3072 * 5120 + 1232 * 3072));
    return flops / model.kernel(op, traffic, Bytes(0), DeviceKindId(0)).time.value / 312e12;
  };
  EXPECT_NEAR(share({.trans_b = true, .dims = {20, 1232, 3072, 5120}}), 0.707, 0.15);
  EXPECT_NEAR(share({.trans_a = true, .dims = {20, 3072, 5120, 1232}}), 0.604, 0.20);
}

// 100 rows of an expert are padded to a tile of 128, so 128 cost as much.
TEST(Experts, RowsArePaddedToTiles) {
  const Topology topology(test::nvswitch_cluster("h100-sxm-80gb", 1, 450, 50));
  Job job;
  job.stack = "generic";
  const HardwareModel model(topology, job, test::data_folder());
  const auto time = [&](std::int64_t rows) {
    const Op op{.kind = OpKind::GroupedGemm,
                .dtype = DType::Bf16,
                .trans_b = true,
                .dims = {8, rows, 4096, 4096}};
    return model.kernel(op, Bytes(1 << 28), Bytes(0), DeviceKindId(0)).time.value;
  };
  EXPECT_EQ(time(100), time(128));
  EXPECT_LT(time(128), time(129));
}

// 1,000 rows of 1,000 features in BF16: 24 MB in F32 and 4 MB in 16 bits forward, 32 and 8
// backward, each of the kernels after the one before.
TEST(Experts, BiasesCostTheirPassesAndTheirKernels) {
  const Topology topology(test::nvswitch_cluster("h100-sxm-80gb", 1, 450, 50));
  Job job;
  job.stack = "generic";
  const HardwareModel model(topology, job, test::data_folder());
  const Device device = load_device(test::data_folder() / "devices" / "h100-sxm-80gb.json");
  const auto time = [&](bool backward, std::uint16_t launches) {
    const Op op{.kind = OpKind::ExpertBias,
                .dtype = DType::Bf16,
                .out = DType::Bf16,
                .inverse = backward,
                .launches = launches,
                .dims = {1000, 1000, 4}};
    return model.kernel(op, Bytes(1), Bytes(1), DeviceKindId(0)).time.value;
  };
  const auto expected = [&](double bytes, double kernels) {
    const MemoryBoundParameters& m = device.memory_bound;
    return kernels * m.start_up.value + bytes / (m.elementwise * device.memory_bandwidth.value);
  };
  EXPECT_NEAR(time(false, 10), expected(28e6, 10), 1e-9);
  EXPECT_NEAR(time(true, 31), expected(40e6, 31), 1e-9);
}

}  // namespace
}  // namespace gputwin
