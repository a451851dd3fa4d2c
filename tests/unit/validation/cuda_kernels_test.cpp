// Every kernel of the CUDA backend against its definition, as the processor runs it: operands with
// and without gaps, in F32 and BF16. What a GPU rounds differently is checked by device_check.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "sim/core/spelling.h"
#include "tests/support/cuda_double/cuda_double.h"
#include "validation/executors/cuda/cuda_kernels.h"
#include "validation/executors/host/host_memory.h"

namespace gputwin::executors {
namespace {

using Values = std::vector<std::vector<double>>;

/// Numbers in +-2 that BF16 holds exactly, from a counter.
std::vector<double> some(std::int64_t n, std::uint64_t seed) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i) {
    values.push_back(std::round(64 * seeded_value(seed, i)) / 32);
  }
  return values;
}

std::vector<double> tokens(std::int64_t n, std::int64_t vocab) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(static_cast<double>(i * 7 % vocab));
  return values;
}

/// How operands lie: in rows of `cols` that are `gap` apart, in `dtype`. Integers: 64 bits.
struct Lying {
  DType dtype = DType::F32;
  std::int64_t cols = 1, gap = 0;
  std::int64_t only = 0;  // operands with another number of elements have no gaps; 0: all may
  std::vector<std::size_t> integers = {};  // reads
  bool single_results = false;             // results stay F32: accumulated sums
};

/// Memory of one operand, between guards that a kernel must not touch.
struct Room {
  explicit Room(const View& v) : view(v) {
    constexpr std::int64_t kGuard = 64;
    const std::int64_t elements = v.offset + (v.rows - 1) * v.ld + v.cols;
    bytes.assign(static_cast<std::size_t>(elements * bits(v.dtype) / 8 + 2 * kGuard), 0x5a);
    view.offset += kGuard * 8 / bits(v.dtype);
    before = bytes;
  }
  HostOperand on_host() {
    return {borrowed(reinterpret_cast<std::byte*>(bytes.data()), std::ssize(bytes)), view};
  }
  Placed placed() { return {reinterpret_cast<std::byte*>(bytes.data()), view}; }
  /// Bytes outside the view that changed.
  int touched() {
    std::vector<unsigned char> now = bytes;
    store(on_host(), std::vector<double>(static_cast<std::size_t>(view.elements()), 0.0));
    std::swap(now, bytes);  // `now` has zeros in the view
    Room blank = *this;
    blank.bytes = before;
    store(blank.on_host(), std::vector<double>(static_cast<std::size_t>(view.elements()), 0.0));
    int count = 0;
    for (std::size_t i = 0; i < now.size(); ++i) count += now[i] != blank.bytes[i] ? 1 : 0;
    return count;
  }
  View view;
  std::vector<unsigned char> bytes, before;
};

Room room_for(std::int64_t n, const Lying& lying, bool integer, bool single) {
  const bool such = lying.only == 0 || lying.only == n;
  const bool rows = lying.gap > 0 && such && n % lying.cols == 0 && !integer;
  const std::int64_t r = rows ? n / lying.cols : 1, c = rows ? lying.cols : n;
  const DType dtype = integer ? DType::I64 : single ? DType::F32 : lying.dtype;
  return Room(View{BufferId(0), 0, r, c, rows ? c + lying.gap : c, dtype});
}

