// Codecs of compressed communication and the exact bytes of their payloads, shared by the plan and
// by the real codecs. Standard library only.
//
// A payload is one row of whole bytes per token: k values of `bits`, the cheaper of a bitmap and a
// list of indices, two F32 scales. Low rank is two factors of 16-bit elements instead.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "sim/core/units.h"

namespace gputwin {

/// TopkPwq: the largest of each token, piecewise quantised (research note, section 5); Topk: the
/// largest in 16 bits; Pwq: all, piecewise quantised; Block: all, evenly quantised; LowRank:
/// PowerSGD.
enum class CodecKind : std::uint8_t { None, TopkPwq, Topk, Pwq, Block, LowRank };

struct Codec {
  CodecKind kind = CodecKind::None;
  double keep = 1.0;       // TopkPwq, Topk: part of each token's values that is sent, 0 .. 1
  std::int32_t bits = 16;  // of one value sent
  std::int32_t rank = 0;   // LowRank

  bool operator==(const Codec&) const = default;
};

inline constexpr std::int64_t kCodecScaleBits = 64;  // per token

/// Values of a flat gradient bucket that are coded together, as a token is: 64 bits of scales for
/// 1,024 values are 0.06 bits each. Ours; ZeRO++ quantises in blocks of like size.
inline constexpr std::int64_t kGradientRow = 1024;

/// Values kept of a token of `width`: ceil(keep * width). The tolerance undoes products such as
/// 0.07 * 100 = 7.000000000000001.
inline std::int64_t kept_values(const Codec& codec, std::int64_t width) {
  const bool sparse = codec.kind == CodecKind::TopkPwq || codec.kind == CodecKind::Topk;
  if (!sparse) return width;
  const double k = std::ceil(codec.keep * static_cast<double>(width) - 1e-9);
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(k), 0, width);
}

/// Bits of one index into a token: ceil(log2 width).
constexpr std::int64_t index_bits(std::int64_t width) {
  return width <= 1 ? 0 : std::bit_width(static_cast<std::uint64_t>(width - 1));
}

/// True if a list of k indices is longer than a bitmap of the token.
constexpr bool uses_bitmap(std::int64_t k, std::int64_t width) {
  return k * index_bits(width) > width;
}

/// Bits that say which k of `width` values follow; none where all do.
constexpr std::int64_t position_bits(std::int64_t k, std::int64_t width) {
  return k == width ? 0 : std::min(width, k * index_bits(width));
}

/// Bytes of one token's payload; not for LowRank and None.
inline std::int64_t row_bytes(const Codec& codec, std::int64_t width) {
  const std::int64_t k = kept_values(codec, width);
  return (k * codec.bits + position_bits(k, width) + kCodecScaleBits + 7) / 8;
}

/// Bytes on the wire of a tensor [tokens, width] of 16-bit elements.
inline Bytes payload_bytes(const Codec& codec, std::int64_t tokens, std::int64_t width) {
  switch (codec.kind) {
    case CodecKind::None: return Bytes(tokens * width * 2);
    case CodecKind::LowRank: return Bytes(2 * codec.rank * (tokens + width));
    case CodecKind::TopkPwq:
    case CodecKind::Topk:
    case CodecKind::Pwq:
    case CodecKind::Block: break;
  }
  return Bytes(tokens * row_bytes(codec, width));
}

}  // namespace gputwin
