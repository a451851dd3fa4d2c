// Inner loops of the codecs, in one version per set of vector instructions; all give the same bits.
#pragma once

#include <cstdint>

#include "validation/codecs/element.h"

namespace gputwin::codecs {

/// Sets of instructions; the largest that the processor has is chosen when the program runs.
enum class Path : std::uint8_t { Scalar, Avx2, Avx512 };

bool has_path(Path path);
Path best_path();

/// Of a row: keys of the least and largest magnitude, least and largest value. Where the largest
/// key is that of infinity or NaN, the values mean nothing.
struct Range {
  std::int32_t least_key = 0, largest_key = 0;
  float least = 0, largest = 0;
};

/// Keys are magnitudes: the bits of a value without its sign, whose order is that of the values,
/// then infinity, then NaN.
struct Kernels {
  std::int64_t (*count_above16)(const std::uint16_t* row, std::int64_t n, std::int32_t key);
  std::int64_t (*count_above32)(const std::uint32_t* row, std::int64_t n, std::int32_t key);
  /// Bit i of words: the key of element i is above `key`.
  void (*mask_above16)(const std::uint16_t* row, std::int64_t n, std::int32_t key,
                       std::uint64_t* words);
  void (*mask_above32)(const std::uint32_t* row, std::int64_t n, std::int32_t key,
                       std::uint64_t* words);
  Range (*range)(const float* in, std::int64_t n);
  void (*widen_bf16)(const std::uint16_t* in, std::int64_t n, float* out);
  void (*widen_fp16)(const std::uint16_t* in, std::int64_t n, float* out);
  void (*piece_codes)(const PieceGrid& grid, const float* in, std::int64_t n, std::uint16_t* out);
  void (*piece_values)(const PieceGrid& grid, const std::uint16_t* in, std::int64_t n, float* out);
  void (*even_codes)(const EvenGrid& grid, const float* in, std::int64_t n, std::uint16_t* out);
  void (*even_values)(const EvenGrid& grid, const std::uint16_t* in, std::int64_t n, float* out);
};

const Kernels& kernels(Path path);

}  // namespace gputwin::codecs
