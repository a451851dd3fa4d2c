#include "validation/codecs/low_rank.h"

#include <cblas.h>

#include <cmath>
#include <random>

#include "validation/codecs/element.h"

namespace gputwin::codecs {
namespace {

void round_to_bf16(std::vector<float>& values) {
  for (float& v : values) v = from_bf16(to_bf16(v));
}

void product(CBLAS_TRANSPOSE a_is, CBLAS_TRANSPOSE b_is, std::int64_t m, std::int64_t n,
             std::int64_t k, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
             float* c) {
  cblas_sgemm(CblasRowMajor, a_is, b_is, static_cast<blasint>(m), static_cast<blasint>(n),
              static_cast<blasint>(k), 1.0F, a, static_cast<blasint>(lda), b,
              static_cast<blasint>(ldb), 0.0F, c, static_cast<blasint>(n));
}

double column_dot(const std::vector<float>& m, std::int64_t rows, std::int32_t columns,
                  std::int32_t a, std::int32_t b) {
  double sum = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    sum += static_cast<double>(m[r * columns + a]) * m[r * columns + b];
  }
  return sum;
}

}  // namespace

std::vector<float> left_factor(const Codec& codec, const float* x, std::int64_t tokens,
                               std::int64_t width, LowRankState& state) {
  const std::int64_t rank = codec.rank;
  if (state.right.empty()) {
    std::mt19937_64 bits(1);
    for (std::int64_t i = 0; i < width * rank; ++i) {
      state.right.push_back(static_cast<float>(bits() >> 40) * 0x1p-23F - 1);
    }
  }
  std::vector<float> left(tokens * rank);
  product(CblasNoTrans, CblasNoTrans, tokens, rank, width, x, width, state.right.data(), rank,
          left.data());
  round_to_bf16(left);
  return left;
}

void orthonormalise(std::vector<float>& left, std::int64_t tokens, std::int32_t rank) {
  for (std::int32_t c = 0; c < rank; ++c) {
    const double before = column_dot(left, tokens, rank, c, c);
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int32_t o = 0; o < c; ++o) {
        const double share = column_dot(left, tokens, rank, o, c);
        for (std::int64_t r = 0; r < tokens; ++r) {
          left[r * rank + c] -= static_cast<float>(share * left[r * rank + o]);
        }
      }
    }
    const double square = column_dot(left, tokens, rank, c, c);
    const double by_length = square > 1e-10 * before ? 1 / std::sqrt(square) : 0;
    for (std::int64_t r = 0; r < tokens; ++r) {
      left[r * rank + c] = static_cast<float>(left[r * rank + c] * by_length);
    }
  }
}

std::vector<float> right_factor(const Codec& codec, const float* x, std::int64_t tokens,
                                std::int64_t width, const std::vector<float>& left) {
  std::vector<float> right(width * codec.rank);
  product(CblasTrans, CblasNoTrans, width, codec.rank, tokens, x, width, left.data(), codec.rank,
          right.data());
  round_to_bf16(right);
  return right;
}

void low_rank_product(const std::vector<float>& left, const std::vector<float>& right,
                      std::int64_t tokens, std::int64_t width, LowRankState& state, float* out) {
  const std::int64_t rank = static_cast<std::int64_t>(right.size()) / width;
  product(CblasNoTrans, CblasTrans, tokens, width, rank, left.data(), rank, right.data(), rank,
          out);
  state.right = right;
}

}  // namespace gputwin::codecs
