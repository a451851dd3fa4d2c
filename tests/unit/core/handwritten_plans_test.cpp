// Four plans written by hand, run on real numbers and compared with plain matrix arithmetic. Every
// Wait in them is needed: without any single one, some order of events gives wrong numbers or
// touches memory that is not there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "sim/core/plan_text.h"
#include "sim/core/verify.h"
#include "tests/support/interpreter.h"

namespace gputwin {
namespace {

constexpr int kSeeds = 24;
constexpr double kExact = 1e-12;

// ---- plain matrix arithmetic ----

struct Matrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> v;
  Matrix(std::int64_t r, std::int64_t c) : rows(r), cols(c), v(static_cast<std::size_t>(r * c)) {}
  double& at(std::int64_t i, std::int64_t j) { return v[static_cast<std::size_t>(i * cols + j)]; }
  double at(std::int64_t i, std::int64_t j) const {
    return v[static_cast<std::size_t>(i * cols + j)];
  }
};

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.cols);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < b.cols; ++j) {
      for (std::int64_t k = 0; k < a.cols; ++k) c.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t(a.cols, a.rows);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.cols; ++j) t.at(j, i) = a.at(i, j);
  }
  return t;
}

Matrix sum(const Matrix& a, const Matrix& b) {
  Matrix c = a;
  for (std::size_t k = 0; k < c.v.size(); ++k) c.v[k] += b.v[k];
  return c;
}

Matrix relu(Matrix a) {
  for (double& x : a.v) x = std::max(x, 0.0);
  return a;
}

/// The global parameter `name` as the interpreter initialises it.
Matrix parameter(const std::string& name, std::int64_t rows, std::int64_t cols) {
  Parameter p;
  p.name = name;
  Matrix m(rows, cols);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) m.at(i, j) = initial_value(p, i, j, cols, {});
  }
  return m;
}

/// Frame `frame` of a persistent buffer of this shape and seed.
Matrix seeded(std::uint64_t seed, std::int64_t rows, std::int64_t cols, std::int64_t frame = 0) {
  Matrix m(rows, cols);
  for (std::int64_t k = 0; k < rows * cols; ++k) {
    m.v[static_cast<std::size_t>(k)] = seeded_value(seed, frame * rows * cols + k);
  }
  return m;
}

/// Cross entropy of `logits` against the tokens that follow in `sample`, times `scale`; and its
/// gradient.
double cross_entropy(const Matrix& logits, std::int64_t sample, double scale, Matrix& gradient) {
  double loss = 0.0;
  for (std::int64_t i = 0; i < logits.rows; ++i) {
    const std::int64_t target = token(sample, i + 1, logits.cols);
    double total = 0.0;
    for (std::int64_t j = 0; j < logits.cols; ++j) total += std::exp(logits.at(i, j));
    loss += scale * (std::log(total) - logits.at(i, target));
    for (std::int64_t j = 0; j < logits.cols; ++j) {
      gradient.at(i, j) = scale * (std::exp(logits.at(i, j)) / total - (j == target ? 1.0 : 0.0));
    }
  }
  return loss;
}

// ---- comparison ----

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0.0;
  for (std::size_t k = 0; k < a.size(); ++k) worst = std::max(worst, std::abs(a[k] - b[k]));
  return worst;
}

using Distance = std::function<double(const Results&)>;  // of a run from the truth

/// The plan is sound, and right under every seed.
void expect_right(const std::string& text, int bodies, const Distance& distance_of) {
  const Plan plan = parse_plan(text);
  for (const Violation& v : verify(plan, Depth::Races)) {
    ADD_FAILURE() << v.rule << " " << v.where << " " << v.what;
  }
  for (int seed = 0; seed < kSeeds; ++seed) {
    const Results results = interpret(plan, bodies, static_cast<std::uint64_t>(seed));
    EXPECT_LE(distance_of(results), kExact) << "seed " << seed;
  }
}

bool detected(const std::string& text, int bodies, const Distance& distance_of) {
  const Plan plan = parse_plan(text);
  for (int seed = 0; seed < kSeeds; ++seed) {
    try {
      const Results results = interpret(plan, bodies, static_cast<std::uint64_t>(seed));
      if (!(distance_of(results) <= kExact)) return true;
    } catch (const Fault&) {
      return true;
    }
  }
  return false;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (char c : text) {
    if (c == '\n')
      lines.emplace_back();
    else
      lines.back() += c;
  }
  return lines;
}

