// Every kernel of the host executor against its definition, on operands of odd sizes.
#include "validation/executors/host/host_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "sim/core/spelling.h"
#include "validation/executors/host/host_loops.h"

namespace gputwin::executors {
namespace {

using Values = std::vector<std::vector<double>>;

/// Numbers in +-2 that a float holds exactly, from a counter.
std::vector<double> some(std::int64_t n, std::uint64_t seed) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i) {
    values.push_back(static_cast<double>(static_cast<float>(2 * seeded_value(seed, i))));
  }
  return values;
}

std::vector<double> tokens(std::int64_t n, std::int64_t vocab) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(static_cast<double>(i * 7 % vocab));
  return values;
}

/// A plan of one kernel; operands have one row each, or lie `gap` apart in rows of `cols`.
struct World {
  World(const Op& op, const Values& reads, const std::vector<std::int64_t>& writes,
        std::int64_t cols, std::int64_t gap) {
    Call call;
    call.op = op;
    const auto view = [&](std::int64_t n) {
      const bool rows = gap > 0 && n % cols == 0;
      const std::int64_t r = rows ? n / cols : 1, c = rows ? cols : n, ld = rows ? cols + gap : n;
      Buffer buffer;
      buffer.name = "b" + std::to_string(plan.buffers.size());
      buffer.bytes = Bytes(4 * r * ld);
      plan.buffers.push_back(buffer);
      return View{
          BufferId(static_cast<std::uint32_t>(plan.buffers.size() - 1)), 0, r, c, ld, DType::F32};
    };
    for (const auto& values : reads) call.reads.push_back(view(std::ssize(values)));
    for (const std::int64_t n : writes) call.writes.push_back(view(n));
    plan.calls.push_back(call);
    plan.programs.emplace_back();
    plan.ranks.emplace_back().program = ProgramId(0);
    instruction.kind = Kind::Kernel;
    instruction.call = 0;
    world.ranks.emplace_back();
    world.ranks[0].id = RankId(0);
  }
  Plan plan;
  InterpretOptions options;
  Instruction instruction{};
  interpreted::World world{plan, options, {}, {}, {}};
};

/// Runs an op here and by its definition; results that accumulate start from the same numbers.
void expect_as_defined(const Op& op, const Values& reads, const std::vector<std::int64_t>& writes,
                       double tolerance, std::int64_t cols = 1, std::int64_t gap = 0) {
  SCOPED_TRACE(std::string(to_string(op.kind)) + " gap " + std::to_string(gap));
  World w(op, reads, writes, cols, gap);
  MemoryPool pool(true);
  HostTask task{&w.instruction, 0, {}, {}};
  interpreted::Work work{.op = op, .reads = reads, .writes = {}, .options = w.options};
  work.log_sum_tolerance = 1e-3;
  const Call& call = w.plan.calls[0];
  for (std::size_t k = 0; k < reads.size(); ++k) {
    task.reads.push_back({pool.allocate(w.plan.buffers[k].bytes.value), call.reads[k]});
    store(task.reads.back(), reads[k]);
  }
  for (std::size_t k = 0; k < writes.size(); ++k) {
    const auto bytes = w.plan.buffers[reads.size() + k].bytes.value;
    task.writes.push_back({pool.allocate(bytes), call.writes[k]});
    work.writes.push_back(some(writes[k], 90 + k));
    for (double& v : work.writes.back()) v = std::abs(v);  // second moments are not negative
    if (interpreted::reads_output(op, k, writes.size())) store(task.writes[k], work.writes[k]);
    if (!interpreted::reads_output(op, k, writes.size()))
      std::fill(work.writes[k].begin(), work.writes[k].end(), 0.0);
  }
  run_kernel(w.world, w.world.ranks[0], task);
  interpreted::compute(work);
  for (std::size_t k = 0; k < writes.size(); ++k) {
    const auto got = load<double>(task.writes[k]);
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double off = std::abs(got[i] - work.writes[k][i]);
      worst = std::max(worst, std::isnan(off) ? 1e30 : off / (1 + std::abs(work.writes[k][i])));
    }
    EXPECT_LT(worst, tolerance) << "result " << k;
  }
}

constexpr std::int64_t kT = 6, kH = 37;

Op op_of(OpKind kind, std::array<std::int64_t, 6> dims) { return {.kind = kind, .dims = dims}; }

