// What every kernel kind of sim/core/op.h computes, on dense row-major arrays of doubles.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "tests/support/interpreter_state.h"

namespace gputwin::interpreted {

namespace {

using Array = std::vector<double>;

constexpr double kNormEpsilon = 1e-5;
constexpr double kRopeBase = 10000.0;
constexpr double kPi = 3.14159265358979323846;

void need(bool condition, const std::string& what) {
  if (!condition) throw Fault(what);
}

/// The `index`-th array, which must have `elements` elements.
const Array& input(const Work& work, std::size_t index, std::int64_t elements) {
  need(index < work.reads.size(), "an operand is missing");
  need(static_cast<std::int64_t>(work.reads[index].size()) == elements,
       "read " + std::to_string(index) + " has " + std::to_string(work.reads[index].size()) +
           " elements where the dims say " + std::to_string(elements));
  return work.reads[index];
}

Array& output(Work& work, std::size_t index, std::int64_t elements) {
  need(index < work.writes.size(), "an output is missing");
  need(static_cast<std::int64_t>(work.writes[index].size()) == elements,
       "write " + std::to_string(index) + " has " + std::to_string(work.writes[index].size()) +
           " elements where the dims say " + std::to_string(elements));
  return work.writes[index];
}

/// Writes a value into an output marked "+=" in op.h.
void accumulate(const Op& op, double& place, double value) {
  place = op.accumulate ? place + value : value;
}

void gemm(Work& work) {
  const Op& op = work.op;
  const auto [m, n, k] = std::array{op.dims[0], op.dims[1], op.dims[2]};
  const Array& a = input(work, 0, m * k);
  const Array& b = input(work, 1, k * n);
  Array& c = output(work, 0, m * n);
  const Array* bias = work.reads.size() > 2 ? &input(work, 2, n) : nullptr;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = bias ? (*bias)[j] : 0.0;
      for (std::int64_t l = 0; l < k; ++l) {
        sum +=
            (op.trans_a ? a[l * m + i] : a[i * k + l]) * (op.trans_b ? b[j * k + l] : b[l * n + j]);
      }
      accumulate(op, c[i * n + j], sum);
    }
  }
}

/// Block i of C is the product of blocks i of A and B.
void grouped_gemm(Work& work) {
  const Op& op = work.op;
  const auto [g, m, n, k, u0, u1] = op.dims;
  const Array& a = input(work, 0, g * m * k);
  const Array& b = input(work, 1, g * k * n);
  Array& c = output(work, 0, g * m * n);
  for (std::int64_t e = 0; e < g; ++e) {
    const double* from_a = a.data() + e * m * k;
    const double* from_b = b.data() + e * k * n;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0.0;
        for (std::int64_t l = 0; l < k; ++l) {
          sum += (op.trans_a ? from_a[l * m + i] : from_a[i * k + l]) *
                 (op.trans_b ? from_b[j * k + l] : from_b[l * n + j]);
        }
        accumulate(op, c[(e * m + i) * n + j], sum);
      }
    }
  }
}

/// Rows by expert (op.h, note 12) and back.
void permute(Work& work) {
  const auto [t, h, k, e, c, unused] = work.op.dims;
  const bool forward = work.op.kind == OpKind::Permute;
  const Array& from = input(work, 0, forward ? t * h : e * c * h);
  Array& to = output(work, 0, forward ? e * c * h : t * h);
  std::fill(to.begin(), to.end(), 0.0);
  for (std::int64_t choice = 0; choice < t * k; ++choice) {
    const std::int64_t row = choice / k, slot = choice / e;
    if (slot >= c) continue;
    const std::int64_t place = choice % e * c + slot;
    for (std::int64_t x = 0; x < h; ++x) {
      if (forward)
        to[place * h + x] = from[row * h + x];
      else
        to[row * h + x] += from[place * h + x];
    }
  }
}

/// The softmax over all experts at the chosen ones, and its gradient.
void router(Work& work) {
  const std::int64_t t = work.op.dims[0], e = work.op.dims[1], k = work.op.dims[2];
  const bool forward = work.op.kind == OpKind::RouterForward;
  const Array& logits = input(work, forward ? 0 : 1, t * e);
  Array& to = output(work, 0, forward ? t * k : t * e);
  for (std::int64_t r = 0; r < t; ++r) {
    const double* row = logits.data() + r * e;
    const double top = *std::max_element(row, row + e);
    double sum = 0.0;
    for (std::int64_t x = 0; x < e; ++x) sum += std::exp(row[x] - top);
    const auto gate = [&](std::int64_t x) { return std::exp(row[x] - top) / sum; };
    if (forward) {
      for (std::int64_t j = 0; j < k; ++j) to[r * k + j] = gate((r * k + j) % e);
      continue;
    }
    const Array& grads = input(work, 0, t * k);
    double dot = 0.0;
    for (std::int64_t j = 0; j < k; ++j) dot += grads[r * k + j] * gate((r * k + j) % e);
    for (std::int64_t x = 0; x < e; ++x) to[r * e + x] = -dot * gate(x);
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int64_t x = (r * k + j) % e;
      to[r * e + x] += grads[r * k + j] * gate(x);
    }
  }
}

/// Sizes of an attention op, and where its elements lie.
struct Heads {
  std::int64_t b, a, g, s, u, d;
  explicit Heads(const Op& op, std::int64_t size = 0)
      : b(op.dims[0]),
        a(op.dims[1]),
        g(op.dims[2]),
        s(op.dims[3]),
        u(op.dims[4]),
        d(size > 0 ? size : op.dims[5]) {
    need(g > 0 && a % g == 0, "query heads are not a multiple of key heads");
  }
  std::int64_t query_size() const { return b * s * a * d; }
  std::int64_t key_size() const { return b * u * g * d; }
  std::int64_t score_size() const { return b * a * s * u; }
  std::int64_t query(std::int64_t n, std::int64_t h, std::int64_t i) const {
    return ((n * s + i) * a + h) * d;
  }
  std::int64_t key(std::int64_t n, std::int64_t h, std::int64_t j) const {
    return ((n * u + j) * g + h / (a / g)) * d;
  }
  std::int64_t score(std::int64_t n, std::int64_t h, std::int64_t i) const {
    return ((n * a + h) * s + i) * u;
  }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(d)); }

  template <class Visit>  // visit(query offset, key offset, score offset) for every (query, key)
                          // pair
  void each(Visit visit) const {
    for (std::int64_t n = 0; n < b; ++n) {
      for (std::int64_t h = 0; h < a; ++h) {
        for (std::int64_t i = 0; i < s; ++i) {
          for (std::int64_t j = 0; j < u; ++j)
            visit(query(n, h, i), key(n, h, j), score(n, h, i) + j);
        }
      }
    }
  }
};

