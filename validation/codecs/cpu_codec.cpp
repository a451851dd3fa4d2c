#include "validation/codecs/cpu_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "sim/core/check.h"
#include "validation/codecs/bit_stream.h"

namespace gputwin::codecs {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Everything that the rows of one call share, with room for one row.
struct Work {
  Codec codec;
  Element element;
  const Kernels& kernels;
  std::int64_t width, kept, stride;  // stride: bytes of a row's payload
  std::vector<std::uint64_t> words;  // bit i: element i is kept
  std::vector<std::uint64_t> equal;
  std::vector<std::uint16_t> positions, codes;
  std::vector<float> values;

  Work(const Codec& c, Element e, std::int64_t w, Path path)
      : codec(c),
        element(e),
        kernels(codecs::kernels(path)),
        width(w),
        kept(kept_values(c, w)),
        stride(c.kind == CodecKind::None ? 2 * w : row_bytes(c, w)),
        words((w + 63) / 64),
        equal(words.size()),
        positions(kept),
        codes(kept),
        values(kept) {}

  bool all() const { return kept == width; }
};

std::int64_t count_above(const Work& w, const std::uint8_t* row, std::int32_t key) {
  if (w.element != Element::Fp32) {
    return w.kernels.count_above16(reinterpret_cast<const std::uint16_t*>(row), w.width, key);
  }
  return w.kernels.count_above32(reinterpret_cast<const std::uint32_t*>(row), w.width, key);
}

void mask_above(const Work& w, const std::uint8_t* row, std::int32_t key,
                std::vector<std::uint64_t>& words) {
  if (w.element != Element::Fp32) {
    w.kernels.mask_above16(reinterpret_cast<const std::uint16_t*>(row), w.width, key, words.data());
  } else {
    w.kernels.mask_above32(reinterpret_cast<const std::uint32_t*>(row), w.width, key, words.data());
  }
}

// The key of the kept-th largest magnitude: the least key above which fewer than `kept` lie, found
// bit by bit.
std::int32_t least_kept_key(const Work& w, const std::uint8_t* row) {
  std::int64_t low = -1, high = w.element == Element::Fp32 ? 0x7fffffff : 0x7fff;
  while (high - low > 1) {  // count above low >= kept > count above high
    const std::int64_t middle = low + (high - low) / 2;
    (count_above(w, row, static_cast<std::int32_t>(middle)) >= w.kept ? low : high) = middle;
  }
  return static_cast<std::int32_t>(high);
}

// Sets the mask of kept elements and their positions.
void select(Work& w, const std::uint8_t* row) {
  if (w.kept == 0) {
    std::fill(w.words.begin(), w.words.end(), 0);
    return;
  }
  const std::int32_t key = least_kept_key(w, row);
  mask_above(w, row, key, w.words);
  mask_above(w, row, key - 1, w.equal);
  std::int64_t left = w.kept;
  for (const std::uint64_t word : w.words) left -= std::popcount(word);
  std::uint16_t* out = w.positions.data();
  for (std::size_t i = 0; i < w.words.size(); ++i) {
    std::uint64_t ties = w.equal[i] & ~w.words[i];
    if (left >= std::popcount(ties)) {
      w.words[i] |= ties;
      left -= std::popcount(ties);
    } else {
      for (; left > 0; --left, ties &= ties - 1) w.words[i] |= ties & (~ties + 1);
    }
    for (std::uint64_t word = w.words[i]; word != 0; word &= word - 1) {
      *out++ = static_cast<std::uint16_t>(64 * i + std::countr_zero(word));
    }
  }
}

void load_values(Work& w, const std::uint8_t* row) {
  const auto* half = reinterpret_cast<const std::uint16_t*>(row);
  const auto* full = reinterpret_cast<const float*>(row);
  switch (w.element) {
    case Element::Bf16:
      if (w.all()) return w.kernels.widen_bf16(half, w.width, w.values.data());
      for (std::int64_t i = 0; i < w.kept; ++i) w.values[i] = from_bf16(half[w.positions[i]]);
      return;
    case Element::Fp16:
      if (w.all()) return w.kernels.widen_fp16(half, w.width, w.values.data());
      for (std::int64_t i = 0; i < w.kept; ++i) w.values[i] = from_fp16(half[w.positions[i]]);
      return;
    case Element::Fp32:
      if (w.all())
        std::copy(full, full + w.width, w.values.begin());
      else
        for (std::int64_t i = 0; i < w.kept; ++i) w.values[i] = full[w.positions[i]];
  }
}

constexpr std::int32_t kInfinity = 0x7f800000;

PieceScale piece_scale(const Work& w, const Range& range_of) {
  PieceScale s;
  s.top = float_of_bits(static_cast<std::uint32_t>(range_of.largest_key));
  s.low = piece_low(float_of_bits(static_cast<std::uint32_t>(range_of.least_key)), s.top);
  const double low = s.top * (s.low / 65535.0), range = s.top - low;
  const double by_range = range > 0 ? 1 / range : 0;
  std::int32_t below[kBreaks] = {};
  const std::int64_t stride = break_stride(w.kept);
  for (std::int64_t i = 0; i < w.kept; i += stride) ++below[break_cell(low, by_range, w.values[i])];
  for (int c = 1; c < kBreaks; ++c) below[c] += below[c - 1];
  s.at = best_break(below, 1 << (w.codec.bits - 2));
  return s;
}

// Fills codes and returns the eight bytes of scales.
std::uint64_t quantise(Work& w) {
  if (w.kept == 0) return 0;
  const Range range = w.kernels.range(w.values.data(), w.kept);
  const bool finite = range.largest_key < kInfinity;
  if (!finite) std::fill(w.codes.begin(), w.codes.end(), 0);
  if (w.codec.kind == CodecKind::Block) {
    if (!finite) return std::bit_cast<std::uint64_t>(EvenScale{kNaN, kNaN});
    const EvenScale s{range.least, range.largest};
    w.kernels.even_codes(even_grid(s, w.codec.bits), w.values.data(), w.kept, w.codes.data());
    return std::bit_cast<std::uint64_t>(s);
  }
  if (!finite) return std::bit_cast<std::uint64_t>(PieceScale{kNaN, 0, kBreaks});
  const PieceScale s = piece_scale(w, range);
  w.kernels.piece_codes(piece_grid(s, w.codec.bits), w.values.data(), w.kept, w.codes.data());
  return std::bit_cast<std::uint64_t>(s);
}

// Fills codes with 16-bit values.
void load_halves(Work& w, const std::uint8_t* row) {
  const auto* half = reinterpret_cast<const std::uint16_t*>(row);
  const auto* full = reinterpret_cast<const float*>(row);
  for (std::int64_t i = 0; i < w.kept; ++i) {
    const std::int64_t at = w.all() ? i : w.positions[i];
    w.codes[i] = w.element == Element::Fp32 ? to_bf16(full[at]) : half[at];
  }
}

void write_row(const Work& w, std::uint64_t scales, std::uint8_t* out) {
  std::memcpy(out, &scales, 8);
  BitWriter bits(out + 8);
  if (w.codec.bits == 8) {
    for (std::int64_t i = 0; i < w.kept; ++i) out[8 + i] = static_cast<std::uint8_t>(w.codes[i]);
    bits = BitWriter(out + 8 + w.kept);
  } else if (w.codec.bits == 4) {
    for (std::int64_t i = 0; i < w.kept / 2; ++i) {
      out[8 + i] = static_cast<std::uint8_t>(w.codes[2 * i] | w.codes[2 * i + 1] << 4);
    }
    bits = BitWriter(out + 8 + w.kept / 2);
    if (w.kept % 2 != 0) bits.put(w.codes.back(), 4);
  } else {
    for (std::int64_t i = 0; i < w.kept; ++i) bits.put(w.codes[i], w.codec.bits);
  }
  if (w.all() || w.kept == 0) return bits.finish();
  if (uses_bitmap(w.kept, w.width)) {
    for (std::int64_t i = 0; i < w.width; i += 32) {
      const auto part = static_cast<std::uint32_t>(w.words[i / 64] >> (i % 64));
      bits.put(part, static_cast<std::int32_t>(std::min<std::int64_t>(32, w.width - i)));
    }
  } else {
    const auto each = static_cast<std::int32_t>(index_bits(w.width));
    for (std::int64_t i = 0; i < w.kept; ++i) bits.put(w.positions[i], each);
  }
  bits.finish();
}

std::uint64_t read_row(Work& w, const std::uint8_t* in) {
  std::uint64_t scales = 0;
  std::memcpy(&scales, in, 8);
  BitReader bits(in + 8);
  for (std::uint16_t& code : w.codes) code = static_cast<std::uint16_t>(bits.get(w.codec.bits));
  if (w.all() || w.kept == 0) return scales;
  if (!uses_bitmap(w.kept, w.width)) {
    const auto each = static_cast<std::int32_t>(index_bits(w.width));
    for (std::uint16_t& p : w.positions) {
      p = static_cast<std::uint16_t>(bits.get(each));
      GPUTWIN_CHECK(p < w.width, "a position lies in its token");
    }
    return scales;
  }
  std::size_t count = 0;
  for (std::int64_t i = 0; i < w.width; i += 32) {
    std::uint32_t part =
        bits.get(static_cast<std::int32_t>(std::min<std::int64_t>(32, w.width - i)));
    for (; part != 0; part &= part - 1) {
      GPUTWIN_CHECK(count < w.positions.size(), "a bitmap marks as many as are kept");
      w.positions[count++] = static_cast<std::uint16_t>(i + std::countr_zero(part));
    }
  }
  GPUTWIN_CHECK(count == w.positions.size(), "a bitmap marks as many as are kept");
  return scales;
}

void decode_values(Work& w, std::uint64_t scales) {
  const std::int64_t n = w.kept;
  switch (w.codec.kind) {
    case CodecKind::None:
    case CodecKind::Topk:
      if (w.element == Element::Fp16)
        w.kernels.widen_fp16(w.codes.data(), n, w.values.data());
      else
        w.kernels.widen_bf16(w.codes.data(), n, w.values.data());
      return;
    case CodecKind::Block: {
      const EvenGrid g = even_grid(std::bit_cast<EvenScale>(scales), w.codec.bits);
      return w.kernels.even_values(g, w.codes.data(), n, w.values.data());
    }
    case CodecKind::TopkPwq:
    case CodecKind::Pwq: {
      const PieceGrid g = piece_grid(std::bit_cast<PieceScale>(scales), w.codec.bits);
      return w.kernels.piece_values(g, w.codes.data(), n, w.values.data());
    }
    case CodecKind::LowRank: return;
  }
}

// Calls use(row, work) for each row with its values and positions decoded.
template <class Use>
void decode_rows(const Codec& codec, std::span<const std::uint8_t> payload, Element element,
                 std::int64_t tokens, std::int64_t width, Path path, Use use) {
  const std::string why = unfit(codec, width);
  GPUTWIN_CHECK(why.empty(), why);
  Work w(codec, element, width, path);
  GPUTWIN_CHECK(static_cast<std::int64_t>(payload.size()) == tokens * w.stride,
                "a payload has the bytes of the formula");
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::uint8_t* in = payload.data() + t * w.stride;
    if (codec.kind == CodecKind::None) std::memcpy(w.codes.data(), in, w.stride);
    decode_values(w, codec.kind == CodecKind::None ? 0 : read_row(w, in));
    use(t, w);
  }
}

}  // namespace

