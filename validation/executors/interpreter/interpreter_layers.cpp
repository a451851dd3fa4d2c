// What stands between the products of a layer and at the ends of a model, on dense row-major arrays
// of doubles.
#include <algorithm>
#include <cmath>

#include "validation/executors/interpreter/interpreter_kernels.h"

namespace gputwin::interpreted {

namespace {

constexpr double kNormEpsilon = 1e-5;
constexpr double kRopeBase = 10000.0;
constexpr double kPi = 3.14159265358979323846;

}  // namespace

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

namespace {

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

}  // namespace

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
          sequence_position((r + dims[5]) % sequence, sequence, work.cp_member, work.cp_members));
      const double angle =
          (work.op.inverse ? -1.0 : 1.0) * position * std::pow(kRopeBase, exponent);
      const double first = y[at], second = y[at + d / 2];
      y[at] = first * std::cos(angle) - second * std::sin(angle);
      y[at + d / 2] = first * std::sin(angle) + second * std::cos(angle);
    }
  }
}

namespace {

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

}  // namespace

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

}  // namespace gputwin::interpreted