/// scores = factor x rows . columns over the head size.
Array products(const Heads& heads, const Array& left, const Array& right, double factor) {
  Array result(static_cast<std::size_t>(heads.score_size()));
  heads.each([&](std::int64_t q, std::int64_t k, std::int64_t s) {
    double sum = 0.0;
    for (std::int64_t x = 0; x < heads.d; ++x) sum += left[q + x] * right[k + x];
    result[s] = factor * sum;
  });
  return result;
}

/// result of the query's shape: factor x scores times an array of the key's shape.
Array toward_queries(const Heads& heads, const Array& scores, const Array& keys, double factor) {
  Array result(static_cast<std::size_t>(heads.query_size()));
  heads.each([&](std::int64_t q, std::int64_t k, std::int64_t s) {
    for (std::int64_t x = 0; x < heads.d; ++x) result[q + x] += factor * scores[s] * keys[k + x];
  });
  return result;
}

/// result of the key's shape: factor x transposed scores times an array of the query's shape,
/// summed over the query heads that share a key head.
Array toward_keys(const Heads& heads, const Array& scores, const Array& queries, double factor) {
  Array result(static_cast<std::size_t>(heads.key_size()));
  heads.each([&](std::int64_t q, std::int64_t k, std::int64_t s) {
    for (std::int64_t x = 0; x < heads.d; ++x) result[k + x] += factor * scores[s] * queries[q + x];
  });
  return result;
}

/// ALiBi's slope of head h of n (Press et al. 2022): 2^(-8 (h + 1) / n) for a power of two; else
/// the slopes of the next smaller power of two, then every other one of the next larger.
double alibi_slope(std::int64_t h, std::int64_t n) {
  std::int64_t power = 1;
  while (2 * power <= n) power *= 2;
  const double step =
      h < power ? 8.0 / static_cast<double>(power) : 4.0 / static_cast<double>(power);
  const std::int64_t index = h < power ? h + 1 : 2 * (h - power) + 1;
  return std::exp2(-step * static_cast<double>(index));
}

/// Q K^T / sqrt(d), with the biases of ALiBi if the op asks for them.
Array scores_of(const Work& work, const Heads& heads, const Array& queries, const Array& keys) {
  Array scores = products(heads, queries, keys, heads.scale());
  if (!work.op.alibi) return scores;
  const std::int64_t first = work.member * heads.a, all = work.members * heads.a;
  for (std::int64_t k = 0; k < heads.score_size(); ++k) {
    const std::int64_t head = first + k / (heads.s * heads.u) % heads.a;
    scores[k] += alibi_slope(head, all) * static_cast<double>(k % heads.u);
  }
  return scores;
}

void attention_gemm(Work& work) {
  const Heads heads(work.op);
  const auto q = heads.query_size(), k = heads.key_size(), s = heads.score_size();
  const OpKind kind = work.op.kind;
  if (kind == OpKind::AttentionScores) {
    output(work, 0, s) = scores_of(work, heads, input(work, 0, q), input(work, 1, k));
  } else if (kind == OpKind::AttentionContext) {
    output(work, 0, q) = toward_queries(heads, input(work, 0, s), input(work, 1, k), 1.0);
  } else if (kind == OpKind::AttentionGradProbs) {
    output(work, 0, s) = products(heads, input(work, 0, q), input(work, 1, k), 1.0);
  } else if (kind == OpKind::AttentionGradValue) {
    output(work, 0, k) = toward_keys(heads, input(work, 0, s), input(work, 1, q), 1.0);
  } else if (kind == OpKind::AttentionGradQuery) {
    output(work, 0, q) = toward_queries(heads, input(work, 0, s), input(work, 1, k), heads.scale());
  } else {
    output(work, 0, k) = toward_keys(heads, input(work, 0, s), input(work, 1, q), heads.scale());
  }
}

/// Which of `u` keys a row of queries sees.
class Sight {
 public:
  Sight(const Work& work, std::int64_t s, std::int64_t u) : work_(work), s_(s), u_(u) {
    const bool whole = u == s * work.cp_members, one_member = u == s;
    need(!work.op.cp_slot.valid() || whole || one_member, "keys are neither all nor one member's");
    whole_ = whole;
    source_ = work.cp_member - static_cast<std::int64_t>(work.op.ring_step) % work.cp_members;
    if (source_ < 0) source_ += work.cp_members;
  }
  /// Number of keys, from the first one on, that query `row` (of any sample and head) sees.
  std::int64_t keys(std::int64_t row) const {
    if (!work_.op.causal) return u_;
    const std::int64_t query = row % s_;
    if (!work_.op.cp_slot.valid()) return std::min(u_, query + (u_ - s_) + 1);
    const std::int64_t members = work_.cp_members;
    const std::int64_t position = sequence_position(query, s_, work_.cp_member, members);
    if (whole_) return position + 1;
    std::int64_t seen = 0;  // positions of a member's rows ascend
    while (seen < u_ && sequence_position(seen, u_, source_, members) <= position) ++seen;
    return seen;
  }

  /// The first of them: a window leaves out those before it.
  std::int64_t first(std::int64_t row) const {
    const std::int64_t window = work_.op.window;
    need(window == 0 || !work_.op.cp_slot.valid(), "a window with a cut sequence has no meaning");
    return window == 0 ? 0 : std::max<std::int64_t>(0, keys(row) - window);
  }

 private:
  const Work& work_;
  std::int64_t s_, u_, source_ = 0;
  bool whole_ = false;
};