std::string unfit(const Codec& codec, std::int64_t width) {
  if (width < 0 || width > 65536) return "a token has at most 65,536 values";
  switch (codec.kind) {
    case CodecKind::None: return "";
    case CodecKind::LowRank: return "low rank is no code by token (low_rank.h)";
    case CodecKind::Topk: return codec.bits == 16 ? "" : "Top-k alone sends 16 bits";
    case CodecKind::TopkPwq:
    case CodecKind::Pwq:
    case CodecKind::Block: break;
  }
  return codec.bits >= 2 && codec.bits <= 16 ? "" : "a quantised value takes 2 to 16 bits";
}

void encode(const Codec& codec, const TensorView& x, std::span<std::uint8_t> payload, Path path) {
  const std::string why = unfit(codec, x.width);
  GPUTWIN_CHECK(why.empty(), why);
  Work w(codec, x.element, x.width, path);
  GPUTWIN_CHECK(static_cast<std::int64_t>(payload.size()) == x.tokens * w.stride,
                "a payload has the bytes of the formula");
  const std::int64_t row_size = x.width * bytes_of(x.element);
  for (std::int64_t t = 0; t < x.tokens; ++t) {
    const std::uint8_t* row = static_cast<const std::uint8_t*>(x.data) + t * row_size;
    std::uint8_t* out = payload.data() + t * w.stride;
    if (codec.kind == CodecKind::None) {
      load_halves(w, row);
      std::memcpy(out, w.codes.data(), w.stride);
      continue;
    }
    if (!w.all()) select(w, row);
    std::uint64_t scales = 0;
    if (codec.kind == CodecKind::Topk) {
      load_halves(w, row);
    } else {
      load_values(w, row);
      scales = quantise(w);
    }
    write_row(w, scales, out);
  }
}

