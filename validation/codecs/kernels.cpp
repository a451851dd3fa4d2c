#include "validation/codecs/kernels.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gputwin::codecs {
namespace {

// Bodies are written once and compiled into a function per set of instructions; this file is
// compiled with -O3, which turns them into vector code.
#define GPUTWIN_BODY [[gnu::always_inline]] inline

template <class Word>
constexpr std::int32_t kMagnitude = static_cast<std::int32_t>(static_cast<Word>(~Word{0}) >> 1);

template <class Word>
GPUTWIN_BODY std::int64_t count_body(const Word* row, std::int64_t n, std::int32_t key) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    count += static_cast<std::int32_t>(row[i] & kMagnitude<Word>) > key ? 1 : 0;
  }
  return count;
}

template <class Word>
GPUTWIN_BODY void mask_body(const Word* row, std::int64_t first, std::int64_t n, std::int32_t key,
                            std::uint64_t* words) {
  for (std::int64_t i = first; i < n; i += 64) {
    std::uint64_t word = 0;
    for (std::int64_t j = i; j < std::min(i + 64, n); ++j) {
      const bool above = static_cast<std::int32_t>(row[j] & kMagnitude<Word>) > key;
      word |= std::uint64_t{above} << (j - i);
    }
    words[i / 64] = word;
  }
}

// The order of floats is that of integers made of their bits, negative ones turned over. Zero comes
// out positive, whichever zeros there are.
GPUTWIN_BODY Range range_body(const float* in, std::int64_t n) {
  std::int32_t least_key = 0x7fffffff, largest_key = 0;
  std::int32_t least = 0x7fffffff, largest = -0x7fffffff - 1;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = static_cast<std::int32_t>(bits_of_float(in[i]));
    const std::int32_t key = bits & 0x7fffffff, order = bits ^ (bits >> 31 & 0x7fffffff);
    least_key = key < least_key ? key : least_key;
    largest_key = key > largest_key ? key : largest_key;
    least = order < least ? order : least;
    largest = order > largest ? order : largest;
  }
  const auto value = [](std::int32_t order) {
    return float_of_bits(static_cast<std::uint32_t>(order ^ (order >> 31 & 0x7fffffff))) + 0.0F;
  };
  return {least_key, largest_key, value(least), value(largest)};
}

GPUTWIN_BODY void widen_bf16_body(const std::uint16_t* in, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = from_bf16(in[i]);
}

GPUTWIN_BODY void widen_fp16_body(const std::uint16_t* in, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = from_fp16(in[i]);
}

GPUTWIN_BODY void piece_codes_body(const PieceGrid& grid, const float* in, std::int64_t n,
                                   std::uint16_t* out) {
  const PieceGrid g = grid;
  for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<std::uint16_t>(piece_code(g, in[i]));
}

GPUTWIN_BODY void piece_values_body(const PieceGrid& grid, const std::uint16_t* in, std::int64_t n,
                                    float* out) {
  const PieceGrid g = grid;
  for (std::int64_t i = 0; i < n; ++i) out[i] = piece_value(g, in[i]);
}

GPUTWIN_BODY void even_codes_body(const EvenGrid& grid, const float* in, std::int64_t n,
                                  std::uint16_t* out) {
  const EvenGrid g = grid;
  for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<std::uint16_t>(even_code(g, in[i]));
}

GPUTWIN_BODY void even_values_body(const EvenGrid& grid, const std::uint16_t* in, std::int64_t n,
                                   float* out) {
  const EvenGrid g = grid;
  for (std::int64_t i = 0; i < n; ++i) out[i] = even_value(g, in[i]);
}

