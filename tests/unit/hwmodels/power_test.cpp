#include "hwmodels/power.h"

#include <gtest/gtest.h>

#include "hwmodels/device.h"

namespace gputwin {
namespace {

const std::filesystem::path kHardware = std::filesystem::path(GPUTWIN_SOURCE_DIR) / "hwmodels";

// A kernel of 10 us in which memory would be busy for 5 and matrix units for 2: half and a fifth of
// what each adds; a term longer than the kernel counts as the whole.
TEST(Power, FollowsTheTermsOfACost) {
  const PowerShares shares{0.2, 0.3, 0.7, 0.8};
  Cost cost;
  cost.time = Seconds(10e-6);
  cost.terms[static_cast<std::size_t>(Term::Memory)] = Seconds(5e-6);
  cost.terms[static_cast<std::size_t>(Term::Compute)] = Seconds(2e-6);
  EXPECT_NEAR(added_power(shares, cost), 0.5 * 0.7 + 0.2 * 0.8, 1e-12);
  cost.terms[static_cast<std::size_t>(Term::Memory)] = Seconds(11e-6);
  EXPECT_NEAR(added_power(shares, cost), 0.7 + 0.2 * 0.8, 1e-12);
  EXPECT_EQ(added_power(shares, Cost()), 0);
}

// Llama-2-70B decoding one sequence on 2, 4 and 8 A100 (vLLM): 69 G weights of 2 bytes read once in
// 54.9, 44.3 and 44.8 ms, of 2,039 GB/s: 0.62, 0.38 and 0.19 of it. Measured 0.736, 0.599, 0.435 of
// 400 W.
TEST(Power, IsThatOfDecodingOnA100) {
  const PowerShares shares = load_power_shares(kHardware / "power.json");
  const double measured[] = {0.736, 0.599, 0.435}, token[] = {54.9e-3, 44.3e-3, 44.8e-3};
  for (const int i : {0, 1, 2}) {
    Cost cost;
    cost.time = Seconds(token[i]);
    cost.terms[static_cast<std::size_t>(Term::Memory)] = Seconds(69e9 * 2 / (2 << i) / 2039e9);
    EXPECT_NEAR(shares.busy + added_power(shares, cost), measured[i], 0.05);
  }
}

TEST(Power, LimitsAreOfTheDataSheets) {
  EXPECT_EQ(load_device(kHardware / "devices" / "a100-sxm-80gb.json").power_limit_W, 400);
  EXPECT_EQ(load_device(kHardware / "devices" / "h800-sxm-80gb.json").power_limit_W, 700);
  EXPECT_EQ(load_device(kHardware / "devices" / "gh200.json").power_limit_W, 0);
}

}  // namespace
}  // namespace gputwin