void decode(const Codec& codec, std::span<const std::uint8_t> payload, Element element,
            std::int64_t tokens, std::int64_t width, float* out, Path path) {
  decode_rows(codec, payload, element, tokens, width, path, [&](std::int64_t t, const Work& w) {
    float* row = out + t * width;
    if (w.all()) {
      std::copy(w.values.begin(), w.values.end(), row);
      return;
    }
    std::fill(row, row + width, 0.0F);
    for (std::int64_t i = 0; i < w.kept; ++i) row[w.positions[i]] = w.values[i];
  });
}

void accumulate(const Codec& codec, std::span<const std::uint8_t> payload, Element element,
                std::int64_t tokens, std::int64_t width, float* out, Path path) {
  decode_rows(codec, payload, element, tokens, width, path, [&](std::int64_t t, const Work& w) {
    float* row = out + t * width;
    for (std::int64_t i = 0; i < w.kept; ++i) {
      row[w.all() ? i : w.positions[i]] += w.values[i];
    }
  });
}

void encode_with_feedback(const Codec& codec, const float* x, std::int64_t tokens,
                          std::int64_t width, std::vector<float>& residual,
                          std::span<std::uint8_t> payload) {
  residual.resize(tokens * width);
  for (std::size_t i = 0; i < residual.size(); ++i) residual[i] += x[i];
  encode(codec, {residual.data(), Element::Fp32, tokens, width}, payload);
  std::vector<float> sent(residual.size());
  decode(codec, payload, Element::Fp32, tokens, width, sent.data());
  for (std::size_t i = 0; i < residual.size(); ++i) residual[i] -= sent[i];
}

double relative_square_error(std::span<const float> x, std::span<const float> decoded) {
  double error = 0, energy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = static_cast<double>(decoded[i]) - x[i];
    error += d * d;
    energy += static_cast<double>(x[i]) * x[i];
  }
  return energy > 0 ? error / energy : 0;
}

}  // namespace gputwin::codecs
