// Bytes of number formats, scale factors included.
#include "sim/core/job.h"

#include <gtest/gtest.h>

#include "sim/core/op.h"

namespace gputwin {
namespace {

// 64 numbers: MX keeps a byte per 32 of them, NVFP4 a byte per 16 beside half a byte each.
TEST(Formats, StoreScalesOfHardwareBlocks) {
  EXPECT_EQ(stored_bytes(DType::Bf16, 64), 128);
  EXPECT_EQ(stored_bytes(DType::F8, 64), 64);
  EXPECT_EQ(stored_bytes(DType::Mxf8, 64), 64 + 2);
  EXPECT_EQ(stored_bytes(DType::Nvf4, 64), 32 + 4);
  EXPECT_EQ((View{.rows = 4, .cols = 16, .ld = 16, .dtype = DType::Mxf8}).bytes().value, 66);
}

TEST(Formats, HaveAUsualRecipe) {
  EXPECT_EQ(usual_recipe(DType::F8), Recipe::Delayed);
  EXPECT_EQ(usual_recipe(DType::Mxf8), Recipe::Mx);
  EXPECT_EQ(usual_recipe(DType::Nvf4), Recipe::Nvfp4);
  EXPECT_EQ(usual_recipe(DType::Bf16), Recipe::None);
}

}  // namespace
}  // namespace gputwin