/// Softmax of each row of `u` scores over the keys it sees. Also the rows' log-sum-exp.
Array softmax(const Array& scores, std::int64_t u, const Sight& sight, Array* log_sums) {
  Array probs(scores.size(), 0.0);
  const std::int64_t rows = static_cast<std::int64_t>(scores.size()) / u;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t seen = sight.keys(row);
    if (log_sums) (*log_sums)[row] = -std::numeric_limits<double>::infinity();
    if (seen == 0) continue;
    const std::int64_t first = sight.first(row);
    const double* from = scores.data() + row * u;
    const double top = *std::max_element(from + first, from + seen);
    double sum = 0.0;
    for (std::int64_t j = first; j < seen; ++j) sum += std::exp(from[j] - top);
    for (std::int64_t j = first; j < seen; ++j) probs[row * u + j] = std::exp(from[j] - top) / sum;
    if (log_sums) (*log_sums)[row] = top + std::log(sum);
  }
  return probs;
}

Array softmax_backward(const Array& probs, const Array& grad, std::int64_t u) {
  Array result(probs.size());
  for (std::size_t row = 0; row < probs.size(); row += static_cast<std::size_t>(u)) {
    double dot = 0.0;
    for (std::int64_t j = 0; j < u; ++j) dot += probs[row + j] * grad[row + j];
    for (std::int64_t j = 0; j < u; ++j) result[row + j] = probs[row + j] * (grad[row + j] - dot);
  }
  return result;
}

void softmax_kernel(Work& work) {
  const auto& dims = work.op.dims;
  const std::int64_t s = dims[2], u = dims[3], n = dims[0] * dims[1] * s * u;
  if (work.op.kind == OpKind::SoftmaxForward) {
    output(work, 0, n) = softmax(input(work, 0, n), u, Sight(work, s, u), nullptr);
  } else {
    output(work, 0, n) = softmax_backward(input(work, 0, n), input(work, 1, n), u);
  }
}

void flash_forward(Work& work) {
  const Heads heads(work.op), values(work.op, work.op.value_size);
  const auto q = heads.query_size(), k = heads.key_size();
  const std::int64_t rows = heads.b * heads.a * heads.s;
  const Array scores = scores_of(work, heads, input(work, 0, q), input(work, 1, k));
  Array log_sums(static_cast<std::size_t>(rows));
  const Array probs = softmax(scores, heads.u, Sight(work, heads.s, heads.u), &log_sums);
  output(work, 0, values.query_size()) =
      toward_queries(values, probs, input(work, 2, values.key_size()), 1.0);
  output(work, 1, rows) = log_sums;
}

/// P = exp(S - L) and dS = P (dP - dO . O) with the L and O of all keys, whatever part is here.
void flash_backward(Work& work) {
  const Heads heads(work.op), values(work.op, work.op.value_size);
  const auto q = heads.query_size(), k = heads.key_size();
  const std::int64_t rows = heads.b * heads.a * heads.s;
  Array probs = scores_of(work, heads, input(work, 0, q), input(work, 1, k));
  const Array& out = input(work, 3, values.query_size());
  const Array& log_sums = input(work, 4, rows);
  const Array& grad = input(work, 5, values.query_size());
  Array d_scores = products(values, grad, input(work, 2, values.key_size()), 1.0);
  const Sight sight(work, heads.s, heads.u);
  for (std::int64_t n = 0; n < heads.b; ++n) {
    for (std::int64_t h = 0; h < heads.a; ++h) {
      for (std::int64_t i = 0; i < heads.s; ++i) {
        const std::int64_t from = heads.score(n, h, i), row = from / heads.u;
        const std::int64_t at = values.query(n, h, i);
        double dot = 0.0, total = 0.0;
        for (std::int64_t x = 0; x < values.d; ++x) dot += grad[at + x] * out[at + x];
        for (std::int64_t j = from; j < from + heads.u; ++j) {
          const bool seen = j - from >= sight.first(row) && j - from < sight.keys(row);
          probs[j] = seen ? std::exp(probs[j] - log_sums[row]) : 0.0;
          d_scores[j] = probs[j] * (d_scores[j] - dot);
          total += probs[j];
        }
        const bool all_keys = !work.op.cp_slot.valid() || heads.u > heads.s;
        need(!all_keys || std::abs(total - 1.0) < 1e-9, "flash backward got another log-sum-exp");
      }
    }
  }
  output(work, 0, q) = toward_queries(heads, d_scores, work.reads[1], heads.scale());
  output(work, 1, k) = toward_keys(heads, d_scores, work.reads[0], heads.scale());
  output(work, 2, values.key_size()) = toward_keys(values, probs, grad, 1.0);
}

void attention_merge(Work& work) {
  const auto& dims = work.op.dims;
  const std::int64_t b = dims[0], a = dims[1], s = dims[2], d = dims[3];
  const Array& part = input(work, 0, b * s * a * d);
  const Array& part_sums = input(work, 1, b * a * s);
  Array& out = output(work, 0, b * s * a * d);
  Array& log_sums = output(work, 1, b * a * s);
  for (std::int64_t row = 0; row < b * a * s; ++row) {
    const std::int64_t n = row / (a * s), h = row / s % a, i = row % s;
    const double here = log_sums[row], there = part_sums[row], top = std::max(here, there);
    need(std::isfinite(top), "a query sees no key in either part");
    const double sum = top + std::log(std::exp(here - top) + std::exp(there - top));
    for (std::int64_t x = 0; x < d; ++x) {
      const std::int64_t at = ((n * s + i) * a + h) * d + x;
      out[at] = std::exp(here - sum) * out[at] + std::exp(there - sum) * part[at];
    }
    log_sums[row] = sum;
  }
}