/// Removes each Wait in turn; every removal must be noticed. Returns how many there were.
int expect_every_wait_matters(const std::string& text, int bodies, const Distance& distance_of) {
  const auto lines = lines_of(text);
  int waits = 0;
  for (std::size_t planted = 0; planted < lines.size(); ++planted) {
    if (lines[planted].find(" wait ") == std::string::npos) continue;
    ++waits;
    std::string broken;
    for (std::size_t k = 0; k < lines.size(); ++k) {
      if (k != planted) broken += lines[k] + "\n";
    }
    EXPECT_TRUE(detected(broken, bodies, distance_of)) << "line " << planted + 1 << lines[planted];
  }
  return waits;
}

// ---- (a) a tensor-parallel layer, its all-reduces hidden under the next chunk's GEMMs ----

// Column- then row-parallel MLP on two ranks, tokens in two chunks: z = relu(x W1^T) W2^T + x.
constexpr const char* kTensorParallel = R"(
buffer x 4x4 f32 persistent seed=3
buffer w1 4x4 f32 class=weights persistent
buffer w2 4x4 f32 class=weights persistent
buffer a 4x4 f32
buffer h 4x4 f32
buffer y 4x4 f32
buffer z 4x4 f32 persistent
communicator pair 0 1
program layer
  stream compute compute
  stream tp communication
  slot tp tp
  param fc1 4x4 weight=w1 axis=rows slot=tp
  param fc2 4x4 weight=w2 axis=cols slot=tp
body
  alloc a
  alloc h
  alloc y
  kernel compute F/L0/fc1 gemm m=2 n=4 k=4 tb : x[0:2] w1 : a[0:2]
  kernel compute F/L0/relu activation_forward t=2 f=4 activation=relu : a[0:2] : h[0:2]
  kernel compute F/L0/fc2 gemm m=2 n=4 k=4 tb : h[0:2] w2 : y[0:2]
  record compute e0
  wait tp e0
  collective tp F/L0/tp_all_reduce all_reduce slot=tp n=8 : y[0:2] : y[0:2]
  record tp e1
  kernel compute F/L0/fc1#1 gemm m=2 n=4 k=4 tb : x[2:4] w1 : a[2:4]
  kernel compute F/L0/relu#1 activation_forward t=2 f=4 activation=relu : a[2:4] : h[2:4]
  kernel compute F/L0/fc2#1 gemm m=2 n=4 k=4 tb : h[2:4] w2 : y[2:4]
  record compute e2
  free a
  free h
  wait tp e2
  collective tp F/L0/tp_all_reduce#1 all_reduce slot=tp n=8 : y[2:4] : y[2:4]
  record tp e3
  wait compute e1
  kernel compute F/L0/residual bias_dropout_add t=2 h=4 : y[0:2] x[0:2] : z[0:2]
  wait compute e3
  kernel compute F/L0/residual#1 bias_dropout_add t=2 h=4 : y[2:4] x[2:4] : z[2:4]
  free y
rank layer gpu=0 tp=pair
rank layer gpu=1 tp=pair
)";

double tensor_parallel_distance(const Results& results) {
  const Matrix x = seeded(3, 4, 4), w1 = parameter("fc1", 8, 4), w2 = parameter("fc2", 4, 8);
  const Matrix z = sum(product(relu(product(x, transposed(w1))), transposed(w2)), x);
  return std::max(distance(results.buffer(0, "z"), z.v), distance(results.buffer(1, "z"), z.v));
}

TEST(HandwrittenPlans, TensorParallelLayerWithChunkedOverlap) {
  expect_right(kTensorParallel, 1, tensor_parallel_distance);
  EXPECT_EQ(expect_every_wait_matters(kTensorParallel, 1, tensor_parallel_distance), 4);
}

// ---- (b) interleaved 1F1B: two stages of two chunks, four micro-batches ----

std::string replaced(std::string text, char mark, int number) {
  const std::string value = std::to_string(number);
  for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at)) {
    text.replace(at, 1, value);
  }
  return text;
}

// Chunk %'s forward for micro-batch ^: y = x W^T. Chunk 0 has its input; chunk 3 ends in the loss.
constexpr const char* kReceiveForward = R"(
  alloc x% @^
  recv in P/L%/recv @^ recv_from slot=other n=8 : : x%
  record in e0
  wait compute e0)";
constexpr const char* kForward = R"(
  alloc y% @^
  kernel compute F/L%/fc @^ gemm m=2 n=4 k=4 tb : x% w% : y%)";
constexpr const char* kSendForward = R"(
  record compute e1
  wait out e1
  send out P/L%/send @^ send_to slot=other n=8 : y% :
  free y% @^)";
