// Random tensors through every codec: what is kept, how exactly, in how many bytes, on every path.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "validation/codecs/cpu_codec.h"

namespace gputwin::codecs {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A float by its bits: every magnitude, denormal numbers and, if asked for, NaN and infinity.
float drawn_float(bool finite) {
  const auto bits = *rc::gen::arbitrary<std::uint32_t>();
  const float v = float_of_bits(bits);
  return finite && !std::isfinite(v) ? float_of_bits(bits & 0x807fffff) : v;
}

std::vector<float> drawn_token(std::int64_t width, bool finite) {
  const int kind = *rc::gen::inRange(0, 6);
  std::vector<float> token(width);
  const float same = drawn_float(finite);
  for (float& v : token) {
    switch (kind) {
      case 0: v = 0; break;
      case 1: v = same; break;
      case 2: v = float_of_bits(*rc::gen::arbitrary<std::uint32_t>() & 0x807fffff); break;
      case 3: v = static_cast<float>(*rc::gen::inRange(-3, 4)); break;  // many ties
      case 4: v = drawn_float(finite); break;
      default: v = static_cast<float>(*rc::gen::inRange(-100000, 100000)) * 1e-4F;
    }
  }
  return token;
}

struct Case {
  Codec codec;
  std::int64_t tokens = 1, width = 1;
  std::vector<float> x;
};

Case drawn_case(bool finite) {
  Case c;
  c.width = *rc::gen::element<std::int64_t>(1, 2, 3, 31, 63, 64, 65, 100, 129, 200);
  c.tokens = *rc::gen::inRange(1, 4);
  c.codec.kind =
      *rc::gen::element(CodecKind::TopkPwq, CodecKind::Topk, CodecKind::Pwq, CodecKind::Block);
  c.codec.bits = c.codec.kind == CodecKind::Topk ? 16 : *rc::gen::inRange(2, 17);
  c.codec.keep = *rc::gen::element(0.0, 0.01, 0.1, 0.3, 0.5, 0.99, 1.0);
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const std::vector<float> token = drawn_token(c.width, finite);
    c.x.insert(c.x.end(), token.begin(), token.end());
  }
  return c;
}

std::vector<std::uint8_t> encoded(const Case& c, Path path = best_path()) {
  std::vector<std::uint8_t> payload(payload_bytes(c.codec, c.tokens, c.width).value);
  encode(c.codec, {c.x.data(), Element::Fp32, c.tokens, c.width}, payload, path);
  return payload;
}

std::vector<float> decoded(const Case& c, const std::vector<std::uint8_t>& payload,
                           Path path = best_path()) {
  std::vector<float> out(c.x.size(), 7.0F);
  decode(c.codec, payload, Element::Fp32, c.tokens, c.width, out.data(), path);
  return out;
}

// The reference: a stable sort by magnitude.
std::vector<bool> kept_of(const float* token, std::int64_t width, std::int64_t k) {
  std::vector<std::int64_t> order(width);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return std::fabs(token[a]) > std::fabs(token[b]);
  });
  std::vector<bool> kept(width);
  for (std::int64_t i = 0; i < k; ++i) kept[order[i]] = true;
  return kept;
}

// Half the widest step of the grid over the kept values, plus the rounding of the result.
double allowed_error(const Codec& codec, const float* token, const std::vector<bool>& kept,
                     float v) {
  const double ulp = std::max(std::fabs(static_cast<double>(v)) * 0x1p-23, 0x1p-149);
  if (codec.kind == CodecKind::Topk) return std::fabs(v) * 0x1p-8 + 0x1p-133;
  double least = kInfinity, most = -kInfinity, smallest = kInfinity, largest = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (!kept[i]) continue;
    const double x = token[i];
    least = std::min(least, x);
    most = std::max(most, x);
    smallest = std::min(smallest, std::fabs(x));
    largest = std::max(largest, std::fabs(x));
  }
  if (codec.kind == CodecKind::Block) {
    return (most - least) / ((1 << codec.bits) - 1) / 2 * 1.000001 + ulp;
  }
  // The low end is rounded down to a 65,535th of the top. A region of one level spans the range.
  const double range = largest - smallest + largest / 65535;
  const int levels = 1 << (codec.bits - 2);
  return range / (levels > 1 ? levels - 1 : 1) / 2 * 1.000001 + ulp;
}