void norm_forward(Work& work) {
  const std::int64_t t = work.op.dims[0], h = work.op.dims[1];
  const Array& x = input(work, 0, t * h);
  const Array& gamma = input(work, 1, h);
  const Array* beta = work.reads.size() > 2 ? &input(work, 2, h) : nullptr;
  Array& y = output(work, 0, t * h);
  Array& stats = output(work, 1, 2 * t);
  for (std::int64_t r = 0; r < t; ++r) {
    double mean = 0.0, square = 0.0;
    if (work.op.norm == Norm::LayerNorm) {
      for (std::int64_t c = 0; c < h; ++c) mean += x[r * h + c] / static_cast<double>(h);
    }
    for (std::int64_t c = 0; c < h; ++c) square += (x[r * h + c] - mean) * (x[r * h + c] - mean);
    const double inverse = 1.0 / std::sqrt(square / static_cast<double>(h) + kNormEpsilon);
    for (std::int64_t c = 0; c < h; ++c) {
      y[r * h + c] = (x[r * h + c] - mean) * inverse * gamma[c] + (beta ? (*beta)[c] : 0.0);
    }
    stats[2 * r] = mean;
    stats[2 * r + 1] = inverse;
  }
}

void norm_backward(Work& work) {
  const std::int64_t t = work.op.dims[0], h = work.op.dims[1];
  const bool centred = work.op.norm == Norm::LayerNorm;
  const Array& dy = input(work, 0, t * h);
  const Array& x = input(work, 1, t * h);
  const Array& gamma = input(work, 2, h);
  const Array& stats = input(work, 3, 2 * t);
  const Array* add = work.reads.size() > 4 ? &input(work, 4, t * h) : nullptr;
  Array& dx = output(work, 0, t * h);
  Array d_gamma(static_cast<std::size_t>(h)), d_beta(static_cast<std::size_t>(h));
  for (std::int64_t r = 0; r < t; ++r) {
    const double mean = stats[2 * r], inverse = stats[2 * r + 1];
    double sum = 0.0, dot = 0.0;
    for (std::int64_t c = 0; c < h; ++c) {
      const double normed = (x[r * h + c] - mean) * inverse;
      d_gamma[c] += dy[r * h + c] * normed;
      d_beta[c] += dy[r * h + c];
      sum += centred ? dy[r * h + c] * gamma[c] / static_cast<double>(h) : 0.0;
      dot += dy[r * h + c] * gamma[c] * normed / static_cast<double>(h);
    }
    for (std::int64_t c = 0; c < h; ++c) {
      const double normed = (x[r * h + c] - mean) * inverse;
      dx[r * h + c] = inverse * (dy[r * h + c] * gamma[c] - sum - normed * dot) +
                      (add ? (*add)[r * h + c] : 0.0);
    }
  }
  for (std::int64_t c = 0; c < h; ++c) {
    if (work.writes.size() > 1) accumulate(work.op, output(work, 1, h)[c], d_gamma[c]);
    if (work.writes.size() > 2) accumulate(work.op, output(work, 2, h)[c], d_beta[c]);
  }
}

double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::Gelu:
    case Activation::Geglu: return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
    case Activation::Relu: return x > 0 ? x : 0.0;
    case Activation::SqRelu: return x > 0 ? x * x : 0.0;
    case Activation::Swiglu: return x / (1.0 + std::exp(-x));
  }
  throw Fault("unknown activation");
}

double activation_slope(Activation activation, double x) {
  switch (activation) {
    case Activation::Gelu:
    case Activation::Geglu:
      return 0.5 * (1.0 + std::erf(x / std::sqrt(2.0))) +
             x * std::exp(-0.5 * x * x) / std::sqrt(2.0 * kPi);
    case Activation::Relu: return x > 0 ? 1.0 : 0.0;
    case Activation::SqRelu: return x > 0 ? 2.0 * x : 0.0;
    case Activation::Swiglu: {
      const double sigmoid = 1.0 / (1.0 + std::exp(-x));
      return sigmoid * (1.0 + x * (1.0 - sigmoid));
    }
  }
  throw Fault("unknown activation");
}

/// The input of an activation with its bias added; read `first` is x, read `first + 1` the optional
/// bias. Weights of rows come last.
Array biased(const Work& work, std::size_t first, std::int64_t rows, std::int64_t cols) {
  Array x = input(work, first, rows * cols);
  if (work.reads.size() > first + (work.op.weighted ? 2 : 1)) {
    const Array& bias = input(work, first + 1, cols);
    for (std::int64_t k = 0; k < rows * cols; ++k) x[k] += bias[k % cols];
  }
  return x;
}

void activation_forward(Work& work) {
  const std::int64_t t = work.op.dims[0], f = work.op.dims[1];
  const bool gated = is_gated(work.op.activation);
  const std::int64_t width = gated ? 2 * f : f;
  const Array x = biased(work, 0, t, width);
  Array& y = output(work, 0, t * f);
  for (std::int64_t r = 0; r < t; ++r) {
    for (std::int64_t c = 0; c < f; ++c) {
      y[r * f + c] = activated(work.op.activation, x[r * width + c]) *
                     (gated ? x[r * width + f + c] : 1.0) *
                     (work.op.weighted ? work.reads.back().at(static_cast<std::size_t>(r)) : 1.0);
    }
  }
}

void activation_backward(Work& work) {
  const std::int64_t t = work.op.dims[0], f = work.op.dims[1];
  const bool gated = is_gated(work.op.activation);
  const std::int64_t width = gated ? 2 * f : f;
  const Array& dy = input(work, 0, t * f);
  const Array x = biased(work, 1, t, width);
  Array& dx = output(work, 0, t * width);
  const bool weighted = work.op.weighted;
  if (weighted)
    std::fill(output(work, work.writes.size() - 1, t).begin(), work.writes.back().end(), 0.0);
  for (std::int64_t r = 0; r < t; ++r) {
    const double weight = weighted ? work.reads.back().at(static_cast<std::size_t>(r)) : 1.0;
    for (std::int64_t c = 0; c < f; ++c) {
      const double gate = x[r * width + c], grad = weight * dy[r * f + c];
      const double up = gated ? x[r * width + f + c] : 1.0;
      if (weighted) {
        work.writes.back()[static_cast<std::size_t>(r)] +=
            dy[r * f + c] * up * activated(work.op.activation, gate);
      }
      dx[r * width + c] = grad * up * activation_slope(work.op.activation, gate);
      if (gated) dx[r * width + f + c] = grad * activated(work.op.activation, gate);
    }
  }
  if (work.writes.size() < (weighted ? 3U : 2U)) return;
  for (std::int64_t c = 0; c < width; ++c) {
    double sum = 0.0;
    for (std::int64_t r = 0; r < t; ++r) sum += dx[r * width + c];
    accumulate(work.op, output(work, 1, width)[c], sum);
  }
}

