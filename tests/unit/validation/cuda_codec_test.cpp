// The GPU's payloads and values are the processor's. Skipped without a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "validation/codecs/cuda_codec.h"

namespace gputwin::codecs {
namespace {

// Tokens: normal values, whole numbers with many ties, one value, zeros, denormal numbers, a NaN.
std::vector<float> tokens_of(std::int64_t width) {
  std::mt19937 bits(7);
  std::normal_distribution<float> normal;
  std::vector<float> x;
  for (int t = 0; t < 6; ++t) {
    for (std::int64_t i = 0; i < width; ++i) {
      const float v = normal(bits);
      const float all[] = {v, std::round(2 * v), -2.5F, 0.0F, v * 1e-41F, v};
      x.push_back(all[t]);
    }
  }
  x.back() = std::numeric_limits<float>::quiet_NaN();
  return x;
}

void expect_as_on_the_processor(const Codec& codec, Element element, const void* x,
                                std::size_t size, std::int64_t tokens, std::int64_t width) {
  std::vector<std::uint8_t> expected(payload_bytes(codec, tokens, width).value), got(expected);
  encode(codec, {x, element, tokens, width}, expected);
  DeviceBytes input(size), payload(expected.size()), output(4 * tokens * width);
  input.from_host(x);
  auto* bytes = static_cast<std::uint8_t*>(payload.data());
  cuda_encode(codec, {input.data(), element, tokens, width}, bytes);
  payload.to_host(got.data());
  EXPECT_EQ(got, expected);
  std::vector<float> values(tokens * width), on_gpu(values);
  decode(codec, expected, element, tokens, width, values.data());
  cuda_decode(codec, bytes, element, tokens, width, static_cast<float*>(output.data()));
  output.to_host(on_gpu.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_TRUE(on_gpu[i] == values[i] || (std::isnan(on_gpu[i]) && std::isnan(values[i]))) << i;
  }
}

TEST(CudaCodec, GivesTheBytesOfTheProcessor) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const Codec codecs[] = {{},
                          {CodecKind::TopkPwq, 0.1, 8, 0},
                          {CodecKind::TopkPwq, 0.02, 5, 0},
                          {CodecKind::TopkPwq, 0, 8, 0},
                          {CodecKind::TopkPwq, 1, 2, 0},
                          {CodecKind::Topk, 0.3, 16, 0},
                          {CodecKind::Pwq, 1, 4, 0},
                          {CodecKind::Block, 1, 8, 0},
                          {CodecKind::Block, 1, 4, 0}};
  for (const std::int64_t width : {1, 65, 1000, 4096}) {
    const std::vector<float> x = tokens_of(width);
    std::vector<std::uint16_t> halves;
    for (const float v : x) halves.push_back(to_bf16(v));
    for (const Codec& codec : codecs) {
      expect_as_on_the_processor(codec, Element::Fp32, x.data(), 4 * x.size(), 6, width);
      expect_as_on_the_processor(codec, Element::Bf16, halves.data(), 2 * x.size(), 6, width);
      expect_as_on_the_processor(codec, Element::Fp16, halves.data(), 2 * x.size(), 6, width);
    }
  }
}

}  // namespace
}  // namespace gputwin::codecs