/// Runs an op here and by its definition; results that accumulate start from the same numbers.
void expect_as_defined(const Op& op, const Values& reads, const std::vector<std::int64_t>& writes,
                       const Lying& lying, double tolerance) {
  SCOPED_TRACE(std::string(to_string(op.kind)) + " gap " + std::to_string(lying.gap) + " " +
               std::string(to_string(lying.dtype)));
  cuda_double::start({});
  const InterpretOptions options;
  interpreted::Work work{.op = op, .reads = reads, .writes = {}, .options = options};
  work.log_sum_tolerance = 0.1;  // of log-sum-exps in BF16
  std::vector<Room> from, to;
  for (std::size_t k = 0; k < reads.size(); ++k) {
    const bool integer = std::ranges::count(lying.integers, k) > 0;
    from.push_back(room_for(std::ssize(reads[k]), lying, integer, false));
    store(from.back().on_host(), reads[k]);
    work.reads[k] = load<double>(from.back().on_host());
  }
  for (std::size_t k = 0; k < writes.size(); ++k) {
    to.push_back(room_for(writes[k], lying, false, lying.single_results));
    work.writes.push_back(some(writes[k], 90 + k));
    for (double& v : work.writes.back()) v = std::abs(v);  // second moments are not negative
    if (interpreted::reads_output(op, k, writes.size())) {
      store(to[k].on_host(), work.writes[k]);
    } else {
      std::fill(work.writes[k].begin(), work.writes[k].end(), 0.0);
    }
  }
  KernelWork kernel{op, {}, {}, 0, 1, options, nullptr};
  for (Room& r : from) kernel.reads.push_back(r.placed());
  for (Room& r : to) kernel.writes.push_back(r.placed());
  cuda::Stream stream;
  cuda::Gemm products(256);
  const PreparedKernel prepared = prepare_kernel(kernel);
  std::vector<std::byte> scratch(prepared.scratch);
  prepared.enqueue({stream, &products, scratch.data()});
  while (!stream.idle()) continue;
  interpreted::compute(work);
  for (std::size_t k = 0; k < writes.size(); ++k) {
    const auto got = load<double>(to[k].on_host());
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double off = std::abs(got[i] - work.writes[k][i]);
      worst = std::max(worst, std::isnan(off) ? 1e30 : off / (1 + std::abs(work.writes[k][i])));
    }
    EXPECT_LT(worst, tolerance) << "result " << k;
    EXPECT_EQ(to[k].touched(), 0) << "result " << k;
  }
  EXPECT_THAT(cuda_double::wrongs(), testing::IsEmpty());
}

/// In F32 without and with gaps, and in BF16, whose results have 8 bits.
void expect_in_all_forms(const Op& op, const Values& reads, const std::vector<std::int64_t>& writes,
                         std::int64_t cols, double tolerance, Lying lying = {}) {
  lying.cols = cols;
  expect_as_defined(op, reads, writes, lying, tolerance);
  lying.gap = 3;
  expect_as_defined(op, reads, writes, lying, tolerance);
  lying.dtype = DType::Bf16;
  expect_as_defined(op, reads, writes, lying, 1.0 / 128);
}

constexpr std::int64_t kT = 6, kH = 37;

Op op_of(OpKind kind, std::array<std::int64_t, 6> dims) { return {.kind = kind, .dims = dims}; }

TEST(CudaKernels, Norms) {
  for (const Norm norm : {Norm::LayerNorm, Norm::RmsNorm}) {
    Op op = op_of(OpKind::NormForward, {kT, kH});
    op.norm = norm;
    expect_in_all_forms(op, {some(kT * kH, 1), some(kH, 2)}, {kT * kH, 2 * kT}, kH, 1e-5);
    expect_in_all_forms(op, {some(kT * kH, 1), some(kH, 2), some(kH, 3)}, {kT * kH, 2 * kT}, kH,
                        1e-5);
    op.kind = OpKind::NormBackward;
    std::vector<double> stats = some(2 * kT, 4);
    for (double& s : stats) s = std::abs(s);
    Values reads = {some(kT * kH, 5), some(kT * kH, 1), some(kH, 2), stats};
    for (const bool accumulate : {false, true}) {
      op.accumulate = accumulate;
      expect_in_all_forms(op, reads, {kT * kH}, kH, 1e-5);
      expect_in_all_forms(op, reads, {kT * kH, kH, kH}, kH, 1e-5);
    }
    reads.push_back(some(kT * kH, 6));
    expect_in_all_forms(op, reads, {kT * kH, kH}, kH, 1e-5);
  }
}

TEST(CudaKernels, SoftmaxOfRowsLongerThanABlockAndCausal) {
  for (const bool causal : {false, true}) {
    Op op = op_of(OpKind::SoftmaxForward, {2, 2, 3, 300});  // 300 keys, 256 threads
    op.causal = causal;
    const std::int64_t n = 2 * 2 * 3 * 300;
    expect_in_all_forms(op, {some(n, 1)}, {n}, 300, 1e-6);
    op.kind = OpKind::SoftmaxBackward;
    expect_in_all_forms(op, {some(n, 1), some(n, 2)}, {n}, 300, 1e-5);
  }
}