void bias_dropout_add(Work& work) {
  need(work.op.dropout == 0.0f, "dropout is interpreted only when 0");
  const std::int64_t t = work.op.dims[0], h = work.op.dims[1];
  const Array& x = input(work, 0, t * h);
  const bool has_bias = work.reads.size() > 2;
  const Array& residual = input(work, has_bias ? 2 : 1, t * h);
  Array& y = output(work, 0, t * h);
  for (std::int64_t k = 0; k < t * h; ++k) {
    y[k] = x[k] + (has_bias ? input(work, 1, h)[k % h] : 0.0) + residual[k];
  }
}

void bias_grad(Work& work) {
  const std::int64_t t = work.op.dims[0], h = work.op.dims[1];
  const Array& dy = input(work, 0, t * h);
  for (std::int64_t c = 0; c < h; ++c) {
    double sum = 0.0;
    for (std::int64_t r = 0; r < t; ++r) sum += dy[r * h + c];
    accumulate(work.op, output(work, 0, h)[c], sum);
  }
}

/// Rotates pairs (x, x + d/2) of the query and key heads of each row by position x base^(-2x/d).
void rope(Work& work) {
  const auto& dims = work.op.dims;
  const std::int64_t t = dims[0], heads = dims[1] + dims[2], d = dims[3];
  const std::int64_t sequence = dims[4] > 0 ? dims[4] : t;
  need(!work.reads.empty() && work.reads.size() == work.writes.size(), "rope reads what it writes");
  const std::int64_t elements = static_cast<std::int64_t>(work.reads[0].size());
  need(t > 0 && elements % t == 0 && elements / t >= heads * d, "rope rows are too short");
  const std::int64_t width = elements / t;
  Array& y = output(work, 0, elements);
  y = work.reads[0];
  for (std::int64_t r = 0; r < t; ++r) {
    for (std::int64_t k = 0; k < heads * d / 2; ++k) {
      const std::int64_t x = k % (d / 2), at = r * width + (k / (d / 2)) * d + x;
      const double exponent = -2.0 * static_cast<double>(x) / static_cast<double>(d);
      const double position = static_cast<double>(
          sequence_position(r % sequence, sequence, work.cp_member, work.cp_members));
      const double angle =
          (work.op.inverse ? -1.0 : 1.0) * position * std::pow(kRopeBase, exponent);
      const double first = y[at], second = y[at + d / 2];
      y[at] = first * std::cos(angle) - second * std::sin(angle);
      y[at + d / 2] = first * std::sin(angle) + second * std::cos(angle);
    }
  }
}

/// Rotates the pairs (x, x + r/2) of r elements that stand at `at`.
void rotate(Work& work, Array& values, std::int64_t at, std::int64_t r, std::int64_t row,
            std::int64_t sequence, bool inverse) {
  const double position = static_cast<double>(
      sequence_position(row % sequence, sequence, work.cp_member, work.cp_members));
  for (std::int64_t x = 0; x < r / 2; ++x) {
    const double exponent = -2.0 * static_cast<double>(x) / static_cast<double>(r);
    const double angle = (inverse ? -1.0 : 1.0) * position * std::pow(kRopeBase, exponent);
    const double first = values[at + x], second = values[at + x + r / 2];
    values[at + x] = first * std::cos(angle) - second * std::sin(angle);
    values[at + x + r / 2] = first * std::sin(angle) + second * std::cos(angle);
  }
}

void mla_rope(Work& work) {
  const auto [t, a, n, r, s, unused] = work.op.dims;
  Array& q = output(work, 0, t * a * (n + r));
  q = input(work, 0, t * a * (n + r));
  for (std::int64_t k = 0; k < t * a; ++k) {
    rotate(work, q, k * (n + r) + n, r, k / a, s, work.op.inverse);
  }
}

void mla_key_value(Work& work) {
  const auto [t, a, n, r, v, s] = work.op.dims;
  const Array& kv = input(work, 0, t * a * (n + v));
  const Array& shared = input(work, 1, t * r);
  Array& keys = output(work, 0, t * a * (n + r));
  Array& values = output(work, 1, t * a * v);
  for (std::int64_t k = 0; k < t * a; ++k) {
    for (std::int64_t x = 0; x < n; ++x) keys[k * (n + r) + x] = kv[k * (n + v) + x];
    for (std::int64_t x = 0; x < v; ++x) values[k * v + x] = kv[k * (n + v) + n + x];
    for (std::int64_t x = 0; x < r; ++x) keys[k * (n + r) + n + x] = shared[k / a * r + x];
    rotate(work, keys, k * (n + r) + n, r, k / a, s, false);
  }
}

void mla_key_value_grad(Work& work) {
  const auto [t, a, n, r, v, s] = work.op.dims;
  Array d_keys = input(work, 0, t * a * (n + r));
  const Array& d_values = input(work, 1, t * a * v);
  Array& d_kv = output(work, 0, t * a * (n + v));
  Array& d_shared = output(work, 1, t * r);
  std::fill(d_shared.begin(), d_shared.end(), 0.0);
  for (std::int64_t k = 0; k < t * a; ++k) {
    rotate(work, d_keys, k * (n + r) + n, r, k / a, s, true);
    for (std::int64_t x = 0; x < n; ++x) d_kv[k * (n + v) + x] = d_keys[k * (n + r) + x];
    for (std::int64_t x = 0; x < v; ++x) d_kv[k * (n + v) + n + x] = d_values[k * v + x];
    for (std::int64_t x = 0; x < r; ++x) d_shared[k / a * r + x] += d_keys[k * (n + r) + n + x];
  }
}

