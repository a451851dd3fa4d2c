#include "hwmodels/kernels/attention_shape.h"

#include <gtest/gtest.h>

#include "tests/unit/hwmodels/world.h"

namespace gputwin {
namespace {

// 100 SMs of 1 TFLOP/s and 16 exponentials a clock of 1 GHz each. A tile of 128 x 128 elements
// with head size 128: 2 x 16384 x 256 FLOPs = 8.388608 us, and 16384 exponentials = 1.024 us.
Device round_device(Architecture architecture) {
  Device device;
  device.architecture = architecture;
  device.sms = 100;
  device.clock_MHz = 1000;
  device.peak[static_cast<std::size_t>(DType::Bf16)] = FlopsPerSecond(100e12);
  device.memory_bandwidth = BytesPerSecond(1e12);
  return device;
}

constexpr double kProducts = 8.388608e-6, kExponentials = 1.024e-6;

AttentionShape one_tile(std::int64_t heads) {
  AttentionShape shape;
  shape.queries = shape.keys = 128;
  shape.heads = shape.kv_heads = heads;
  shape.causal = false;
  return shape;
}

TEST(AttentionShape, OneHeadTakesOneSmForItsTile) {
  const Device device = round_device(Architecture::Ampere);
  EXPECT_NEAR(estimate(device, one_tile(1)).compute_s, kProducts + kExponentials, 1e-12);
}

TEST(AttentionShape, HeadsBeyondTheSmsTakeTurns) {
  const Device device = round_device(Architecture::Ampere);
  EXPECT_NEAR(estimate(device, one_tile(200)).compute_s, 2 * (kProducts + kExponentials), 1e-12);
}

TEST(AttentionShape, BackwardHasFiveProductsAndOneExponential) {
  const Device device = round_device(Architecture::Ampere);
  AttentionShape shape = one_tile(200);
  shape.phase = AttentionShape::Phase::Backward;
  EXPECT_NEAR(estimate(device, shape).compute_s, 2 * (2.5 * kProducts + kExponentials), 1e-12);
}

TEST(AttentionShape, OldInstructionsReachHalfOfHopperForProductsAlone) {
  AttentionShape shape = one_tile(200);
  shape.library = attention_library("", "pyt_flash_attention");
  EXPECT_NEAR(estimate(round_device(Architecture::Hopper), shape).compute_s,
              2 * (2 * kProducts + kExponentials), 1e-12);
  EXPECT_NEAR(estimate(round_device(Architecture::Ampere), shape).compute_s,
              2 * (kProducts + kExponentials), 1e-12);
}

TEST(AttentionShape, BlackwellUltraDoublesExponentials) {
  const Device b200 = load_device(test::data_folder() / "devices" / "b200-sxm.json");
  for (const char* name : {"b300-sxm", "gb300"}) {
    const Device ultra =
        load_device(test::data_folder() / "devices" / (std::string(name) + ".json"));
    EXPECT_DOUBLE_EQ(ultra.exponentials_per_clock, 2 * b200.exponentials_per_clock) << name;
  }
}

}  // namespace
}  // namespace gputwin