RC_GTEST_PROP(Codecs, KeepTheLargestOfEveryTokenUpToAStep, ()) {
  const Case c = drawn_case(true);
  const std::vector<float> out = decoded(c, encoded(c));
  const std::int64_t k = kept_values(c.codec, c.width);
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const float* token = &c.x[t * c.width];
    const std::vector<bool> kept = kept_of(token, c.width, k);
    for (std::int64_t i = 0; i < c.width; ++i) {
      const float got = out[t * c.width + i];
      if (!kept[i]) {
        RC_ASSERT(got == 0.0F);
      } else if (c.codec.kind == CodecKind::Topk && !std::isfinite(from_bf16(to_bf16(token[i])))) {
        RC_ASSERT(std::isinf(got));  // rounds up beyond the largest bf16
      } else {
        const double error = std::fabs(static_cast<double>(got) - token[i]);
        RC_ASSERT(error <= allowed_error(c.codec, token, kept, token[i]));
      }
    }
  }
}

RC_GTEST_PROP(Codecs, GiveTheSameBytesAndValuesOnEveryPath, ()) {
  const Case c = drawn_case(false);
  const std::vector<std::uint8_t> payload = encoded(c, Path::Scalar);
  const std::vector<float> out = decoded(c, payload, Path::Scalar);
  for (const Path path : {Path::Avx2, Path::Avx512}) {
    if (!has_path(path)) continue;
    RC_ASSERT(encoded(c, path) == payload);
    const std::vector<float> other = decoded(c, payload, path);
    RC_ASSERT(std::memcmp(other.data(), out.data(), 4 * out.size()) == 0);
  }
}

RC_GTEST_PROP(Codecs, ShowOverflowWhereverATokenKeepsIt, ()) {
  Case c = drawn_case(true);
  c.tokens = 1;
  c.x.resize(c.width);
  const auto at = static_cast<std::size_t>(*rc::gen::inRange<std::int64_t>(0, c.width));
  c.x[at] = *rc::gen::element(std::nanf(""), kInfinity, -kInfinity);
  const std::vector<float> out = decoded(c, encoded(c));
  if (kept_values(c.codec, c.width) == 0) {
    RC_ASSERT(out[at] == 0.0F);
  } else {
    RC_ASSERT(!std::isfinite(out[at]));
  }
}

RC_GTEST_PROP(Codecs, ReadHalvesAsTheFloatsTheyStandFor, ()) {
  Case c = drawn_case(true);
  RC_PRE(c.codec.kind != CodecKind::Topk);
  std::vector<std::uint16_t> halves(c.x.size());
  const Element element = *rc::gen::element(Element::Bf16, Element::Fp16);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i] = *rc::gen::arbitrary<std::uint16_t>();
    c.x[i] = element == Element::Bf16 ? from_bf16(halves[i]) : from_fp16(halves[i]);
  }
  const std::vector<std::uint8_t> expected = encoded(c);
  for (const Path path : {Path::Scalar, Path::Avx2, Path::Avx512}) {
    if (!has_path(path)) continue;
    std::vector<std::uint8_t> payload(expected.size());
    encode(c.codec, {halves.data(), element, c.tokens, c.width}, payload, path);
    RC_ASSERT(payload == expected);
  }
}

RC_GTEST_PROP(Codecs, AddWhatTheyDecode, ()) {
  const Case c = drawn_case(true);
  const std::vector<std::uint8_t> payload = encoded(c);
  std::vector<float> sum(c.x.size(), 0.0F);
  accumulate(c.codec, payload, Element::Fp32, c.tokens, c.width, sum.data());
  RC_ASSERT(sum == decoded(c, payload));
}

// Values are whole numbers below 2^20, so that floats add them exactly as long as grids are whole;
// otherwise each addition rounds by at most half an ulp of what it holds.
RC_GTEST_PROP(Codecs, FeedbackConservesTheSum, ()) {
  Case c = drawn_case(true);
  const int steps = *rc::gen::inRange(1, 12);
  std::vector<float> residual;
  std::vector<double> in(c.x.size()), sent(c.x.size());
  double largest = 1;
  for (int s = 0; s < steps; ++s) {
    for (std::size_t i = 0; i < c.x.size(); ++i) {
      c.x[i] = static_cast<float>(*rc::gen::inRange(-100000, 100000));
      in[i] += c.x[i];
    }
    std::vector<std::uint8_t> payload(payload_bytes(c.codec, c.tokens, c.width).value);
    encode_with_feedback(c.codec, c.x.data(), c.tokens, c.width, residual, payload);
    const std::vector<float> out = decoded(c, payload);
    for (std::size_t i = 0; i < out.size(); ++i) {
      sent[i] += out[i];
      largest = std::max({largest, std::fabs(double{out[i]}), std::fabs(double{residual[i]})});
    }
  }
  for (std::size_t i = 0; i < in.size(); ++i) {
    RC_ASSERT(std::fabs(sent[i] + residual[i] - in[i]) <= steps * 3 * largest * 0x1p-24);
  }
}

}  // namespace
}  // namespace gputwin::codecs