void embedding(Work& work) {
  const std::int64_t t = work.op.dims[0], h = work.op.dims[1], v = work.op.dims[2];
  const bool forward = work.op.kind == OpKind::EmbeddingForward;
  const Array& tokens = input(work, 0, t);
  const Array& from = input(work, 1, forward ? v * h : t * h);
  Array& to = output(work, 0, forward ? t * h : v * h);
  if (forward || !work.op.accumulate) std::fill(to.begin(), to.end(), 0.0);
  for (std::int64_t r = 0; r < t; ++r) {
    const std::int64_t row = std::llround(tokens[r]) - work.member * v;
    if (row < 0 || row >= v) continue;
    for (std::int64_t c = 0; c < h; ++c) {
      if (forward)
        to[r * h + c] = from[row * h + c];
      else
        to[row * h + c] += from[r * h + c];
    }
  }
}

/// Learned positions: row r of shard `member` takes the table row of its position in the sequence,
/// which is as long as the table.
void position(Work& work) {
  const std::int64_t t = work.op.dims[0], h = work.op.dims[1];
  const bool forward = work.op.kind == OpKind::PositionAdd;
  const Array& x = input(work, 0, t * h);
  need(!forward || work.reads.size() > 1, "the position table is missing");
  need(!work.writes.empty(), "an output is missing");
  const std::int64_t size =
      static_cast<std::int64_t>(forward ? work.reads[1].size() : work.writes[0].size());
  need(size > 0 && size % (h * work.cp_members) == 0, "the position table has other columns");
  Array& to = output(work, 0, forward ? t * h : size);
  if (!forward && !work.op.accumulate) std::fill(to.begin(), to.end(), 0.0);
  const std::int64_t rows = size / h / work.cp_members;
  for (std::int64_t k = 0; k < t * h; ++k) {
    const std::int64_t row = (work.member * t + k / h) % rows;
    const std::int64_t at =
        sequence_position(row, rows, work.cp_member, work.cp_members) * h + k % h;
    if (forward)
      to[k] = x[k] + work.reads[1][at];
    else
      to[at] += x[k];
  }
}

void logits_max(Work& work) {
  const std::int64_t t = work.op.dims[0], v = work.op.dims[1];
  const Array& logits = input(work, 0, t * v);
  for (std::int64_t r = 0; r < t; ++r) {
    output(work, 0, t)[r] = *std::max_element(&logits[r * v], &logits[r * v] + v);
  }
}

/// Sum of exp(logit - max) over this shard of the vocabulary, and the target's logit if it lies in
/// it.
void logits_sum(Work& work) {
  const std::int64_t t = work.op.dims[0], v = work.op.dims[1];
  const Array& logits = input(work, 0, t * v);
  const Array& top = input(work, 1, t);
  const Array& targets = input(work, 2, t);
  Array& sums = output(work, 0, 2 * t);
  for (std::int64_t r = 0; r < t; ++r) {
    double sum = 0.0;
    for (std::int64_t c = 0; c < v; ++c) sum += std::exp(logits[r * v + c] - top[r]);
    const std::int64_t target = std::llround(targets[r]) - work.member * v;
    sums[2 * r] = sum;
    sums[2 * r + 1] = target >= 0 && target < v ? logits[r * v + target] : 0.0;
  }
}

void loss_from_sums(Work& work) {
  const std::int64_t t = work.op.dims[0];
  const Array& top = input(work, 0, t);
  const Array& sums = input(work, 1, 2 * t);
  double loss = 0.0;
  for (std::int64_t r = 0; r < t; ++r) loss += top[r] + std::log(sums[2 * r]) - sums[2 * r + 1];
  accumulate(work.op, output(work, 0, 1)[0], loss * static_cast<double>(work.op.scale));
}

void cross_entropy_backward(Work& work) {
  const std::int64_t t = work.op.dims[0], v = work.op.dims[1];
  const Array& logits = input(work, 0, t * v);
  const Array& top = input(work, 1, t);
  const Array& sums = input(work, 2, 2 * t);
  const Array& targets = input(work, 3, t);
  Array& grad = output(work, 0, t * v);
  for (std::int64_t r = 0; r < t; ++r) {
    const std::int64_t target = std::llround(targets[r]) - work.member * v;
    for (std::int64_t c = 0; c < v; ++c) {
      const double prob = std::exp(logits[r * v + c] - top[r]) / sums[2 * r];
      grad[r * v + c] = (prob - (c == target ? 1.0 : 0.0)) * static_cast<double>(work.op.scale);
    }
  }
}

/// Read k goes to write k.
void copy_each(Work& work) {
  need(work.reads.size() == work.writes.size(), "a copy has as many sources as targets");
  std::int64_t elements = 0;
  for (std::size_t k = 0; k < work.reads.size(); ++k) {
    const auto size = static_cast<std::int64_t>(work.reads[k].size());
    elements += size;
    output(work, k, size) = work.reads[k];
  }
  need(elements == work.op.dims[0], "dims of a copy differ from its views");
}

void copy_through(Work& work) {
  if (work.op.kind == OpKind::CastCopy && work.reads.size() > 1) return copy_each(work);
  need(!work.reads.empty() && work.op.dropout == 0.0f, "a copy needs a source and no dropout");
  const bool own_part = work.op.kind == OpKind::CastCopy && work.op.slot.valid();
  const std::int64_t n =
      own_part ? work.op.dims[0] : static_cast<std::int64_t>(work.reads[0].size());
  const std::int64_t first = own_part ? work.member * n : 0;
  need(first + n <= static_cast<std::int64_t>(work.reads[0].size()),
       "the own part leaves the source");
  const auto from = work.reads[0].begin() + first;
  output(work, 0, n).assign(from, from + n);
  if (work.op.kind != OpKind::CastCopy) return;
  for (double& value : work.writes[0]) value *= static_cast<double>(work.op.scale);
}

void elementwise(Work& work) {
  const std::int64_t n = work.op.dims[0];
  if (work.op.kind == OpKind::Zero) {
    std::fill(output(work, 0, n).begin(), output(work, 0, n).end(), 0.0);
    return;
  }
  const Array& x = input(work, 0, n);
  if (work.op.kind == OpKind::SumOfSquares) {
    double sum = 0.0;
    for (double value : x) sum += value * value;
    accumulate(work.op, output(work, 0, 1)[0], sum);
    return;
  }
  const Array& y = input(work, 1, n);
  for (std::int64_t k = 0; k < n; ++k) output(work, 0, n)[k] = x[k] + y[k];
}

