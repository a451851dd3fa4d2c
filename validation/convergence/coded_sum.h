// The sum over tensor-parallel ranks, each a thread, through a codec.
#pragma once

#include <barrier>
#include <map>

#include "validation/codecs/cpu_codec.h"
#include "validation/codecs/low_rank.h"
#include "validation/nn/gpt.h"

namespace gputwin::convergence {

/// Gather-sum: every rank encodes its part, all decode the payloads of all in the order of the
/// ranks, and so hold the same sum. Low rank sums its factors instead, as an all-reduce would.
class CodedSum {
 public:
  CodedSum(std::int32_t ranks, const Codec& codec);

  /// Called by every rank alike; see nn::Exchange.
  void sum(std::int32_t rank, nn::Phase phase, std::int64_t place, std::int64_t rows,
           std::int64_t width, float* x);

  /// Codec of the sums that follow. To be called between steps, by one rank, with the others
  /// waiting.
  void use(const Codec& codec) { codec_ = codec; }
  void wait() { barrier_.arrive_and_wait(); }

  /// Payload bytes that one rank sent, and the bytes of the same tensors in 16 bits.
  Bytes sent() const { return sent_; }
  Bytes plain() const { return plain_; }
  /// Mean of |code - x|^2 / |x|^2 over the tensors of rank 0 (for low rank, over the sums).
  double mean_error() const { return errors_ > 0 ? error_ / errors_ : 0; }

 private:
  void sum_by_token(std::int32_t rank, std::int64_t rows, std::int64_t width, float* x);
  void sum_low_rank(std::int32_t rank, codecs::LowRankState& state, std::int64_t rows,
                    std::int64_t width, float* x);
  std::vector<float> total(std::int32_t rank, std::vector<float> part);
  void count(std::int32_t rank, std::int64_t rows, std::int64_t width);
  void note_error(std::span<const float> x, std::span<const float> decoded);

  Codec codec_;
  std::barrier<> barrier_;
  std::vector<std::vector<std::uint8_t>> payloads_;
  std::vector<std::vector<float>> parts_;
  std::vector<std::map<std::pair<nn::Phase, std::int64_t>, codecs::LowRankState>> states_;
  Bytes sent_, plain_;
  double error_ = 0;
  std::int64_t errors_ = 0;
};

}  // namespace gputwin::convergence
