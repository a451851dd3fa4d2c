// Codecs at hand-worked points: sizes by the formula, the grid, PowerSGD on a matrix of low rank.
#include <gtest/gtest.h>

#include <cmath>

#include "sim/core/check.h"
#include "validation/codecs/cpu_codec.h"
#include "validation/codecs/low_rank.h"

namespace gputwin::codecs {
namespace {

std::vector<std::uint8_t> encoded(const Codec& codec, const std::vector<float>& x,
                                  std::int64_t width) {
  const std::int64_t tokens = static_cast<std::int64_t>(x.size()) / width;
  std::vector<std::uint8_t> payload(payload_bytes(codec, tokens, width).value);
  encode(codec, {x.data(), Element::Fp32, tokens, width}, payload);
  return payload;
}

std::vector<float> through(const Codec& codec, const std::vector<float>& x, std::int64_t width) {
  const std::vector<std::uint8_t> payload = encoded(codec, x, width);
  std::vector<float> out(x.size());
  decode(codec, payload, Element::Fp32, static_cast<std::int64_t>(x.size()) / width, width,
         out.data());
  return out;
}

// h = 4096 in 16 bits: 65,536 bits. k = 410 of q = 8: 3,280 + min(4096, 410 x 12 = 4,920) + 64 =
// 7,440 bits. 4 bits: 5,800. All values, 4 bits, no index: 16,448. Each token is whole bytes.
TEST(Codec, PayloadsHaveTheBytesOfTheFormula) {
  const auto share = [](Codec c) {
    return static_cast<double>(payload_bytes(c, 3, 4096).value) / (3 * 8192);
  };
  EXPECT_DOUBLE_EQ(share({CodecKind::TopkPwq, 0.1, 8, 0}), 7440.0 / 65536);   // 0.114
  EXPECT_DOUBLE_EQ(share({CodecKind::TopkPwq, 0.1, 4, 0}), 5800.0 / 65536);   // 0.089
  EXPECT_DOUBLE_EQ(share({CodecKind::TopkPwq, 1.0, 4, 0}), 16448.0 / 65536);  // 0.25
  std::vector<float> x(3 * 4096);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  for (const Codec& c :
       {Codec{CodecKind::TopkPwq, 0.1, 8, 0}, Codec{CodecKind::TopkPwq, 0.05, 5, 0},
        Codec{CodecKind::Topk, 0.3, 16, 0}, Codec{CodecKind::Pwq, 1, 4, 0}}) {
    std::vector<std::uint8_t> payload(payload_bytes(c, 3, 4096).value + 1, 0xa5);
    encode(c, {x.data(), Element::Fp32, 3, 4096}, std::span(payload).first(payload.size() - 1));
    EXPECT_EQ(payload.back(), 0xa5);  // nothing is written behind
    EXPECT_THROW(encode(c, {x.data(), Element::Fp32, 3, 4096}, payload), InvariantBroken);
  }
}

// Four bits over 0 .. 15 evenly: the whole numbers themselves.
TEST(Codec, EvenGridHasItsEnds) {
  std::vector<float> x;
  for (int i = 0; i < 16; ++i) x.push_back(static_cast<float>(i));
  EXPECT_EQ(through({CodecKind::Block, 1, 4, 0}, x, 16), x);
}

// 63 values within 1 and one of 100, four bits: breaks at 1 / 32 and 2 / 32 of the top are expected
// to cost 63 x 3^2 + (31 x 4)^2 = 15,943 and 63 x 6^2 + (30 x 4)^2 = 16,668, so the first is taken;
// inner steps are 100 / 32 / 4, where an even grid has steps of 101 / 15.
TEST(Codec, PiecewiseGridFollowsTheBulk) {
  std::vector<float> x;
  for (int i = 0; i < 63; ++i) x.push_back(static_cast<float>(i % 2 == 0 ? i : -i) / 63);
  x.push_back(100);
  const std::vector<float> piecewise = through({CodecKind::Pwq, 1, 4, 0}, x, 64);
  for (int i = 0; i < 63; ++i) EXPECT_NEAR(piecewise[i], x[i], 100.0 / 32 / 4 / 2 + 1e-6);
  EXPECT_EQ(piecewise[63], 100.0F);
  EXPECT_LT(relative_square_error(x, piecewise),
            relative_square_error(x, through({CodecKind::Block, 1, 4, 0}, x, 64)));
}

// Of 3, -3, 3, 1 the first two of the largest are kept.
TEST(Codec, TheFirstOfEqualsIsKept) {
  EXPECT_EQ(through({CodecKind::TopkPwq, 0.5, 8, 0}, {3, -3, 3, 1}, 4),
            (std::vector<float>{3, -3, 0, 0}));
}

TEST(Codec, SaysWhyItDoesNotFit) {
  EXPECT_EQ(unfit({CodecKind::Pwq, 1, 8, 0}, 64), "");
  EXPECT_NE(unfit({CodecKind::Pwq, 1, 1, 0}, 64), "");
  EXPECT_NE(unfit({CodecKind::Topk, 0.1, 8, 0}, 64), "");
  EXPECT_NE(unfit({CodecKind::LowRank, 1, 16, 4}, 64), "");
}

// A matrix of rank 2, from two ranks whose parts sum to it: two factors of rank 2 hold it, up to
// their rounding to bf16 (2^-9 of a factor's elements).
TEST(LowRank, SumsAMatrixOfItsRank) {
  const std::int64_t tokens = 24, width = 16;
  std::vector<float> a(tokens * width), b(a.size()), sum(a.size());
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < width; ++i) {
      const auto x = static_cast<float>(t), y = static_cast<float>(i);
      a[t * width + i] = std::sin(x) * std::cos(y);
      b[t * width + i] = std::cos(2 * x) * std::sin(y + 1);
      sum[t * width + i] = a[t * width + i] + b[t * width + i];
    }
  }
  const Codec codec{CodecKind::LowRank, 1, 16, 2};
  LowRankState state_a, state_b;
  std::vector<float> left = left_factor(codec, a.data(), tokens, width, state_a);
  const std::vector<float> other = left_factor(codec, b.data(), tokens, width, state_b);
  for (std::size_t i = 0; i < left.size(); ++i) left[i] += other[i];
  orthonormalise(left, tokens, 2);
  std::vector<float> right = right_factor(codec, a.data(), tokens, width, left);
  const std::vector<float> more = right_factor(codec, b.data(), tokens, width, left);
  for (std::size_t i = 0; i < right.size(); ++i) right[i] += more[i];
  std::vector<float> out(sum.size());
  low_rank_product(left, right, tokens, width, state_a, out.data());
  EXPECT_LT(relative_square_error(sum, out), 1e-4);
  EXPECT_EQ(static_cast<std::int64_t>(2 * (left.size() + right.size())),
            payload_bytes(codec, tokens, width).value);
}

}  // namespace
}  // namespace gputwin::codecs