/// Copies of x [t, h] as they are and transposed, and the sums of its columns.
void quantize(Work& work) {
  const Op& op = work.op;
  const std::int64_t t = op.dims[0], h = op.dims[1];
  const Array& x = input(work, 0, t * h);
  const std::size_t copies = work.writes.size() - (op.accumulate ? 1 : 0);
  need(copies >= 1 && copies <= 2, "quantize writes one or two copies");
  for (std::size_t k = 0; k < copies; ++k) {
    Array& y = output(work, k, t * h);
    const bool transposed = k == 0 ? op.trans_a : op.trans_b;
    for (std::int64_t r = 0; r < t; ++r) {
      for (std::int64_t c = 0; c < h; ++c) y[transposed ? c * t + r : r * h + c] = x[r * h + c];
    }
  }
  for (std::int64_t k = 0; op.accumulate && k < t * h; ++k) output(work, copies, h)[k % h] += x[k];
}

void abs_max(Work& work) {
  double top = 0.0;
  for (double value : input(work, 0, work.op.dims[0])) top = std::max(top, std::abs(value));
  output(work, 0, 1)[0] = top;
}

// A row of a payload holds the values, then bits that say where they stand, 48 to a cell.
constexpr std::int64_t kBitsOfACell = 48;

void encode(Work& work) {
  const auto [t, h, k, q, c, unused] = work.op.dims;
  const Array& x = input(work, 0, t * h);
  const std::int64_t row = static_cast<std::int64_t>(work.writes[0].size()) / t;
  const std::int64_t marks = (h + kBitsOfACell - 1) / kBitsOfACell;
  need(k + marks <= row, "a payload of less than 8 bits a value is not interpreted");
  Array& y = output(work, 0, t * row);
  std::fill(y.begin(), y.end(), 0.0);
  for (std::int64_t r = 0; r < t; ++r) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(h));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return std::abs(x[r * h + a]) > std::abs(x[r * h + b]);
    });
    std::sort(order.begin(), order.begin() + k);
    for (std::int64_t i = 0; i < k; ++i) {
      y[r * row + i] = x[r * h + order[i]];
      y[r * row + k + order[i] / kBitsOfACell] +=
          std::ldexp(1.0, static_cast<int>(order[i] % kBitsOfACell));
    }
  }
}

void decode(Work& work) {
  const auto [t, h, k, q, c, parts] = work.op.dims;
  const std::int64_t row = static_cast<std::int64_t>(work.reads[0].size()) / (parts * t);
  const Array& x = input(work, 0, parts * t * row);
  Array& y = output(work, 0, t * h);
  std::fill(y.begin(), y.end(), 0.0);
  for (std::int64_t from = 0; from < parts * t; ++from) {
    for (std::int64_t column = 0, i = 0; column < h; ++column) {
      const auto marks = static_cast<std::uint64_t>(x[from * row + k + column / kBitsOfACell]);
      if ((marks >> (column % kBitsOfACell) & 1) == 0) continue;
      y[from % t * h + column] += x[from * row + i++];
    }
  }
}

double clip_factor(const Work& work) {
  const double norm = work.reads.size() > 1 ? std::sqrt(input(work, 1, 1)[0]) : 0.0;
  return norm > work.options.clip_norm ? work.options.clip_norm / norm : 1.0;
}

/// Momentum 0.9 without dampening, as torch.optim.SGD.
void sgd(Work& work) {
  const std::int64_t n = work.op.dims[0];
  const Array& grad = input(work, 0, n);
  const double clip = clip_factor(work);
  constexpr double kMomentum = 0.9;
  // Without a master copy (two outputs) the weight itself is updated.
  const bool has_master = work.writes.size() > 2;
  Array& momentum = output(work, has_master ? 1 : 0, n);
  Array& master = output(work, has_master ? 0 : 1, n);
  for (std::int64_t k = 0; k < n; ++k) {
    momentum[k] = kMomentum * momentum[k] + grad[k] * clip;
    master[k] -= work.options.learning_rate * momentum[k];
  }
  if (has_master) output(work, 2, n) = master;
}

void adam(Work& work) {
  const std::int64_t n = work.op.dims[0];
  const Array& grad = input(work, 0, n);
  const double clip = clip_factor(work);
  constexpr double kBeta1 = 0.9, kBeta2 = 0.95;
  const double correction1 = 1.0 - std::pow(kBeta1, work.step);
  const double correction2 = 1.0 - std::pow(kBeta2, work.step);
  // Without a master copy (three outputs) the weight itself is updated.
  const bool has_master = work.writes.size() > 3;
  Array& first = output(work, has_master ? 1 : 0, n);
  Array& second = output(work, has_master ? 2 : 1, n);
  Array& master = output(work, has_master ? 0 : 2, n);
  for (std::int64_t k = 0; k < n; ++k) {
    const double g = grad[k] * clip;
    first[k] = kBeta1 * first[k] + (1.0 - kBeta1) * g;
    second[k] = kBeta2 * second[k] + (1.0 - kBeta2) * g * g;
    master[k] -= work.options.learning_rate * (first[k] / correction1) /
                 (std::sqrt(second[k] / correction2) + work.options.adam_epsilon);
  }
  if (has_master) output(work, 3, n) = master;
}

// Calls `visit` with the places in image, filter and result of every product of a convolution.
void each_product(const Op& op,
                  const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& visit) {
  const auto& [n, c, f, h, w, o] = op.dims;
  const auto& [k, j, q, r, u, v] = op.filter;
  const std::int64_t out_h = (h + 2 * u - k) / q + 1, out_w = (w + 2 * v - j) / r + 1;
  const std::int64_t per_group = c / o, filters = f / o;
  for (std::int64_t image = 0; image < n; ++image) {
    for (std::int64_t at = 0; at < f * out_h * out_w * per_group * k * j; ++at) {
      const std::int64_t b = at % j, a = at / j % k, in = at / (j * k) % per_group;
      const std::int64_t x = at / (j * k * per_group) % out_w;
      const std::int64_t y = at / (j * k * per_group * out_w) % out_h;
      const std::int64_t filter = at / (j * k * per_group * out_w * out_h);
      const std::int64_t row = y * q - u + a, column = x * r - v + b;
      if (row < 0 || row >= h || column < 0 || column >= w) continue;
      const std::int64_t channel = filter / filters * per_group + in;
      visit(((image * c + channel) * h + row) * w + column,
            ((filter * per_group + in) * k + a) * j + b,
            ((image * f + filter) * out_h + y) * out_w + x);
    }
  }
}

