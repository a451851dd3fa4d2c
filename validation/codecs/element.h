// Elements of 16 and 32 bits as bit patterns, converted exactly, alike on processor and GPU.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "validation/codecs/row_code.h"

namespace gputwin::codecs {

enum class Element : std::uint8_t { Bf16, Fp16, Fp32 };

constexpr std::int64_t bytes_of(Element e) { return e == Element::Fp32 ? 4 : 2; }

GPUTWIN_ON_BOTH inline float float_of_bits(std::uint32_t bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

GPUTWIN_ON_BOTH inline std::uint32_t bits_of_float(float v) {
  std::uint32_t bits;
  memcpy(&bits, &v, 4);
  return bits;
}

GPUTWIN_ON_BOTH inline float from_bf16(std::uint16_t v) {
  return float_of_bits(static_cast<std::uint32_t>(v) << 16);
}

/// Exact, subnormal numbers included: the exponent's offset is made up by a power of two.
GPUTWIN_ON_BOTH inline float from_fp16(std::uint16_t v) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(v & 0x7fff) << 13;
  const std::uint32_t special =
      magnitude >= 0x0f800000u ? 0x7f800000u | (magnitude & 0x7fffffu) : 0;
  const std::uint32_t scaled = bits_of_float(float_of_bits(magnitude) * 0x1p112F);
  const std::uint32_t sign = static_cast<std::uint32_t>(v & 0x8000) << 16;
  return float_of_bits((special != 0 ? special : scaled) | sign);
}

/// Nearest, ties to even; NaN stays NaN.
GPUTWIN_ON_BOTH inline std::uint16_t to_bf16(float v) {
  const std::uint32_t bits = bits_of_float(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

}  // namespace gputwin::codecs