TEST(CudaKernels, FusedAttention) {
  const std::int64_t b = 2, a = 4, g = 2, s = 5, d = 3;
  for (const bool causal : {false, true}) {
    Op op = op_of(OpKind::FlashForward, {b, a, g, s, s, d});
    op.causal = causal;
    const Values qkv = {some(b * s * a * d, 1), some(b * s * g * d, 2), some(b * s * g * d, 3)};
    const std::int64_t q = b * s * a * d, k = b * s * g * d, rows = b * a * s;
    expect_as_defined(op, qkv, {q, rows}, {.cols = a * d, .gap = 5, .only = q}, 1e-5);
    expect_as_defined(op, qkv, {q, rows}, {.cols = g * d, .gap = 5, .only = k}, 1e-5);
    const InterpretOptions options;
    interpreted::Work forward{.op = op,
                              .reads = qkv,
                              .writes = {std::vector<double>(static_cast<std::size_t>(q)),
                                         std::vector<double>(static_cast<std::size_t>(rows))},
                              .options = options};
    interpreted::compute(forward);
    Values reads = qkv;
    reads.push_back(forward.writes[0]);
    reads.push_back(forward.writes[1]);
    reads.push_back(some(q, 4));
    op.kind = OpKind::FlashBackward;
    expect_as_defined(op, reads, {q, k, k}, {.cols = a * d, .gap = 5, .only = q}, 1e-5);
    expect_as_defined(op, reads, {q, k, k}, {.cols = g * d, .gap = 5, .only = k}, 1e-5);
  }
}

// Query heads that share a key head, and as many of both; the gap lies between rows of all heads.
TEST(CudaKernels, AttentionProducts) {
  const std::int64_t b = 2, a = 4, s = 3, u = 5, d = 2;
  for (const std::int64_t g : {2, 4}) {
    const std::int64_t q = b * s * a * d, k = b * u * g * d, p = b * a * s * u;
    const auto expect = [&](OpKind kind, std::int64_t x, std::int64_t y, std::int64_t z) {
      const Op op = op_of(kind, {b, a, g, s, u, d});
      expect_as_defined(op, {some(x, 1), some(y, 2)}, {z}, {.cols = a * d, .gap = 3, .only = q},
                        1e-5);
      expect_as_defined(op, {some(x, 1), some(y, 2)}, {z}, {.cols = g * d, .gap = 3, .only = k},
                        1e-5);
      expect_as_defined(op, {some(x, 1), some(y, 2)}, {z}, {.cols = u, .gap = 3, .only = p}, 1e-5);
      expect_as_defined(op, {some(x, 1), some(y, 2)}, {z}, {.dtype = DType::Bf16}, 1.0 / 32);
    };
    expect(OpKind::AttentionScores, q, k, p);
    expect(OpKind::AttentionGradProbs, q, k, p);
    expect(OpKind::AttentionContext, p, k, q);
    expect(OpKind::AttentionGradQuery, p, k, q);
    expect(OpKind::AttentionGradValue, p, q, k);
    expect(OpKind::AttentionGradKey, p, q, k);
  }
}

TEST(CudaKernels, Activations) {
  for (const Activation activation : {Activation::Gelu, Activation::Relu, Activation::SqRelu,
                                      Activation::Swiglu, Activation::Geglu}) {
    const std::int64_t width = is_gated(activation) ? 2 * kH : kH;
    Op op = op_of(OpKind::ActivationForward, {kT, kH});
    op.activation = activation;
    expect_as_defined(op, {some(kT * width, 1)}, {kT * kH}, {}, 1e-6);
    expect_as_defined(op, {some(kT * width, 1), some(width, 2)}, {kT * kH},
                      {.cols = width, .gap = 2, .only = kT * width}, 1e-6);
    expect_as_defined(op, {some(kT * width, 1), some(width, 2)}, {kT * kH}, {.dtype = DType::Bf16},
                      1.0 / 128);
    op.kind = OpKind::ActivationBackward;
    for (const bool accumulate : {false, true}) {
      op.accumulate = accumulate;
      expect_as_defined(op, {some(kT * kH, 3), some(kT * width, 1), some(width, 2)},
                        {kT * width, width}, {}, 2e-6);
      expect_as_defined(op, {some(kT * kH, 3), some(kT * width, 1)}, {kT * width}, {}, 2e-6);
    }
  }
}