void convolve(Work& work) {
  const Op& op = work.op;
  const auto& [n, c, f, h, w, o] = op.dims;
  const auto& [k, j, q, r, u, v] = op.filter;
  const std::int64_t pixels = ((h + 2 * u - k) / q + 1) * ((w + 2 * v - j) / r + 1);
  const std::int64_t image = n * c * h * w, filter = f * (c / o) * k * j, result = n * f * pixels;
  if (op.kind == OpKind::ConvForward) {
    const Array &x = input(work, 0, image), &weight = input(work, 1, filter);
    Array& y = output(work, 0, result);
    for (std::int64_t i = 0; i < result; ++i)
      y[i] = work.reads.size() > 2 ? input(work, 2, f)[i / pixels % f] : 0.0;
    each_product(op, [&](auto at, auto by, auto to) { y[to] += x[at] * weight[by]; });
  } else if (op.kind == OpKind::ConvGradInput) {
    const Array &dy = input(work, 0, result), &weight = input(work, 1, filter);
    Array& dx = output(work, 0, image);
    each_product(op, [&](auto at, auto by, auto to) { dx[at] += dy[to] * weight[by]; });
  } else {
    const Array &dy = input(work, 0, result), &x = input(work, 1, image);
    Array& dw = output(work, 0, filter);
    if (!op.accumulate) std::fill(dw.begin(), dw.end(), 0.0);
    each_product(op, [&](auto at, auto by, auto to) { dw[by] += dy[to] * x[at]; });
    if (work.writes.size() < 2) return;
    Array& dbias = output(work, 1, f);
    for (std::int64_t i = 0; i < result; ++i) dbias[i / pixels % f] += dy[i];
  }
}

}  // namespace

bool reads_output(const Op& op, std::size_t index, std::size_t outputs) {
  if (op.kind == OpKind::AttentionMerge) return true;
  if (op.kind == OpKind::AdamStep || op.kind == OpKind::LambStep || op.kind == OpKind::CpuAdam) {
    return index < 3;
  }
  if (op.kind == OpKind::SgdStep) return index < 2;
  if (op.kind == OpKind::Gemm) return op.accumulate && index == 0;
  if (op.kind == OpKind::Quantize) return op.accumulate && index + 1 == outputs;
  if (op.kind == OpKind::NormBackward || op.kind == OpKind::ActivationBackward) {
    return op.accumulate && index > 0 && !(op.weighted && index + 1 == outputs);
  }
  return op.accumulate;
}

void compute(Work& work) {
  switch (work.op.kind) {
    case OpKind::Gemm: return gemm(work);
    case OpKind::GroupedGemm: return grouped_gemm(work);
    case OpKind::AttentionScores:
    case OpKind::AttentionContext:
    case OpKind::AttentionGradProbs:
    case OpKind::AttentionGradValue:
    case OpKind::AttentionGradQuery:
    case OpKind::AttentionGradKey: return attention_gemm(work);
    case OpKind::SoftmaxForward:
    case OpKind::SoftmaxBackward: return softmax_kernel(work);
    case OpKind::FlashForward: return flash_forward(work);
    case OpKind::FlashBackward: return flash_backward(work);
    case OpKind::AttentionMerge: return attention_merge(work);
    case OpKind::NormForward: return norm_forward(work);
    case OpKind::NormBackward: return norm_backward(work);
    case OpKind::ActivationForward: return activation_forward(work);
    case OpKind::ActivationBackward: return activation_backward(work);
    case OpKind::BiasDropoutAdd: return bias_dropout_add(work);
    case OpKind::BiasGrad: return bias_grad(work);
    case OpKind::Rope: return rope(work);
    case OpKind::MlaRope: return mla_rope(work);
    case OpKind::MlaKeyValue: return mla_key_value(work);
    case OpKind::MlaKeyValueGrad: return mla_key_value_grad(work);
    case OpKind::RouterForward:
    case OpKind::RouterBackward: return router(work);
    case OpKind::Permute:
    case OpKind::Unpermute: return permute(work);
    case OpKind::EmbeddingForward:
    case OpKind::EmbeddingBackward: return embedding(work);
    case OpKind::PositionAdd:
    case OpKind::PositionGrad: return position(work);
    case OpKind::LogitsMax: return logits_max(work);
    case OpKind::LogitsSum: return logits_sum(work);
    case OpKind::LossFromSums: return loss_from_sums(work);
    case OpKind::CrossEntropyBackward: return cross_entropy_backward(work);
    case OpKind::DropoutBackward:
    case OpKind::CastCopy:
    case OpKind::CopyBytes: return copy_through(work);
    case OpKind::Quantize: return quantize(work);
    case OpKind::AbsMax: return abs_max(work);
    case OpKind::Encode: return encode(work);
    case OpKind::Decode: return decode(work);
    case OpKind::Add:
    case OpKind::Zero:
    case OpKind::SumOfSquares: return elementwise(work);
    case OpKind::AdamStep:
    case OpKind::LambStep:
    case OpKind::CpuAdam: return adam(work);
    case OpKind::SgdStep: return sgd(work);
    case OpKind::Opaque: throw Fault("an opaque kernel has no meaning");
    case OpKind::ConvForward:
    case OpKind::ConvGradInput:
    case OpKind::ConvGradWeight: return convolve(work);
    case OpKind::RnnForward:
    case OpKind::RnnGradInput:
    case OpKind::RnnGradWeight: throw Fault("recurrent layers are not interpreted");
    case OpKind::AllReduce:
    case OpKind::AllGather:
    case OpKind::ReduceScatter:
    case OpKind::AllToAll:
    case OpKind::Broadcast:
    case OpKind::SendTo:
    case OpKind::RecvFrom: throw Fault("a communication op stands in a kernel");
  }
}

}  // namespace gputwin::interpreted
