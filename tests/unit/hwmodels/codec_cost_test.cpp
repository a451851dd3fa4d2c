// What compressed gradients cost on the GPU, by hand: Gram-Schmidt of PowerSGD's factors, and codes
// with error feedback.
#include <gtest/gtest.h>

#include "hwmodels/kernels/memory_bound.h"
#include "sim/core/codec.h"

namespace gputwin {
namespace {

// 1 TB/s, 3 us to start; 0.8 of the bandwidth element by element, 0.6 in reductions.
Device round_device() {
  Device device;
  device.memory_bandwidth = BytesPerSecond(1e12);
  device.memory_bound = {Seconds(3e-6), 0.8, 0.5, 0.4, 0.6, 0.5, 0.7};
  return device;
}

Op orthonormalise(std::int64_t rows, std::int64_t rank) {
  return {.kind = OpKind::Orthonormalise,
          .dtype = DType::Bf16,
          .out = DType::Bf16,
          .launches = static_cast<std::uint16_t>(4 * rank),
          .dims = {rows, rank}};
}

// A factor [4096, 4] in 16 bits has columns of 8,192 B. Column i is normalised and taken out of
// itself and those after it, twice: 4 + 3 + 2 + 1 = 10 columns, read and written twice, 40 x 8,192
// = 327,680 B, at 600 GB/s 0.546 us. Each of its 4 x 4 kernels waits for the one before: 48 us of
// starts, which is nearly all of it.
TEST(CodecCost, GramSchmidtIsTheStartsOfItsKernels) {
  const Bytes factor(4096 * 4 * 2);
  const Op op = orthonormalise(4096, 4);
  EXPECT_EQ(moved_bytes(op, factor, factor), Bytes(327'680));
  const Cost cost = memory_bound_cost(round_device(), op, factor, factor);
  EXPECT_NEAR(cost.term(Term::StartUp).value, 48e-6, 1e-12);
  EXPECT_NEAR(cost.term(Term::Memory).value, 327'680 / 0.6e12, 1e-12);
  EXPECT_NEAR(cost.time.value, 48e-6 + 327'680 / 0.6e12, 1e-12);
}

// One column is read and written twice: its norm and its scaling, once more.
TEST(CodecCost, OneColumnIsPassedTwice) {
  const Bytes column(4096 * 2);
  EXPECT_EQ(moved_bytes(orthonormalise(4096, 1), column, column), Bytes(4 * 8192));
  const Cost cost = memory_bound_cost(round_device(), orthonormalise(4096, 1), column, column);
  EXPECT_NEAR(cost.time.value, 4 * 3e-6 + 4 * 8192 / 0.6e12, 1e-12);
}

// Twice the rank is 2 x 9/5 the bytes (8 + ... + 1 = 36 columns for 10) and twice the kernels.
TEST(CodecCost, GramSchmidtGrowsWithTheSquareOfTheRank) {
  const Bytes four(4096 * 4 * 2), eight(4096 * 8 * 2);
  EXPECT_EQ(moved_bytes(orthonormalise(4096, 8), eight, eight),
            Bytes(moved_bytes(orthonormalise(4096, 4), four, four).value / 10 * 36));
}

// 1,024 rows of 1,024 gradients in 32 bits are 4 MiB, what the last code dropped as much again.
constexpr std::int64_t kMiB = 1 << 20;

Bytes encoded(const Codec& codec, bool feedback) {
  const Op op{.kind = OpKind::Encode,
              .dtype = DType::F32,
              .out = DType::U8,
              .dims = {kGradientRow, kGradientRow, kept_values(codec, kGradientRow), codec.bits,
                       static_cast<std::int64_t>(codec.kind)}};
  const Bytes x(4 * kMiB), e(feedback ? 4 * kMiB : 0);
  const Bytes payload(kGradientRow * row_bytes(codec, kGradientRow));
  return moved_bytes(op, x + e, payload + e);
}

// int8 reads x for the range and again to pack: 8 MiB, and writes rows of 1,024 + 8 B. With
// feedback the first pass reads x and e (8 MiB) and leaves the sum in e (4), the second reads that
// (4) and writes payload and what it lacks (4): 20 MiB.
TEST(CodecCost, FeedbackAddsItsOwnPasses) {
  const Codec int8{.kind = CodecKind::Block, .bits = 8};
  const std::int64_t payload = 1024 * (1024 + 8);
  EXPECT_EQ(encoded(int8, false), Bytes(8 * kMiB + payload));
  EXPECT_EQ(encoded(int8, true), Bytes((8 + 4 + 4 + 4) * kMiB + payload));
}

// The largest 10 % of each row, 103 values of 16 bits and a bitmap, shorter than 103 indices of
// 10 bits: 1,648 + 1,024 + 64 bits are 342 B. Six passes: 24 MiB; with feedback the first reads x
// and e (8) and leaves the sum (4), five read it (20), and what is dropped is left (4): 36 MiB.
TEST(CodecCost, SelectionReadsTheSumInPlaceOfTheGradients) {
  const Codec top{.kind = CodecKind::Topk, .keep = 0.1, .bits = 16};
  const std::int64_t payload = 1024 * 342;
  EXPECT_EQ(row_bytes(top, 1024), 342);
  EXPECT_EQ(encoded(top, false), Bytes(24 * kMiB + payload));
  EXPECT_EQ(encoded(top, true), Bytes((8 + 4 + 20 + 4) * kMiB + payload));
}

// PowerSGD's feedback: the bucket's n gradients in 32 bits get n values added (8 n read, 4 n
// written), and 4 n are copied back (4 n read, 4 n written) before the product is taken off.
TEST(CodecCost, FeedbackOfLowRankIsAnAdditionAndACopy) {
  const Bytes n(4 * kMiB);
  const Op add{.kind = OpKind::Add, .dtype = DType::F32, .out = DType::F32, .dims = {kMiB}};
  const Op copy{.kind = OpKind::CastCopy, .dtype = DType::F32, .out = DType::F32, .dims = {kMiB}};
  EXPECT_NEAR(memory_bound_cost(round_device(), add, n + n, n).time.value,
              3e-6 + 12.0 * kMiB / 0.8e12, 1e-12);
  EXPECT_NEAR(memory_bound_cost(round_device(), copy, n, n).time.value, 3e-6 + 8.0 * kMiB / 0.8e12,
              1e-12);
}

}  // namespace
}  // namespace gputwin