TEST(CudaKernels, RowsAndColumns) {
  expect_in_all_forms(op_of(OpKind::BiasDropoutAdd, {kT, kH}),
                      {some(kT * kH, 1), some(kH, 2), some(kT * kH, 3)}, {kT * kH}, kH, 1e-6);
  expect_in_all_forms(op_of(OpKind::BiasDropoutAdd, {kT, kH}), {some(kT * kH, 1), some(kT * kH, 3)},
                      {kT * kH}, kH, 1e-6);
  expect_in_all_forms(op_of(OpKind::DropoutBackward, {kT, kH}), {some(kT * kH, 1)}, {kT * kH}, kH,
                      1e-6);
  for (const bool accumulate : {false, true}) {
    Op op = op_of(OpKind::BiasGrad, {kT, kH});
    op.accumulate = accumulate;
    expect_in_all_forms(op, {some(kT * kH, 1)}, {kH}, kH, 1e-6);
    op = op_of(OpKind::SumOfSquares, {3000});  // several blocks
    op.accumulate = accumulate;
    expect_as_defined(op, {some(3000, 1)}, {1}, {}, 1e-6);
    expect_as_defined(op, {some(3000, 1)}, {1}, {.dtype = DType::Bf16, .single_results = true},
                      1e-6);
  }
  for (const bool inverse : {false, true}) {
    Op op = op_of(OpKind::Rope, {8, 3, 1, 6, 4});  // rows of 3 + 1 heads of 6, then values
    op.inverse = inverse;
    expect_in_all_forms(op, {some(8 * 30, 1)}, {8 * 30}, 30, 1e-6);
  }
}

TEST(CudaKernels, ElementsAndCopies) {
  const std::int64_t n = kT * kH;
  expect_in_all_forms(op_of(OpKind::Add, {n}), {some(n, 1), some(n, 2)}, {n}, kH, 1e-6);
  expect_in_all_forms(op_of(OpKind::Zero, {n}), {}, {n}, kH, 1e-6);
  expect_in_all_forms(op_of(OpKind::CopyBytes, {n}), {some(n, 1)}, {n}, kH, 1e-6);
  Op op = op_of(OpKind::CastCopy, {n});
  op.scale = 0.5f;
  expect_in_all_forms(op, {some(n, 1)}, {n}, kH, 1e-6);
  op.scale = 1.0f;
  expect_as_defined(op, {some(n, 1)}, {n}, {.dtype = DType::Bf16, .single_results = true}, 1e-6);
  op.dims[0] = 2 * n;
  expect_in_all_forms(op, {some(n, 1), some(n, 2)}, {n, n}, kH, 1e-6);
}

TEST(CudaKernels, EmbeddingPositionsAndLoss) {
  const std::int64_t v = 11;
  const Lying first{.integers = {0}}, third{.integers = {2}}, fourth{.integers = {3}};
  expect_in_all_forms(op_of(OpKind::EmbeddingForward, {kT, kH, v}),
                      {tokens(kT, 15), some(v * kH, 1)}, {kT * kH}, kH, 1e-6, first);
  expect_in_all_forms(op_of(OpKind::PositionAdd, {kT, kH}), {some(kT * kH, 1), some(3 * kH, 2)},
                      {kT * kH}, kH, 1e-6);
  for (const bool accumulate : {false, true}) {
    Op op = op_of(OpKind::EmbeddingBackward, {kT, kH, v});
    op.accumulate = accumulate;
    expect_in_all_forms(op, {tokens(kT, 15), some(kT * kH, 1)}, {v * kH}, kH, 1e-6, first);
    op = op_of(OpKind::PositionGrad, {kT, kH});
    op.accumulate = accumulate;
    expect_in_all_forms(op, {some(kT * kH, 1)}, {4 * kH}, kH, 1e-6);
    op = op_of(OpKind::LossFromSums, {kT});
    op.scale = 0.25f;
    op.accumulate = accumulate;
    expect_as_defined(op, {some(kT, 1), std::vector<double>(2 * kT, 3.0)}, {1}, {}, 1e-6);
  }
  const auto logits = some(kT * v, 1);
  const auto top = std::vector<double>(kT, 2.0), sums = std::vector<double>(2 * kT, 3.0);
  expect_in_all_forms(op_of(OpKind::LogitsMax, {kT, v}), {logits}, {kT}, v, 1e-6);
  expect_in_all_forms(op_of(OpKind::LogitsSum, {kT, v}), {logits, top, tokens(kT, 15)}, {2 * kT}, v,
                      1e-6, third);
  Op op = op_of(OpKind::CrossEntropyBackward, {kT, v});
  op.scale = 0.25f;
  expect_in_all_forms(op, {logits, top, sums, tokens(kT, 15)}, {kT * v}, v, 1e-6, fourth);
}

