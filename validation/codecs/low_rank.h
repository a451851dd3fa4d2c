// PowerSGD: a sum over ranks through two thin factors. Linear, so that a plain all-reduce sums
// them.
#pragma once

#include <span>
#include <vector>

#include "sim/core/codec.h"

namespace gputwin::codecs {

/// The right factor of the last step, with which the next one starts: [width, rank], alike on every
/// rank of the group.
struct LowRankState {
  std::vector<float> right;
};

/// Left factors of x [tokens, width]: x times the state's right factor, rounded to bf16.
/// The state is filled from a fixed generator where it is empty.
std::vector<float> left_factor(const Codec& codec, const float* x, std::int64_t tokens,
                               std::int64_t width, LowRankState& state);

/// Makes the columns of the summed left factor [tokens, rank] orthonormal (modified Gram-Schmidt,
/// twice); columns without a direction of their own become zero.
void orthonormalise(std::vector<float>& left, std::int64_t tokens, std::int32_t rank);

/// Right factor x^T times left, rounded to bf16: [width, rank].
std::vector<float> right_factor(const Codec& codec, const float* x, std::int64_t tokens,
                                std::int64_t width, const std::vector<float>& left);

/// out [tokens, width] = left x right^T; the state takes the right factor.
///
/// Source  Vogels et al. 2019 (arXiv 1905.13727), algorithm 1. Payload: both factors in 16 bits,
///         2 rank (tokens + width) bytes, as payload_bytes says.
void low_rank_product(const std::vector<float>& left, const std::vector<float>& right,
                      std::int64_t tokens, std::int64_t width, LowRankState& state, float* out);

}  // namespace gputwin::codecs