// The loops that the compiler vectorises by itself, for one set of instructions.
#define GPUTWIN_LOOPS(NAME, TARGET)                                                              \
  struct NAME {                                                                                  \
    TARGET static Range range(const float* in, std::int64_t n) { return range_body(in, n); }     \
    TARGET static void widen_bf16(const std::uint16_t* in, std::int64_t n, float* out) {         \
      widen_bf16_body(in, n, out);                                                               \
    }                                                                                            \
    TARGET static void widen_fp16(const std::uint16_t* in, std::int64_t n, float* out) {         \
      widen_fp16_body(in, n, out);                                                               \
    }                                                                                            \
    TARGET static void piece_codes(const PieceGrid& g, const float* in, std::int64_t n,          \
                                   std::uint16_t* out) {                                         \
      piece_codes_body(g, in, n, out);                                                           \
    }                                                                                            \
    TARGET static void piece_values(const PieceGrid& g, const std::uint16_t* in, std::int64_t n, \
                                    float* out) {                                                \
      piece_values_body(g, in, n, out);                                                          \
    }                                                                                            \
    TARGET static void even_codes(const EvenGrid& g, const float* in, std::int64_t n,            \
                                  std::uint16_t* out) {                                          \
      even_codes_body(g, in, n, out);                                                            \
    }                                                                                            \
    TARGET static void even_values(const EvenGrid& g, const std::uint16_t* in, std::int64_t n,   \
                                   float* out) {                                                 \
      even_values_body(g, in, n, out);                                                           \
    }                                                                                            \
  }

GPUTWIN_LOOPS(ScalarLoops, );

template <class Loops>
constexpr Kernels with_loops(decltype(Kernels::count_above16) count16,
                             decltype(Kernels::count_above32) count32,
                             decltype(Kernels::mask_above16) mask16,
                             decltype(Kernels::mask_above32) mask32) {
  return {count16,
          count32,
          mask16,
          mask32,
          Loops::range,
          Loops::widen_bf16,
          Loops::widen_fp16,
          Loops::piece_codes,
          Loops::piece_values,
          Loops::even_codes,
          Loops::even_values};
}

template <class Word>
std::int64_t count_scalar(const Word* row, std::int64_t n, std::int32_t key) {
  return count_body(row, n, key);
}

template <class Word>
void mask_scalar(const Word* row, std::int64_t n, std::int32_t key, std::uint64_t* words) {
  mask_body(row, 0, n, key, words);
}

constexpr Kernels kScalar =
    with_loops<ScalarLoops>(count_scalar<std::uint16_t>, count_scalar<std::uint32_t>,
                            mask_scalar<std::uint16_t>, mask_scalar<std::uint32_t>);

#if defined(__x86_64__)

#define GPUTWIN_AVX2 [[gnu::target("avx2")]]
#define GPUTWIN_AVX512 [[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,popcnt")]]

GPUTWIN_LOOPS(Avx2Loops, GPUTWIN_AVX2);
GPUTWIN_LOOPS(Avx512Loops, GPUTWIN_AVX512);

GPUTWIN_AVX2 std::int64_t count16_avx2(const std::uint16_t* row, std::int64_t n, std::int32_t key) {
  const __m256i magnitude = _mm256_set1_epi16(0x7fff);
  const __m256i bound = _mm256_set1_epi16(static_cast<short>(key));
  std::int64_t count = 0, i = 0;
  while (i + 16 <= n) {
    __m256i sums = _mm256_setzero_si256();  // up to 2^14 per lane
    const std::int64_t end = std::min(n - 15, i + (std::int64_t{16} << 14));
    for (; i < end; i += 16) {
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + i));
      sums = _mm256_sub_epi16(sums, _mm256_cmpgt_epi16(_mm256_and_si256(v, magnitude), bound));
    }
    const __m256i pairs = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
    alignas(32) std::int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), pairs);
    for (const std::int32_t lane : lanes) count += lane;
  }
  return count + count_body(row + i, n - i, key);
}

GPUTWIN_AVX2 std::int64_t count32_avx2(const std::uint32_t* row, std::int64_t n, std::int32_t key) {
  return count_body(row, n, key);
}

GPUTWIN_AVX2 void mask16_avx2(const std::uint16_t* row, std::int64_t n, std::int32_t key,
                              std::uint64_t* words) {
  const __m256i magnitude = _mm256_set1_epi16(0x7fff);
  const __m256i bound = _mm256_set1_epi16(static_cast<short>(key));
  std::int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    std::uint64_t word = 0;
    for (int half = 0; half < 2; ++half) {
      const auto* at = reinterpret_cast<const __m256i*>(row + i + 32 * half);
      const __m256i a =
          _mm256_cmpgt_epi16(_mm256_and_si256(_mm256_loadu_si256(at), magnitude), bound);
      const __m256i b =
          _mm256_cmpgt_epi16(_mm256_and_si256(_mm256_loadu_si256(at + 1), magnitude), bound);
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8);
      const auto bits = static_cast<std::uint32_t>(_mm256_movemask_epi8(packed));
      word |= std::uint64_t{bits} << (32 * half);
    }
    words[i / 64] = word;
  }
  mask_body(row, i, n, key, words);
}

