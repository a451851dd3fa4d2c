// The numbers of one token's code, alike on the processor and on the GPU: scales, grid, codes. All
// arithmetic is on integers and, without contraction, on doubles: both give the same bytes.
//
// A row is a stream of bits, lowest first, filled up to whole bytes:
//
//   8 bytes scales | k values of `bits` | positions: none (k = width), bitmap, or rising indices
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define GPUTWIN_ON_BOTH __host__ __device__
#else
#define GPUTWIN_ON_BOTH
#endif

namespace gputwin::codecs {

inline constexpr int kBreaks = 32;  // candidates for the break of the piecewise grid

/// Scales of a piecewise row, as they stand in the payload. Its magnitudes lie in [low / 65535, 1]
/// times top; the break is at low + (top - low) x at / 32. Top is NaN where a kept value is not
/// finite: then every kept value decodes to NaN.
struct PieceScale {
  float top = 0;
  std::uint16_t low = 0, at = kBreaks;
};
static_assert(sizeof(PieceScale) == 8);

/// Scales of an evenly quantised row: its least and largest value; NaN where one is not finite.
struct EvenScale {
  float least = 0, largest = 0;
};
static_assert(sizeof(EvenScale) == 8);

/// Piecewise grid of `bits`: a sign, a bit for the region, bits - 2 of index. Codes 0 .. inner - 1
/// are low + code x step; from `inner` on they are the break + (code - inner) x outer step, so that
/// the largest value has a code of its own. Research note, section 5: the inner step is
/// 2 p / 2^(bits - 1).
struct PieceGrid {
  double low = 0, at = 0, inner_step = 0, outer_step = 0, by_inner = 0, by_outer = 0;
  std::int32_t inner = 1, sign = 2;  // sign: the code's bit for a negative value
};

GPUTWIN_ON_BOTH inline PieceGrid piece_grid(PieceScale s, std::int32_t bits) {
  PieceGrid g;
  const double top = s.top;
  g.inner = 1 << (bits - 2);
  g.sign = 1 << (bits - 1);
  g.low = top * (s.low / 65535.0);
  g.at = g.low + (top - g.low) * (s.at / static_cast<double>(kBreaks));
  g.inner_step = (g.at - g.low) / g.inner;
  g.outer_step = g.inner > 1 ? (top - g.at) / (g.inner - 1) : 0;
  g.by_inner = g.inner_step > 0 ? 1 / g.inner_step : 0;
  g.by_outer = g.outer_step > 0 ? 1 / g.outer_step : 0;
  return g;
}

GPUTWIN_ON_BOTH inline double clamped(double v, double top) {
  const double above = v > 0 ? v : 0;
  return above < top ? above : top;
}

/// Code of v: the nearest level, the upper of two equally near.
GPUTWIN_ON_BOTH inline std::int32_t piece_code(const PieceGrid& g, float v) {
  const double a = v < 0 ? -static_cast<double>(v) : static_cast<double>(v);
  const auto in = static_cast<std::int32_t>(clamped((a - g.low) * g.by_inner + 0.5, g.inner));
  const auto out = static_cast<std::int32_t>(clamped((a - g.at) * g.by_outer + 0.5, g.inner - 1));
  const std::int32_t code = a < g.at ? in : g.inner + out;
  return code | (v < 0 ? g.sign : 0);
}

GPUTWIN_ON_BOTH inline float piece_value(const PieceGrid& g, std::int32_t code) {
  const std::int32_t level = code & (g.sign - 1);
  const double in = g.low + level * g.inner_step;
  const double out = g.at + (level - g.inner) * g.outer_step;
  const auto a = static_cast<float>(level < g.inner ? in : out);
  return (code & g.sign) != 0 ? -a : a;
}

/// The low end of a row whose magnitudes lie in [least, top], both finite, rounded down.
GPUTWIN_ON_BOTH inline std::uint16_t piece_low(float least, float top) {
  return top > 0 ? static_cast<std::uint16_t>(static_cast<double>(least) / top * 65535.0)
                 : std::uint16_t{0};
}

/// The cell, 0 .. 31, of a magnitude in [low, top].
GPUTWIN_ON_BOTH inline std::int32_t break_cell(double low, double by_range, float v) {
  const double a = v < 0 ? -static_cast<double>(v) : static_cast<double>(v);
  return static_cast<std::int32_t>(clamped((a - low) * by_range * kBreaks, kBreaks - 1));
}

/// Squared error expected of a break at `at`, up to a factor: a step's square per value.
/// below[c] values lie in cells 0 .. c.
GPUTWIN_ON_BOTH inline std::int64_t break_cost(const std::int32_t* below, std::int32_t inner,
                                               std::int64_t at) {
  const std::int64_t in = below[at - 1], out = below[kBreaks - 1] - in;
  const std::int64_t inner_step = at * (inner - 1), outer_step = (kBreaks - at) * inner;
  return in * inner_step * inner_step + out * outer_step * outer_step;
}

/// The break of least expected error, the lowest of equals; the top where a region has one level.
GPUTWIN_ON_BOTH inline std::uint16_t best_break(const std::int32_t* below, std::int32_t inner) {
  if (inner == 1) return kBreaks;
  std::int64_t best = kBreaks;
  for (std::int64_t at = kBreaks - 1; at >= 1; --at) {
    if (break_cost(below, inner, at) <= break_cost(below, inner, best)) best = at;
  }
  return static_cast<std::uint16_t>(best);
}

/// Values of a row are looked at for its break in steps of this: at most 128 of them.
GPUTWIN_ON_BOTH inline std::int64_t break_stride(std::int64_t k) { return (k + 127) / 128; }

/// Even grid of `bits` over [least, largest].
struct EvenGrid {
  double least = 0, step = 0, by_step = 0;
  std::int32_t top = 1;
};

GPUTWIN_ON_BOTH inline EvenGrid even_grid(EvenScale s, std::int32_t bits) {
  EvenGrid g;
  g.top = (1 << bits) - 1;
  g.least = s.least;
  g.step = (static_cast<double>(s.largest) - s.least) / g.top;
  g.by_step = g.step > 0 ? 1 / g.step : 0;
  return g;
}

GPUTWIN_ON_BOTH inline std::int32_t even_code(const EvenGrid& g, float v) {
  return static_cast<std::int32_t>(clamped((v - g.least) * g.by_step + 0.5, g.top));
}

GPUTWIN_ON_BOTH inline float even_value(const EvenGrid& g, std::int32_t code) {
  return static_cast<float>(g.least + code * g.step);
}

}  // namespace gputwin::codecs