TEST(CudaKernels, ProductsAndOptimizers) {
  for (const bool turned : {false, true}) {
    Op op = op_of(OpKind::Gemm, {5, 9, 7});
    op.trans_a = turned;
    op.trans_b = !turned;
    op.accumulate = turned;
    expect_as_defined(op, {some(35, 1), some(63, 2)}, {45}, {}, 1e-6);
    expect_as_defined(op, {some(35, 1), some(63, 2), some(9, 3)}, {45}, {}, 1e-6);
    expect_as_defined(op, {some(35, 1), some(63, 2)}, {45},
                      {.dtype = DType::Bf16, .single_results = true}, 1e-6);
  }
  for (const OpKind kind : {OpKind::AdamStep, OpKind::SgdStep}) {
    const std::size_t states = kind == OpKind::AdamStep ? 2 : 1;
    const std::vector<std::int64_t> plain(states + 1, kH), master(states + 2, kH);
    expect_as_defined(op_of(kind, {kH}), {some(kH, 1), {9.0}}, master, {}, 1e-6);
    expect_as_defined(op_of(kind, {kH}), {some(kH, 1), {9.0}}, plain, {}, 1e-6);
    expect_as_defined(op_of(kind, {kH}), {some(kH, 1)}, master,
                      {.dtype = DType::Bf16, .single_results = true}, 1e-6);
  }
}

std::string refusal(const Op& op, const Values& reads, const std::vector<std::int64_t>& writes,
                    const Lying& lying = {}) {
  KernelWork work{op, {}, {}, 0, 1, {}, nullptr};
  for (const auto& r : reads) {
    work.reads.push_back({nullptr, room_for(std::ssize(r), lying, false, false).view});
  }
  for (const std::int64_t n : writes) {
    work.writes.push_back({nullptr, room_for(n, lying, false, false).view});
  }
  try {
    prepare_kernel(work);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "";
}

TEST(CudaKernels, WhatNoKernelDoesIsRefusedByName) {
  using ::testing::HasSubstr;
  const Values x = {some(kT * kH, 1)};
  EXPECT_THAT(refusal(op_of(OpKind::NormForward, {kT, kH}), {x[0], some(kH - 1, 2)}, {kT * kH}),
              HasSubstr("norm_forward: an operand has 36 elements, the dims say 37"));
  EXPECT_THAT(refusal(op_of(OpKind::Permute, {kT, kH}), x, {kT * kH}),
              HasSubstr("permute: no kernel here does that"));
  Op op = op_of(OpKind::BiasDropoutAdd, {kT, kH});
  op.dropout = 0.1f;
  EXPECT_THAT(refusal(op, {x[0], x[0]}, {kT * kH}), HasSubstr("drops out"));
  EXPECT_THAT(refusal(op_of(OpKind::LogitsMax, {kT, kH}), x, {kT}, {.dtype = DType::F16}),
              HasSubstr("neither F32 nor BF16"));
  EXPECT_THAT(refusal(op_of(OpKind::NormForward, {2 * kT, kH / 2}), {some(kT * 36, 1), some(18, 2)},
                      {kT * 36, 24}, {.cols = 36, .gap = 1}),
              HasSubstr("rows"));
}

}  // namespace
}  // namespace gputwin::executors