TEST(HostKernels, Norms) {
  for (const Norm norm : {Norm::LayerNorm, Norm::RmsNorm}) {
    for (const std::int64_t gap : {0, 5}) {
      Op op = op_of(OpKind::NormForward, {kT, kH});
      op.norm = norm;
      Values reads = {some(kT * kH, 1), some(kH, 2)};
      expect_as_defined(op, reads, {kT * kH, 2 * kT}, 1e-5, kH, gap);
      reads.push_back(some(kH, 3));
      expect_as_defined(op, reads, {kT * kH, 2 * kT}, 1e-5, kH, gap);
      op.kind = OpKind::NormBackward;
      std::vector<double> stats = some(2 * kT, 4);
      for (double& s : stats) s = std::abs(s);
      reads = {some(kT * kH, 5), some(kT * kH, 1), some(kH, 2), stats};
      for (const bool accumulate : {false, true}) {
        op.accumulate = accumulate;
        expect_as_defined(op, reads, {kT * kH}, 1e-5, kH, gap);
        expect_as_defined(op, reads, {kT * kH, kH, kH}, 1e-5, kH, gap);
      }
      reads.push_back(some(kT * kH, 6));
      expect_as_defined(op, reads, {kT * kH, kH}, 1e-5, kH, gap);
    }
  }
}

TEST(HostKernels, Softmax) {
  for (const bool causal : {false, true}) {
    Op op = op_of(OpKind::SoftmaxForward, {2, 3, 5, 9});
    op.causal = causal;
    const std::int64_t n = 2 * 3 * 5 * 9;
    expect_as_defined(op, {some(n, 1)}, {n}, 1e-6);
    op.kind = OpKind::SoftmaxBackward;
    expect_as_defined(op, {some(n, 1), some(n, 2)}, {n}, 1e-5);
  }
}

TEST(HostKernels, FusedAttention) {
  const std::int64_t b = 2, a = 4, g = 2, s = 7, d = 5;
  for (const bool causal : {false, true}) {
    for (const std::int64_t gap : {0, 3}) {
      Op op = op_of(OpKind::FlashForward, {b, a, g, s, s, d});
      op.causal = causal;
      const Values qkv = {some(b * s * a * d, 1), some(b * s * g * d, 2), some(b * s * g * d, 3)};
      const std::int64_t q = b * s * a * d, k = b * s * g * d, rows = b * a * s;
      expect_as_defined(op, qkv, {q, rows}, 1e-5, a * d, gap);
      interpreted::Work forward{.op = op,
                                .reads = qkv,
                                .writes = {std::vector<double>(static_cast<std::size_t>(q)),
                                           std::vector<double>(static_cast<std::size_t>(rows))},
                                .options = {}};
      interpreted::compute(forward);
      Values reads = qkv;
      reads.push_back(forward.writes[0]);
      reads.push_back(forward.writes[1]);
      reads.push_back(some(q, 4));
      op.kind = OpKind::FlashBackward;
      expect_as_defined(op, reads, {q, k, k}, 1e-5, a * d, gap);
    }
  }
}

TEST(HostKernels, Activations) {
  for (const Activation activation : {Activation::Gelu, Activation::Relu, Activation::SqRelu,
                                      Activation::Swiglu, Activation::Geglu}) {
    const std::int64_t width = is_gated(activation) ? 2 * kH : kH;
    Op op = op_of(OpKind::ActivationForward, {kT, kH});
    op.activation = activation;
    expect_as_defined(op, {some(kT * width, 1)}, {kT * kH}, 1e-6);
    expect_as_defined(op, {some(kT * width, 1), some(width, 2)}, {kT * kH}, 1e-6, kH, 2);
    op.kind = OpKind::ActivationBackward;
    for (const bool accumulate : {false, true}) {
      op.accumulate = accumulate;
      expect_as_defined(op, {some(kT * kH, 3), some(kT * width, 1), some(width, 2)},
                        {kT * width, width}, 2e-6);
    }
  }
}

TEST(HostKernels, RowsAndColumns) {
  expect_as_defined(op_of(OpKind::BiasDropoutAdd, {kT, kH}),
                    {some(kT * kH, 1), some(kH, 2), some(kT * kH, 3)}, {kT * kH}, 1e-6);
  expect_as_defined(op_of(OpKind::BiasDropoutAdd, {kT, kH}), {some(kT * kH, 1), some(kT * kH, 3)},
                    {kT * kH}, 1e-6, kH, 1);
  for (const bool accumulate : {false, true}) {
    Op op = op_of(OpKind::BiasGrad, {kT, kH});
    op.accumulate = accumulate;
    expect_as_defined(op, {some(kT * kH, 1)}, {kH}, 1e-6);
    op = op_of(OpKind::SumOfSquares, {kT * kH});
    op.accumulate = accumulate;
    expect_as_defined(op, {some(kT * kH, 1)}, {1}, 1e-6);
  }
  expect_as_defined(op_of(OpKind::Add, {kT * kH}), {some(kT * kH, 1), some(kT * kH, 2)}, {kT * kH},
                    1e-6);
  for (const bool inverse : {false, true}) {
    Op op = op_of(OpKind::Rope, {8, 3, 1, 6, 4});  // rows of 3 + 1 heads of 6, then values
    op.inverse = inverse;
    expect_as_defined(op, {some(8 * 30, 1)}, {8 * 30}, 1e-6);
  }
}