GPUTWIN_AVX2 void mask32_avx2(const std::uint32_t* row, std::int64_t n, std::int32_t key,
                              std::uint64_t* words) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const __m256i bound = _mm256_set1_epi32(key);
  std::int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    std::uint64_t word = 0;
    for (int part = 0; part < 8; ++part) {
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + i + 8 * part));
      const __m256i above = _mm256_cmpgt_epi32(_mm256_and_si256(v, magnitude), bound);
      const auto bits = static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(above)));
      word |= std::uint64_t{bits} << (8 * part);
    }
    words[i / 64] = word;
  }
  mask_body(row, i, n, key, words);
}

GPUTWIN_AVX512 std::int64_t count16_avx512(const std::uint16_t* row, std::int64_t n,
                                           std::int32_t key) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  const __m512i bound = _mm512_set1_epi16(static_cast<short>(key));
  std::int64_t count = 0, i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m512i v = _mm512_and_si512(_mm512_loadu_si512(row + i), magnitude);
    count += __builtin_popcount(_mm512_cmpgt_epi16_mask(v, bound));
  }
  return count + count_body(row + i, n - i, key);
}

GPUTWIN_AVX512 std::int64_t count32_avx512(const std::uint32_t* row, std::int64_t n,
                                           std::int32_t key) {
  return count_body(row, n, key);
}

GPUTWIN_AVX512 void mask16_avx512(const std::uint16_t* row, std::int64_t n, std::int32_t key,
                                  std::uint64_t* words) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  const __m512i bound = _mm512_set1_epi16(static_cast<short>(key));
  std::int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i a = _mm512_and_si512(_mm512_loadu_si512(row + i), magnitude);
    const __m512i b = _mm512_and_si512(_mm512_loadu_si512(row + i + 32), magnitude);
    words[i / 64] = std::uint64_t{_mm512_cmpgt_epi16_mask(a, bound)} |
                    std::uint64_t{_mm512_cmpgt_epi16_mask(b, bound)} << 32;
  }
  mask_body(row, i, n, key, words);
}

GPUTWIN_AVX512 void mask32_avx512(const std::uint32_t* row, std::int64_t n, std::int32_t key,
                                  std::uint64_t* words) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i bound = _mm512_set1_epi32(key);
  std::int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    std::uint64_t word = 0;
    for (int part = 0; part < 4; ++part) {
      const __m512i v = _mm512_and_si512(_mm512_loadu_si512(row + i + 16 * part), magnitude);
      word |= std::uint64_t{_mm512_cmpgt_epi32_mask(v, bound)} << (16 * part);
    }
    words[i / 64] = word;
  }
  mask_body(row, i, n, key, words);
}

constexpr Kernels kAvx2 =
    with_loops<Avx2Loops>(count16_avx2, count32_avx2, mask16_avx2, mask32_avx2);
constexpr Kernels kAvx512 =
    with_loops<Avx512Loops>(count16_avx512, count32_avx512, mask16_avx512, mask32_avx512);

#endif

}  // namespace

#if defined(__x86_64__)

bool has_path(Path path) {
  switch (path) {
    case Path::Scalar: return true;
    case Path::Avx2: return __builtin_cpu_supports("avx2") != 0;
    case Path::Avx512:
      return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
             __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  }
  return false;
}

const Kernels& kernels(Path path) {
  switch (path) {
    case Path::Avx2: return kAvx2;
    case Path::Avx512: return kAvx512;
    case Path::Scalar: break;
  }
  return kScalar;
}

#else

bool has_path(Path path) { return path == Path::Scalar; }

const Kernels& kernels(Path) { return kScalar; }

#endif

Path best_path() {
  static const Path best = has_path(Path::Avx512) ? Path::Avx512
                           : has_path(Path::Avx2) ? Path::Avx2
                                                  : Path::Scalar;
  return best;
}

}  // namespace gputwin::codecs
