#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/unit/hwmodels/world.h"

namespace gputwin {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const std::filesystem::path kStacks = test::data_folder() / "stacks";

TEST(Stacks, ShippedOnesLoad) {
  for (const std::string& name : list_json_names(kStacks)) {
    const StackChoice choice = choose_stack(kStacks, name);
    EXPECT_EQ(choice.stack.name, name);
    EXPECT_THAT(choice.note, IsEmpty());
    EXPECT_GT(choice.stack.host.launch.value, 0);
    EXPECT_EQ(choice.stack.host.queue_depth, 1024);
  }
}

TEST(Stacks, DefaultChangesNothing) {
  const Stack stack = choose_stack(kStacks, "default").stack;
  EXPECT_EQ(stack.factor(Factor::Gemm), 1.0);
  EXPECT_EQ(stack.factor(Factor::MemoryBound), 1.0);
  EXPECT_EQ(stack.factor(Factor::CollectiveInNode), 1.0);
  EXPECT_FALSE(stack.nvls);
}

const std::vector<std::string> kNames{"a-b",     "a-b-2026",        "default",   "lm-2020",
                                      "lm-2022", "lm-x-1.1.5-deep", "lm-x-2021", "nemo"};

// The longest name after which the stack ends or goes on with "-" or ".".
TEST(StackFamilies, AreTheLongestPrefix) {
  EXPECT_EQ(stack_family(kNames, "a-b"), "a-b");
  EXPECT_EQ(stack_family(kNames, "a-b-0.12"), "a-b");
  EXPECT_EQ(stack_family(kNames, "a-b-2026-23e00ed0"), "a-b-2026");
  EXPECT_EQ(stack_family(kNames, "a-b.1"), "a-b");
  EXPECT_EQ(stack_family(kNames, "a-bc"), "");
  EXPECT_EQ(stack_family(kNames, "a"), "");
  EXPECT_EQ(stack_family(kNames, "nemo-24.07"), "nemo");
}

// Names that share the text before the last "-", else before an earlier one; one word in common
// counts only where it is all there is before the last "-".
TEST(StackFamilies, UnknownOnesHaveANearestOne) {
  EXPECT_EQ(nearest_stack_family(kNames, "lm-x-2019"), "lm-x-2021");
  EXPECT_EQ(nearest_stack_family(kNames, "lm-x-2022-04"), "lm-x-2021");
  EXPECT_EQ(nearest_stack_family(kNames, "lm-2019"), "lm-2020");
  EXPECT_EQ(nearest_stack_family(kNames, "lm-y-2019"), "default");
  EXPECT_EQ(nearest_stack_family(kNames, "torch"), "default");
}

// An unknown year of a known family takes the nearest year; an unknown family takes the default.
// Both say so, and their times may be further off.
TEST(Stacks, UnknownOnesUseTheirFamilyAndSaySo) {
  const StackChoice year = choose_stack(kStacks, "megatron-lm-2019");
  EXPECT_THAT(year.stack.name, HasSubstr("megatron-lm-202"));
  EXPECT_THAT(year.note, HasSubstr("megatron-lm-2019"));
  EXPECT_GT(year.deviation, 0.05);
  const StackChoice other = choose_stack(kStacks, "nobody-knows-2025");
  EXPECT_EQ(other.stack.name, "default");
  EXPECT_THAT(other.note, HasSubstr("\"default\""));
  EXPECT_EQ(other.deviation, year.deviation);
}

TEST(Stacks, VersionsOfAFamilyNeedNoNote) {
  const StackChoice month = choose_stack(kStacks, "megatron-lm-2021-04");
  EXPECT_EQ(month.stack.name, "megatron-lm-2021");
  EXPECT_THAT(month.note, IsEmpty());
  EXPECT_EQ(month.deviation, 0);
  EXPECT_EQ(choose_stack(kStacks, "megatron-core-2026-23e00ed0").stack.name, "megatron-core-2026");
  EXPECT_EQ(choose_stack(kStacks, "megatron-core-0.12").stack.name, "megatron-core");
}

// A folder of one stack, twice as slow in memory-bound kernels, four times on Hopper.
class OwnStack : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    std::filesystem::copy(test::data_folder(), folder_, std::filesystem::copy_options::recursive);
    std::ofstream(folder_ / "stacks" / "slow.json") << R"({"name": "slow", "like": "default",
      "factors": {"memory_bound_time": {"value": 2, "source": "a test", "kind": "assumed"}},
      "factors_on": {"hopper": {
        "memory_bound_time": {"value": 4, "source": "a test", "kind": "assumed"}}}})";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Time of a memory-bound kernel on `device` under `stack`.
  double add_time(const char* device, const char* stack) const {
    const Topology topology(test::nvswitch_cluster(device, 1, 300, 25));
    Job job;
    job.stack = stack;
    const HardwareModel model(topology, job, folder_);
    EXPECT_THAT(model.notes(), IsEmpty());
    const Op op{.kind = OpKind::Add, .dtype = DType::F16, .out = DType::F16};
    const Bytes mib(1 << 20);
    return model.kernel(op, mib, mib, DeviceKindId(0)).time.value;
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("hwmodels_") + testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(OwnStack, ScalesTheKernelsItNames) {
  EXPECT_DOUBLE_EQ(add_time("a100-sxm-80gb", "slow"), 2 * add_time("a100-sxm-80gb", "default"));
}

TEST_F(OwnStack, FactorsOfAnArchitectureReplaceTheGeneralOnes) {
  EXPECT_DOUBLE_EQ(add_time("h100-sxm-80gb", "slow"), 4 * add_time("h100-sxm-80gb", "default"));
}

}  // namespace
}  // namespace gputwin