constexpr const char* kLoss = R"(
  alloc top @^
  alloc sums @^
  kernel compute F/head/max @^ logits_max t=2 v=4 : y3 : top
  kernel compute F/head/sum @^ logits_sum t=2 v=4 : y3 top targets : sums
  kernel compute F/head/loss @^ loss_from_sums t=2 accumulate scale=0.125 : top sums : loss)";
// Chunk %'s backward: dx = dy W, dW += dy^T x.
constexpr const char* kReceiveBackward = R"(
  alloc dy% @^
  recv in P/L%/recv_grad @^ recv_from slot=other n=8 : : dy%
  record in e2
  wait compute e2)";
constexpr const char* kLossBackward = R"(
  alloc dy3 @^
  kernel compute B/head/ce @^ cross_entropy_backward t=2 v=4 scale=0.125 : y3 top sums targets : dy3
  free y3 @^
  free top @^
  free sums @^)";
constexpr const char* kSendBackward = R"(
  alloc dx% @^
  kernel compute B/L%/fc @^ gemm m=2 n=4 k=4 : dy% w% : dx%
  record compute e3
  wait out e3
  send out P/L%/send_grad @^ send_to slot=other n=8 : dx% :
  free dx% @^)";
constexpr const char* kWeightGrad = R"(
  kernel compute W/L%/fc @^ gemm m=4 n=4 k=2 ta accumulate : dy% x% : dw%
  free dy% @^)";
constexpr const char* kFreeInput = R"(
  free x% @^)";

/// The instructions of a schedule such as "F0.0 F0.1 B2.0": phase, chunk, micro-batch.
std::string steps(const std::string& schedule) {
  std::string text;
  for (std::size_t at = 0; at + 4 <= schedule.size(); at += 5) {
    const int chunk = schedule[at + 1] - '0', frame = schedule[at + 3] - '0';
    const auto add = [&](const char* part) {
      text += replaced(replaced(part, '%', chunk), '^', frame);
    };
    if (schedule[at] == 'F') {
      if (chunk > 0) add(kReceiveForward);
      add(kForward);
      add(chunk < 3 ? kSendForward : kLoss);
    } else {
      add(chunk < 3 ? kReceiveBackward : kLossBackward);
      if (chunk > 0) add(kSendBackward);
      add(kWeightGrad);
      if (chunk > 0) add(kFreeInput);
    }
  }
  return text + "\n";
}

std::string pipeline_buffers() {
  std::string text = "buffer x0 2x4 f32 framed persistent seed=5\n";
  for (int c = 0; c < 4; ++c) {
    if (c > 0) text += replaced("buffer x% 2x4 f32 framed\nbuffer dx% 2x4 f32 framed\n", '%', c);
    text += replaced(R"(buffer y% 2x4 f32 framed
buffer dy% 2x4 f32 framed
buffer w% 4x4 f32 class=weights persistent
buffer dw% 4x4 f32 class=gradients persistent
)",
                     '%', c);
  }
  return text + R"(buffer targets 1x2 i64 framed persistent
buffer top 2x1 f32 framed
buffer sums 2x2 f32 framed
buffer loss 1x1 f32 persistent
)";
}

constexpr const char* kStage = R"(  stream compute compute
  stream in communication
  stream out communication
  slot other pp peer
)";

std::string pipeline() {
  return pipeline_buffers() + "program stage0 frames=4\n" + kStage + R"(
  param layer0 4x4 weight=w0 gradient=dw0
  param layer2 4x4 weight=w2 gradient=dw2
body
  kernel compute O/zero#0 zero n=16 : : dw0
  kernel compute O/zero#2 zero n=16 : : dw2
)" + steps("F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3") +
         "program stage1 frames=4\n" + kStage + R"(
  param layer1 4x4 weight=w1 gradient=dw1
  param layer3 4x4 weight=w3 gradient=dw3
  input targets targets samples=1 sequence=2 vocab=4
  loss loss
body
  kernel compute O/zero#1 zero n=16 : : dw1
  kernel compute O/zero#3 zero n=16 : : dw3
  kernel compute O/zero_loss zero n=1 : : loss
)" + steps("F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3") +
         R"(
rank stage0 gpu=0 other=1
rank stage1 gpu=1 other=0
)";
}

