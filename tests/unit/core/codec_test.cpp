// Bytes of payloads and the errors to expect.
#include "sim/core/codec.h"

#include <gtest/gtest.h>

#include "sim/core/codecs.h"

namespace gputwin {
namespace {

double ratio(const Codec& codec) {
  return static_cast<double>(payload_bytes(codec, 16, 4096).value) / (16 * 4096 * 2.0);
}

// [k q + min(h, k 12) + 64] / (16 h) at h = 4,096, k = ceil(rho h).
TEST(Codec, RatiosOfTheFormula) {
  EXPECT_DOUBLE_EQ(ratio({CodecKind::TopkPwq, 0.1, 8}), (410 * 8 + 4096 + 64) / (16 * 4096.0));
  EXPECT_DOUBLE_EQ(ratio({CodecKind::TopkPwq, 0.1, 4}), (410 * 4 + 4096 + 64) / (16 * 4096.0));
  EXPECT_DOUBLE_EQ(ratio({CodecKind::TopkPwq, 0.05, 8}), (205 * 20 + 64 + 4) / (16 * 4096.0));
  EXPECT_NEAR(ratio({CodecKind::TopkPwq, 0.1, 8}), 0.114, 0.0005);
  EXPECT_NEAR(ratio({CodecKind::TopkPwq, 0.1, 4}), 0.089, 0.0005);
  EXPECT_NEAR(ratio({CodecKind::TopkPwq, 0.3, 8}), 0.21, 0.005);
  EXPECT_DOUBLE_EQ(ratio({CodecKind::TopkPwq, 1.0, 4}), (4 * 4096 + 64) / (16 * 4096.0));
}

// A bitmap from rho > 1/12 on; none where all values go.
TEST(Codec, IndicesAreTheCheaperOfListAndBitmap) {
  EXPECT_EQ(position_bits(341, 4096), 341 * 12);
  EXPECT_EQ(position_bits(342, 4096), 4096);
  EXPECT_EQ(position_bits(4096, 4096), 0);
  EXPECT_EQ(position_bits(0, 4096), 0);
  EXPECT_EQ(index_bits(1), 0);
  EXPECT_EQ(index_bits(2), 1);
  EXPECT_EQ(index_bits(4097), 13);
}

TEST(Codec, KeepsTheCeilingWithoutRoundingErrors) {
  EXPECT_EQ(kept_values({CodecKind::Topk, 0.07}, 100), 7);
  EXPECT_EQ(kept_values({CodecKind::Topk, 0.071}, 100), 8);
  EXPECT_EQ(kept_values({CodecKind::Topk, 0.0}, 100), 0);
  EXPECT_EQ(kept_values({CodecKind::Pwq, 0.5, 8}, 100), 100);
}

// The largest tenth of normal values, |x| > 1.645, carries 2 (z phi(z) + Q(z)) = 0.439 of the
// energy: what is left out is 0.749 of the norm. Even steps of 2 m / 255 have error step / sqrt 12.
TEST(Codec, ErrorsOfNormalValues) {
  EXPECT_NEAR(*expected_error({CodecKind::Topk, 0.1}, 1 << 20), 0.749, 0.002);
  const double most = std::sqrt(2 * std::log(4096.0));
  EXPECT_NEAR(*expected_error({CodecKind::Block, 1.0, 8}, 4096), 2 * most / 255 / std::sqrt(12.0),
              1e-9);
  EXPECT_LT(*expected_error({CodecKind::Pwq, 1.0, 8}, 4096),
            *expected_error({CodecKind::Pwq, 1.0, 4}, 4096));
  EXPECT_EQ(*expected_error({}, 4096), 0.0);
  EXPECT_FALSE(expected_error({.kind = CodecKind::LowRank, .rank = 4}, 4096).has_value());
}

}  // namespace
}  // namespace gputwin