TEST(HostKernels, EmbeddingPositionsAndLoss) {
  const std::int64_t v = 11;
  expect_as_defined(op_of(OpKind::EmbeddingForward, {kT, kH, v}), {tokens(kT, 15), some(v * kH, 1)},
                    {kT * kH}, 1e-6);
  expect_as_defined(op_of(OpKind::PositionAdd, {kT, kH}), {some(kT * kH, 1), some(3 * kH, 2)},
                    {kT * kH}, 1e-6);
  for (const bool accumulate : {false, true}) {
    Op op = op_of(OpKind::EmbeddingBackward, {kT, kH, v});
    op.accumulate = accumulate;
    expect_as_defined(op, {tokens(kT, 15), some(kT * kH, 1)}, {v * kH}, 1e-6);
    op = op_of(OpKind::PositionGrad, {kT, kH});
    op.accumulate = accumulate;
    expect_as_defined(op, {some(kT * kH, 1)}, {3 * kH}, 1e-6);
  }
  const auto logits = some(kT * v, 1);
  const auto top = std::vector<double>(kT, 2.0), sums = std::vector<double>(2 * kT, 3.0);
  expect_as_defined(op_of(OpKind::LogitsMax, {kT, v}), {logits}, {kT}, 1e-6);
  expect_as_defined(op_of(OpKind::LogitsSum, {kT, v}), {logits, top, tokens(kT, 15)}, {2 * kT},
                    1e-6);
  Op op = op_of(OpKind::CrossEntropyBackward, {kT, v});
  op.scale = 0.25f;
  expect_as_defined(op, {logits, top, sums, tokens(kT, 15)}, {kT * v}, 1e-6);
}

TEST(HostKernels, ProductsAndAdam) {
  for (const bool turned : {false, true}) {
    Op op = op_of(OpKind::Gemm, {5, 9, 7});
    op.trans_a = turned;
    op.trans_b = !turned;
    op.accumulate = turned;
    expect_as_defined(op, {some(35, 1), some(63, 2)}, {45}, 1e-6);
  }
  expect_as_defined(op_of(OpKind::AdamStep, {kH}), {some(kH, 1), {9.0}}, {kH, kH, kH, kH}, 1e-6);
  expect_as_defined(op_of(OpKind::AdamStep, {kH}), {some(kH, 1), {9.0}}, {kH, kH, kH}, 1e-6);
}

TEST(HostKernels, OperandsThatDoNotFitAreRefused) {
  World w(op_of(OpKind::NormForward, {kT, kH}), {some(kT * kH, 1), some(kH - 1, 2)},
          {kT * kH, 2 * kT}, 1, 0);
  MemoryPool pool(false);
  HostTask task{&w.instruction, 0, {}, {}};
  for (const View& view : w.plan.calls[0].reads) {
    task.reads.push_back({pool.allocate(view.bytes().value), view});
  }
  for (const View& view : w.plan.calls[0].writes) {
    task.writes.push_back({pool.allocate(view.bytes().value), view});
  }
  EXPECT_THROW(run_kernel(w.world, w.world.ranks[0], task), Fault);
}

// From the smallest to the largest exponent; GELU far out is x or 0.
TEST(HostKernels, ExponentialsReachFar) {
  const std::vector<float> x = {-200.0f, -80.0f, -20.0f, -1e-4f, 0.0f, 0.5f, 20.0f, 80.0f};
  std::vector<float> y(x.size());
  activation_forward(Activation::Gelu, x.data(), nullptr, 1, std::ssize(x), y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = static_cast<double>(x[i]);
    const double exact = 0.5 * at * (1 + std::erf(at / std::sqrt(2.0)));
    EXPECT_NEAR(static_cast<double>(y[i]), exact, 3e-7 * (1 + std::abs(at))) << at;
  }
  const std::vector<float> top(x.size(), 0.0f);
  std::vector<double> sums(x.size());
  row_exp_sum(x.data(), top.data(), std::ssize(x), 1, sums.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    EXPECT_NEAR(sums[i], exact, 1e-6 * exact + 2e-38) << x[i];
  }
}

}  // namespace
}  // namespace gputwin::executors