double pipeline_distance(const Results& results) {
  std::vector<Matrix> weights, gradients(4, Matrix(4, 4));
  for (int c = 0; c < 4; ++c) weights.push_back(parameter("layer" + std::to_string(c), 4, 4));
  double loss = 0.0;
  for (std::int64_t frame = 0; frame < 4; ++frame) {
    std::vector<Matrix> x{seeded(5, 2, 4, frame)};
    for (const Matrix& w : weights) x.push_back(product(x.back(), transposed(w)));
    Matrix dy(2, 4);
    loss += cross_entropy(x.back(), frame, 1.0 / 8, dy);
    for (std::size_t c = 4; c-- > 0;) {
      gradients[c] = sum(gradients[c], product(transposed(dy), x[c]));
      dy = product(dy, weights[c]);
    }
  }
  double worst = std::abs(loss - results.loss);
  for (std::size_t c = 0; c < 4; ++c) {
    const auto& found = results.gradients.at("layer" + std::to_string(c)).values;
    worst = std::max(worst, distance(found, gradients[c].v));
  }
  return worst;
}

TEST(HandwrittenPlans, InterleavedPipelineOfTwoVirtualStages) {
  expect_right(pipeline(), 1, pipeline_distance);
  expect_right(pipeline(), 2, pipeline_distance);
  // 24 transfers: each has one wait where it is sent and one where it is received.
  EXPECT_EQ(expect_every_wait_matters(pipeline(), 1, pipeline_distance), 48);
}

// ---- (c) ZeRO-3: parameters gathered ahead, gradients reduce-scattered behind ----

// logits = E[tokens] W0^T W1^T on two data-parallel ranks; each holds half of the rows of W0 and
// W1.
constexpr const char* kZero3 = R"(
buffer tokens 1x2 i64 framed persistent
buffer targets 1x2 i64 framed persistent
buffer table 4x4 f32 class=weights persistent
buffer w0 2x4 f32 class=weights persistent
buffer w1 2x4 f32 class=weights persistent
buffer g0 2x4 f32 class=gradients persistent
buffer g1 2x4 f32 class=gradients persistent
buffer whole0 4x4 f32 class=communication
buffer whole1 4x4 f32 class=communication
buffer again0 4x4 f32 class=communication
buffer partial0 4x4 f32 class=communication
buffer partial1 4x4 f32 class=communication
buffer x 2x4 f32 framed
buffer h 2x4 f32 framed
buffer y 2x4 f32 framed
buffer dy 2x4 f32 framed
buffer dh 2x4 f32 framed
buffer top 2x1 f32 framed
buffer sums 2x2 f32 framed
buffer loss 1x1 f32 persistent
communicator all 0 1
program replica frames=1
  stream compute compute
  stream gather communication
  stream reduce communication
  slot dp dp
  param table 4x4 weight=table
  param w0 2x4 weight=w0 gradient=g0 axis=rows slot=dp
  param w1 2x4 weight=w1 gradient=g1 axis=rows slot=dp
  input tokens samples=1 sequence=2 vocab=4 data=dp
  input targets targets samples=1 sequence=2 vocab=4 data=dp
  loss loss
body
  kernel compute O/zero zero n=1 : : loss
  alloc whole0
  collective gather G/L0/gather all_gather slot=dp n=16 : w0 : whole0
  record gather e0
  alloc whole1
  collective gather G/L1/gather all_gather slot=dp n=16 : w1 : whole1
  record gather e1
  alloc x @0
  alloc h @0
  alloc y @0
  kernel compute F/embed @0 embedding_forward t=2 h=4 v=4 : tokens table : x
  wait compute e0
  kernel compute F/L0/fc @0 gemm m=2 n=4 k=4 tb : x whole0 : h
  record compute e2
  free whole0
  wait compute e1
  kernel compute F/L1/fc @0 gemm m=2 n=4 k=4 tb : h whole1 : y
  host_wait e2                                  # the gather limit: two whole layers at a time
  alloc again0
  collective gather G/L0/gather#1 all_gather slot=dp n=16 : w0 : again0
  record gather e3
  alloc top @0
  alloc sums @0
  alloc dy @0
  kernel compute F/head/max @0 logits_max t=2 v=4 : y : top
  kernel compute F/head/sum @0 logits_sum t=2 v=4 : y top targets : sums
  kernel compute F/head/loss @0 loss_from_sums t=2 accumulate scale=0.25 : top sums : loss
  kernel compute B/head/loss @0 cross_entropy_backward t=2 v=4 scale=0.25 : y top sums targets : dy
  free top @0
  free sums @0
  free y @0
  alloc dh @0
  alloc partial1
  kernel compute B/L1/fc @0 gemm m=2 n=4 k=4 : dy whole1 : dh
  free whole1
  kernel compute W/L1/fc @0 gemm m=4 n=4 k=2 ta : dy h : partial1
  record compute e4
  free dy @0
  free h @0
  wait reduce e4
  collective reduce D/L1/reduce_scatter reduce_scatter slot=dp n=16 : partial1 : g1
  free partial1
  alloc partial0
  alloc dy @0
  wait compute e3
  kernel compute B/L0/fc @0 gemm m=2 n=4 k=4 : dh again0 : dy
  free again0
  kernel compute W/L0/fc @0 gemm m=4 n=4 k=2 ta : dh x : partial0
  record compute e5
  free dy @0
  free dh @0
  free x @0
  wait reduce e5
  collective reduce D/L0/reduce_scatter reduce_scatter slot=dp n=16 : partial0 : g0
  free partial0
