#include "sim/core/codecs.h"

#include <array>
#include <cmath>

namespace gputwin {
namespace {

constexpr std::array<CodecEntry, 7> kCodecs{{
    {"none", {}, "16-bit values as they are"},
    {"topk_pwq",
     {.kind = CodecKind::TopkPwq, .keep = 0.1, .bits = 8},
     "the largest values of each token, quantised in two pieces (AccTFM)"},
    {"topk", {.kind = CodecKind::Topk, .keep = 0.1}, "the largest values of each token, 16 bits"},
    {"pwq", {.kind = CodecKind::Pwq, .bits = 8}, "all values, quantised in two pieces"},
    {"int8", {.kind = CodecKind::Block, .bits = 8}, "all values in even steps, 8 bits"},
    {"int4", {.kind = CodecKind::Block, .bits = 4}, "all values in even steps, 4 bits"},
    {"powersgd",
     {.kind = CodecKind::LowRank, .rank = 4},
     "two factors of low rank, which all-reduce can add (PowerSGD)"},
}};

double density(double z) { return std::exp(-z * z / 2) / std::sqrt(2 * std::acos(-1.0)); }
double tail(double z) { return std::erfc(z / std::sqrt(2.0)) / 2; }

// z with P(|x| > z) = part, by bisection.
double threshold(double part) {
  double low = 0, high = 10;
  for (int i = 0; i < 100; ++i) {
    const double z = (low + high) / 2;
    (2 * tail(z) > part ? low : high) = z;
  }
  return low;
}

// Squared error of values between `from` and `to` (absolute, of standard deviation 1), in steps.
double even_steps(double from, double to, double steps, double share) {
  const double step = (to - from) / steps;
  return share * step * step / 12;
}

// Values beyond z in two pieces of 2^(bits-2) steps each way, at the best of 32 breaks.
double two_pieces(double z, double most, std::int32_t bits) {
  const double steps = std::ldexp(1.0, bits - 2);
  double best = even_steps(z, most, 2 * steps, 2 * tail(z));
  for (int i = 1; i < 32; ++i) {
    const double at = z + (most - z) * i / 32;
    const double inner = even_steps(z, at, steps, 2 * (tail(z) - tail(at)));
    best = std::min(best, inner + even_steps(at, most, steps, 2 * tail(at)));
  }
  return best;
}

}  // namespace

std::span<const CodecEntry> codec_table() { return kCodecs; }

const CodecEntry* find_codec(std::string_view name) {
  for (const CodecEntry& c : kCodecs) {
    if (name == c.name) return &c;
  }
  return nullptr;
}

std::string describe(const Codec& codec) {
  std::string name;
  for (const CodecEntry& c : kCodecs) {
    if (c.usual.kind == codec.kind &&
        (codec.kind != CodecKind::Block || c.usual.bits == codec.bits))
      name = c.name;
  }
  if (codec.kind == CodecKind::LowRank) return name + ", rank " + std::to_string(codec.rank);
  if (codec.kind == CodecKind::TopkPwq || codec.kind == CodecKind::Topk) {
    std::string keep = std::to_string(codec.keep);
    while (keep.back() == '0') keep.pop_back();
    name += ", keep " + keep;
  }
  const bool quantises = codec.kind == CodecKind::TopkPwq || codec.kind == CodecKind::Pwq;
  return quantises ? name + ", " + std::to_string(codec.bits) + " bits" : name;
}

std::optional<double> expected_error(const Codec& codec, std::int64_t width) {
  if (codec.kind == CodecKind::None) return 0.0;
  if (codec.kind == CodecKind::LowRank) return std::nullopt;
  const double most = std::sqrt(2 * std::log(std::max<double>(2.0, static_cast<double>(width))));
  const std::int64_t k = kept_values(codec, width);
  if (k == 0) return 1.0;
  const double z =
      k == width ? 0.0 : threshold(static_cast<double>(k) / static_cast<double>(width));
  const double kept = 2 * (z * density(z) + tail(z));
  double quantised = 0;
  if (codec.kind == CodecKind::Block) {
    quantised = even_steps(-most, most, std::ldexp(1.0, codec.bits) - 1, 1.0);
  } else if (codec.kind != CodecKind::Topk) {
    quantised = two_pieces(z, most, codec.bits);
  }
  return std::sqrt(std::max(0.0, 1 - kept) + quantised);
}

}  // namespace gputwin
