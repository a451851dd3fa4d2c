#include "validation/executors/host/host_pointwise.h"

#include <algorithm>
#include <cmath>

#include "validation/executors/host/host_floats.h"
#include "validation/executors/host/host_loops.h"

namespace gputwin::executors {

namespace {

/// Operand `index` with `elements` elements.
Floats read(const HostTask& task, std::size_t index, std::int64_t elements) {
  need(index < task.reads.size(), "an operand is missing");
  Floats floats(task.reads[index], true);
  need(floats.size() == elements, "operand " + std::to_string(index) + " has " +
                                      std::to_string(floats.size()) + " elements, the dims say " +
                                      std::to_string(elements));
  return floats;
}

/// Result `index`; `keep`: what is there counts.
Floats result(const HostTask& task, std::size_t index, std::int64_t elements, bool keep = false) {
  need(index < task.writes.size(), "a result is missing");
  Floats floats(task.writes[index], keep);
  need(floats.size() == elements, "result " + std::to_string(index) + " has " +
                                      std::to_string(floats.size()) + " elements, the dims say " +
                                      std::to_string(elements));
  return floats;
}

/// A result marked "+=": zeroed first unless the op accumulates.
Floats sums(const Op& op, const HostTask& task, std::size_t index, std::int64_t elements) {
  Floats floats = result(task, index, elements, op.accumulate);
  if (!op.accumulate) std::fill(floats.data(), floats.data() + elements, 0.0f);
  return floats;
}

void norm(const Op& op, const HostTask& task) {
  const std::int64_t t = op.dims[0], h = op.dims[1];
  const Floats x = read(task, 0, t * h), gamma = read(task, 1, h);
  const bool has_beta = task.reads.size() > 2;
  const Floats beta = read(task, has_beta ? 2 : 1, h);
  const Floats y = result(task, 0, t * h), stats = result(task, 1, 2 * t);
  norm_forward(x.data(), gamma.data(), has_beta ? beta.data() : nullptr, t, h,
               op.norm == Norm::LayerNorm, y.data(), stats.data());
  y.store_back();
  stats.store_back();
}

void norm_gradient(const Op& op, const HostTask& task) {
  const std::int64_t t = op.dims[0], h = op.dims[1];
  const Floats dy = read(task, 0, t * h), x = read(task, 1, t * h), gamma = read(task, 2, h);
  const Floats stats = read(task, 3, 2 * t);
  const bool adds = task.reads.size() > 4;
  const Floats more = read(task, adds ? 4 : 0, t * h);
  const Floats dx = result(task, 0, t * h);
  std::vector<Floats> gradients;
  for (std::size_t k = 1; k < task.writes.size(); ++k) gradients.push_back(sums(op, task, k, h));
  norm_backward(dy.data(), x.data(), gamma.data(), stats.data(), adds ? more.data() : nullptr, t, h,
                op.norm == Norm::LayerNorm, dx.data(),
                gradients.empty() ? nullptr : gradients[0].data(),
                gradients.size() < 2 ? nullptr : gradients[1].data());
  dx.store_back();
  for (const Floats& gradient : gradients) gradient.store_back();
}

void softmax(const Op& op, const HostTask& task) {
  const std::int64_t s = op.dims[2], u = op.dims[3], rows = op.dims[0] * op.dims[1] * s;
  const Floats y = result(task, 0, rows * u), x = read(task, 0, rows * u);
  if (op.kind == OpKind::SoftmaxForward) {
    softmax_rows(x.data(), rows, s, u, op.causal, y.data(), nullptr);
  } else {
    softmax_backward(x.data(), read(task, 1, rows * u).data(), rows, u, y.data());
  }
  y.store_back();
}

void activation(const Op& op, const HostTask& task) {
  const bool forward = op.kind == OpKind::ActivationForward;
  const std::int64_t t = op.dims[0], f = op.dims[1], width = is_gated(op.activation) ? 2 * f : f;
  const std::size_t at = forward ? 0 : 1;
  const bool has_bias = task.reads.size() > at + 1;
  const Floats x = read(task, at, t * width);
  std::vector<Floats> bias;
  if (has_bias) bias.push_back(read(task, at + 1, width));
  const float* b = has_bias ? bias[0].data() : nullptr;
  const Floats y = result(task, 0, t * (forward ? f : width));
  if (forward) {
    activation_forward(op.activation, x.data(), b, t, f, y.data());
  } else {
    activation_backward(op.activation, read(task, 0, t * f).data(), x.data(), b, t, f, y.data());
    if (task.writes.size() > 1) {
      const Floats d_bias = sums(op, task, 1, width);
      add_columns(y.data(), t, width, d_bias.data());
      d_bias.store_back();
    }
  }
  y.store_back();
}

void residual(const Op& op, const HostTask& task) {
  const std::int64_t t = op.dims[0], h = op.dims[1];
  const bool has_bias = task.reads.size() > 2;
  const Floats x = read(task, 0, t * h), more = read(task, has_bias ? 2 : 1, t * h);
  std::vector<Floats> bias;
  if (has_bias) bias.push_back(read(task, 1, h));
  const Floats y = result(task, 0, t * h);
  add_rows(x.data(), has_bias ? bias[0].data() : nullptr, more.data(), t, h, y.data());
  y.store_back();
}

void bias_grad(const Op& op, const HostTask& task) {
  const std::int64_t t = op.dims[0], h = op.dims[1];
  const Floats to = sums(op, task, 0, h);
  add_columns(read(task, 0, t * h).data(), t, h, to.data());
  to.store_back();
}

/// Rows of the vocabulary's shard `member`; tokens of others give 0 and take nothing.
void embedding(const Op& op, const HostTask& task, std::int64_t member) {
  const std::int64_t t = op.dims[0], h = op.dims[1], v = op.dims[2];
  const bool forward = op.kind == OpKind::EmbeddingForward;
  const std::vector<double> tokens = load<double>(task.reads.at(0));
  need(static_cast<std::int64_t>(tokens.size()) == t, "as many tokens as rows");
  const Floats from = read(task, 1, forward ? v * h : t * h);
  const Floats to = forward ? result(task, 0, t * h) : sums(op, task, 0, v * h);
  for (std::int64_t r = 0; r < t; ++r) {
    const std::int64_t row = std::llround(tokens[static_cast<std::size_t>(r)]) - member * v;
    const bool here = row >= 0 && row < v;
    float* const y = to.data() + (forward ? r : std::max<std::int64_t>(row, 0)) * h;
    if (forward && !here) std::fill(y, y + h, 0.0f);
    if (!here) continue;
    const float* const x = from.data() + (forward ? row : r) * h;
    if (forward) {
      std::copy(x, x + h, y);
    } else {
      add(x, y, h, y);
    }
  }
  to.store_back();
}

/// Row r of token shard `member` has the position of that row in its sequence.
void position(const Op& op, const HostTask& task, std::int64_t member) {
  const std::int64_t t = op.dims[0], h = op.dims[1];
  const bool forward = op.kind == OpKind::PositionAdd;
  const Floats x = read(task, 0, t * h);
  const View& view = forward ? task.reads.at(1).view : task.writes.at(0).view;
  const std::int64_t rows = view.elements() / h;
  need(rows > 0 && rows * h == view.elements(), "the position table has other columns");
  const Floats to = forward ? result(task, 0, t * h) : sums(op, task, 0, rows * h);
  std::vector<Floats> table;
  if (forward) table.push_back(read(task, 1, rows * h));
  for (std::int64_t r = 0; r < t; ++r) {
    const std::int64_t row = (member * t + r) % rows;
    if (forward) {
      add(x.data() + r * h, table[0].data() + row * h, h, to.data() + r * h);
    } else {
      add(x.data() + r * h, to.data() + row * h, h, to.data() + row * h);
    }
  }
  to.store_back();
}

/// Turns pairs (x, x + d/2) of the first heads of each row by position x 10000^(-2x/d).
void rope(const Op& op, const HostTask& task) {
  const std::int64_t t = op.dims[0], heads = op.dims[1] + op.dims[2], half = op.dims[3] / 2;
  const std::int64_t s = op.dims[4] > 0 ? op.dims[4] : t;
  const std::int64_t elements = task.reads.at(0).view.elements();
  need(t > 0 && elements % t == 0 && elements / t >= 2 * heads * half, "rope rows are too short");
  const Floats from = read(task, 0, elements), to = result(task, 0, elements);
  if (from.data() != to.data()) std::copy(from.data(), from.data() + elements, to.data());
  std::vector<float> cosines(static_cast<std::size_t>(s * half)), sines(cosines.size());
  for (std::int64_t k = 0; k < s * half; ++k) {
    constexpr double kBase = 10000.0;
    const double exponent = -static_cast<double>(k % half) / static_cast<double>(half);
    const double angle = static_cast<double>(k / half) * std::pow(kBase, exponent);
    cosines[static_cast<std::size_t>(k)] = static_cast<float>(std::cos(angle));
    sines[static_cast<std::size_t>(k)] = static_cast<float>(std::sin(op.inverse ? -angle : angle));
  }
  for (std::int64_t r = 0; r < t; ++r) {
    const std::int64_t at = (r + op.dims[5]) % s * half;
    const float *cosine = cosines.data() + at, *sine = sines.data() + at;
    for (std::int64_t head = 0; head < heads; ++head) {
      float *low = to.data() + r * (elements / t) + head * 2 * half, *high = low + half;
      for (std::int64_t x = 0; x < half; ++x) {
        const float first = low[x], second = high[x];
        low[x] = first * cosine[x] - second * sine[x];
        high[x] = first * sine[x] + second * cosine[x];
      }
    }
  }
  to.store_back();
}

/// Largest logit of each row; or the row's sum of exponentials and its target's logit.
void logits(const Op& op, const HostTask& task, std::int64_t member) {
  const std::int64_t t = op.dims[0], v = op.dims[1];
  const Floats x = read(task, 0, t * v);
  if (op.kind == OpKind::LogitsMax) {
    const Floats top = result(task, 0, t);
    row_max(x.data(), t, v, top.data());
    return top.store_back();
  }
  const Floats top = read(task, 1, t), to = result(task, 0, 2 * t);
  const std::vector<double> targets = load<double>(task.reads.at(2));
  need(static_cast<std::int64_t>(targets.size()) == t, "as many targets as rows");
  std::vector<double> totals(static_cast<std::size_t>(t));
  row_exp_sum(x.data(), top.data(), t, v, totals.data());
  for (std::int64_t r = 0; r < t; ++r) {
    const auto row = static_cast<std::size_t>(r);
    const std::int64_t target = std::llround(targets[row]) - member * v;
    to.data()[2 * r] = static_cast<float>(totals[row]);
    to.data()[2 * r + 1] = target >= 0 && target < v ? x.data()[r * v + target] : 0.0f;
  }
  to.store_back();
}

void cross_entropy_backward(const Op& op, const HostTask& task, std::int64_t member) {
  const std::int64_t t = op.dims[0], v = op.dims[1];
  const Floats x = read(task, 0, t * v), top = read(task, 1, t), pairs = read(task, 2, 2 * t);
  const std::vector<double> targets = load<double>(task.reads.at(3));
  need(static_cast<std::int64_t>(targets.size()) == t, "as many targets as rows");
  const Floats y = result(task, 0, t * v);
  std::vector<double> totals(static_cast<std::size_t>(t));
  for (std::int64_t r = 0; r < t; ++r) {
    totals[static_cast<std::size_t>(r)] = static_cast<double>(pairs.data()[2 * r]);
  }
  row_probabilities(x.data(), top.data(), totals.data(), op.scale, t, v, y.data());
  for (std::int64_t r = 0; r < t; ++r) {
    const std::int64_t target = std::llround(targets[static_cast<std::size_t>(r)]) - member * v;
    if (target >= 0 && target < v) y.data()[r * v + target] -= op.scale;
  }
  y.store_back();
}

}  // namespace

bool run_pointwise(const Op& op, const HostTask& task, std::int64_t member) {
  if (op.cp_slot.valid() || op.dropout != 0.0f) return false;
  switch (op.kind) {
    case OpKind::NormForward: norm(op, task); return true;
    case OpKind::NormBackward: norm_gradient(op, task); return true;
    case OpKind::SoftmaxForward:
    case OpKind::SoftmaxBackward: softmax(op, task); return true;
    case OpKind::ActivationForward:
    case OpKind::ActivationBackward:
      if (op.weighted) return false;
      activation(op, task);
      return true;
    case OpKind::BiasDropoutAdd: residual(op, task); return true;
    case OpKind::BiasGrad: bias_grad(op, task); return true;
    case OpKind::EmbeddingForward:
    case OpKind::EmbeddingBackward: embedding(op, task, member); return true;
    case OpKind::PositionAdd:
    case OpKind::PositionGrad: position(op, task, member); return true;
    case OpKind::Rope:
      if (task.reads.size() != 1) return false;
      rope(op, task);
      return true;
    case OpKind::LogitsMax:
    case OpKind::LogitsSum: logits(op, task, member); return true;
    case OpKind::CrossEntropyBackward: cross_entropy_backward(op, task, member); return true;
    default: return false;
  }
}

}  // namespace gputwin::executors