rank replica gpu=0 dp=all
rank replica gpu=1 dp=all
)";

double zero3_distance(const Results& results) {
  const Matrix table = parameter("table", 4, 4), w0 = parameter("w0", 4, 4),
               w1 = parameter("w1", 4, 4);
  Matrix g0(4, 4), g1(4, 4);
  double loss = 0.0;
  for (std::int64_t sample = 0; sample < 2; ++sample) {  // one on each rank
    Matrix x(2, 4);
    for (std::int64_t i = 0; i < 2; ++i) {
      for (std::int64_t j = 0; j < 4; ++j) x.at(i, j) = table.at(token(sample, i, 4), j);
    }
    const Matrix h = product(x, transposed(w0));
    Matrix dy(2, 4);
    loss += cross_entropy(product(h, transposed(w1)), sample, 1.0 / 4, dy);
    g1 = sum(g1, product(transposed(dy), h));
    g0 = sum(g0, product(transposed(product(dy, w1)), x));
  }
  return std::max({std::abs(loss - results.loss), distance(results.gradients.at("w0").values, g0.v),
                   distance(results.gradients.at("w1").values, g1.v)});
}

TEST(HandwrittenPlans, Zero3LayerWithPrefetchedGathers) {
  expect_right(kZero3, 1, zero3_distance);
  EXPECT_EQ(expect_every_wait_matters(kZero3, 1, zero3_distance), 5);
}

// ---- (d) an offloaded layer whose prefetch crosses the iteration border ----

// total += relu(x A^T) B^T once per body. A and B live on the host; each body evicts its copies by
// a Free, since they are unchanged, and fetches the copies of the next body. The prologue fetches
// the first.
constexpr const char* kOffload = R"(
arena gpu
arena host
buffer x 2x4 f32 persistent seed=7
buffer wa_home 4x4 f32 class=weights arena=host persistent
buffer wb_home 4x4 f32 class=weights arena=host persistent
buffer wa 4x4 f32 class=weights
buffer wb 4x4 f32 class=weights
buffer a 2x4 f32
buffer h 2x4 f32
buffer total 2x4 f32 persistent
program trainer
  stream compute compute
  stream fetch copy_in
  param a 4x4 weight=wa_home
  param b 4x4 weight=wb_home
prologue
  alloc wa
  copy fetch X/L0/fetch copy_bytes n=16 copy=h2d : wa_home : wa
  record fetch e0
  alloc wb
  copy fetch X/L1/fetch copy_bytes n=16 copy=h2d : wb_home : wb
  record fetch e1
body
  alloc a
  alloc h
  wait compute e0 previous
  kernel compute F/L0/fc gemm m=2 n=4 k=4 tb : x wa : a
  record compute e2
  free wa
  kernel compute F/L0/relu activation_forward t=2 f=4 activation=relu : a : h
  alloc wa
  wait fetch e2
  copy fetch X/L0/fetch copy_bytes n=16 copy=h2d : wa_home : wa
  record fetch e0
  wait compute e1 previous
  kernel compute F/L1/fc gemm m=2 n=4 k=4 tb accumulate : h wb : total
  record compute e3
  free a
  free h
  free wb
  alloc wb
  wait fetch e3
  copy fetch X/L1/fetch copy_bytes n=16 copy=h2d : wb_home : wb
  record fetch e1
rank trainer gpu=0
)";

TEST(HandwrittenPlans, OffloadedLayerWhosePrefetchCrossesTheBorder) {
  const Matrix x = seeded(7, 2, 4), a = parameter("a", 4, 4), b = parameter("b", 4, 4);
  const Matrix once = product(relu(product(x, transposed(a))), transposed(b));
  for (const int bodies : {1, 3}) {
    const auto distance_of = [&](const Results& results) {
      Matrix total(2, 4);
      for (int k = 0; k < bodies; ++k) total = sum(total, once);
      return distance(results.buffer(0, "total"), total.v);
    };
    expect_right(kOffload, bodies, distance_of);
    if (bodies == 1) continue;  // fetching too early harms the next body only
    EXPECT_EQ(expect_every_wait_matters(kOffload, bodies, distance_of), 4);
  }
}

}  // namespace
}  // namespace gputwin
