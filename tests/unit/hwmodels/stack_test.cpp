#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

// An unknown year of a known family takes the nearest year; an unknown family takes the default.
// Both say so.
TEST(Stacks, UnknownOnesUseTheirFamilyAndSaySo) {
  const StackChoice year = choose_stack(kStacks, "megatron-lm-2023");
  EXPECT_THAT(year.stack.name, HasSubstr("megatron-lm-202"));
  EXPECT_THAT(year.note, HasSubstr("megatron-lm-2023"));
  const StackChoice other = choose_stack(kStacks, "torchtitan-2025");
  EXPECT_EQ(other.stack.name, "default");
  EXPECT_THAT(other.note, HasSubstr("\"default\""));
}

TEST(Stacks, ScaleTheKernelsTheyName) {
  const Topology topology(test::nvswitch_cluster("a100-sxm-80gb", 1, 300, 25));
  Job plain, slow;
  plain.stack = "default";
  slow.stack = "megatron-deepspeed-2022";  // memory-bound kernels x 2
  const HardwareModel a(topology, plain, test::data_folder()),
      b(topology, slow, test::data_folder());
  Op op{.kind = OpKind::Add, .dtype = DType::F16, .out = DType::F16};
  const Bytes mib(1 << 20);
  EXPECT_DOUBLE_EQ(b.kernel(op, mib, mib, DeviceKindId(0)).time.value,
                   2.0 * a.kernel(op, mib, mib, DeviceKindId(0)).time.value);
  EXPECT_THAT(a.notes(), IsEmpty());
}

}  // namespace
}  // namespace gputwin
