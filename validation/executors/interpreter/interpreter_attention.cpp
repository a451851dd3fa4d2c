// Attention on dense row-major arrays of doubles: by parts, fused, and merged from parts.
#include <algorithm>
#include <cmath>
#include <limits>

#include "validation/executors/interpreter/interpreter_kernels.h"

namespace gputwin::interpreted {

namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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
        need(!all_keys || std::abs(total - 1.0) < work.log_sum_tolerance,
             "flash backward got another log-sum-exp");
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

}  // namespace gputwin::interpreted
