// The head of a report.
#include "sim/app/describe.h"

#include <gtest/gtest.h>

#include "tests/unit/app/shipped_scenarios.h"

namespace gputwin {
namespace {

TEST(Describe, Flagship) {
  const ReportContext c = describe(load_scenario(test::kFlagship, {}, test::data_dirs()));
  EXPECT_TRUE(
      c.job.starts_with("gpt3_175b (174.6 B parameters), sequence 2,048, global batch "
                        "1,536, f"))
      << c.job;
  EXPECT_TRUE(c.job.ends_with("unfused attention, megatron-lm-2021")) << c.job;
  EXPECT_EQ(c.cluster, "a100_128x8: 128 x 8 a100-sxm-80gb, infiniband");
  EXPECT_EQ(c.layout, "tp 8, pp 16, dp 8, 1f1b, micro-batch 1, recompute full");
  EXPECT_EQ(c.gpus, 1024);
  EXPECT_NE(c.flops_convention.find("causal"), std::string::npos);
}

// One node has no fabric to name, one stage no schedule; sp, zero and chunks are named where used.
TEST(Describe, NamesWhatIsUsedOnly) {
  const auto layout = [](const char* run) {
    return describe(load_scenario(run, {}, test::data_dirs())).layout;
  };
  EXPECT_EQ(layout("llama2_7b__a100_1x8__tp1_pp1_dp8_zero1"),
            "tp 1, pp 1, dp 8 (zero 1), micro-batch 1, recompute none");
  EXPECT_EQ(layout("gpt3_175b__a100_8x8__tp8_pp8_dp1_sp_selective"),
            "tp 8 with sp, pp 8 x 3 chunks, dp 1, interleaved, micro-batch 1, recompute selective");
  const Scenario one = load_scenario("gpt2_124m__a100_1x8__tp1_pp1_dp8", {}, test::data_dirs());
  EXPECT_EQ(describe(one).cluster, "a100_1x8: 1 x 8 a100-sxm-80gb");
}

}  // namespace
}  // namespace gputwin
