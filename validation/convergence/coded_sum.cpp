#include "validation/convergence/coded_sum.h"

#include <algorithm>

namespace gputwin::convergence {

CodedSum::CodedSum(std::int32_t ranks, const Codec& codec)
    : codec_(codec), barrier_(ranks), payloads_(ranks), parts_(ranks), states_(ranks) {}

void CodedSum::sum(std::int32_t rank, nn::Phase phase, std::int64_t place, std::int64_t rows,
                   std::int64_t width, float* x) {
  count(rank, rows, width);
  if (codec_.kind == CodecKind::LowRank) {
    sum_low_rank(rank, states_[rank][{phase, place}], rows, width, x);
  } else {
    sum_by_token(rank, rows, width, x);
  }
}

void CodedSum::sum_by_token(std::int32_t rank, std::int64_t rows, std::int64_t width, float* x) {
  const std::size_t size = rows * width;
  payloads_[rank].resize(payload_bytes(codec_, rows, width).value);
  codecs::encode(codec_, {x, codecs::Element::Fp32, rows, width}, payloads_[rank]);
  barrier_.arrive_and_wait();
  const std::vector<float> own(x, x + size);
  std::fill(x, x + size, 0.0F);
  for (std::size_t r = 0; r < payloads_.size(); ++r) {
    codecs::accumulate(codec_, payloads_[r], codecs::Element::Fp32, rows, width, x);
    if (rank == 0 && r == 0) note_error(own, {x, size});
  }
  barrier_.arrive_and_wait();
}

std::vector<float> CodedSum::total(std::int32_t rank, std::vector<float> part) {
  parts_[rank] = std::move(part);
  barrier_.arrive_and_wait();
  std::vector<float> sum(parts_[rank].size());
  for (const std::vector<float>& p : parts_) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += p[i];
  }
  barrier_.arrive_and_wait();
  return sum;
}

void CodedSum::sum_low_rank(std::int32_t rank, codecs::LowRankState& state, std::int64_t rows,
                            std::int64_t width, float* x) {
  std::vector<float> left = total(rank, codecs::left_factor(codec_, x, rows, width, state));
  codecs::orthonormalise(left, rows, codec_.rank);
  const std::vector<float> right = total(rank, codecs::right_factor(codec_, x, rows, width, left));
  const std::vector<float> exact = total(rank, std::vector<float>(x, x + rows * width));
  codecs::low_rank_product(left, right, rows, width, state, x);
  if (rank == 0) note_error(exact, {x, exact.size()});
}

void CodedSum::count(std::int32_t rank, std::int64_t rows, std::int64_t width) {
  if (rank != 0) return;
  sent_ += payload_bytes(codec_, rows, width);
  plain_ += payload_bytes(Codec{}, rows, width);
}

void CodedSum::note_error(std::span<const float> x, std::span<const float> decoded) {
  error_ += codecs::relative_square_error(x, decoded);
  ++errors_;
}

}  // namespace gputwin::convergence
