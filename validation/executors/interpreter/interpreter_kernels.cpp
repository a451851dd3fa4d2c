// What every kernel kind of sim/core/op.h computes, on dense row-major arrays of doubles.
#include "validation/executors/interpreter/interpreter_kernels.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

namespace gputwin::interpreted {

namespace {

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

/// Block i of C is the product of blocks i of A and B, with a bias of each block, or its gradient.
void grouped_gemm(Work& work) {
  const Op& op = work.op;
  const auto [g, m, n, k, u0, u1] = op.dims;
  const Array& a = input(work, 0, g * m * k);
  const Array& b = input(work, 1, g * k * n);
  Array& c = output(work, 0, g * m * n);
  const Array* bias = work.reads.size() > 2 ? &input(work, 2, g * n) : nullptr;
  Array* dbias = work.writes.size() > 1 ? &output(work, 1, g * m) : nullptr;
  for (std::int64_t e = 0; e < g; ++e) {
    const double* from_a = a.data() + e * m * k;
    const double* from_b = b.data() + e * k * n;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = bias ? (*bias)[e * n + j] : 0.0;
        for (std::int64_t l = 0; l < k; ++l) {
          sum += (op.trans_a ? from_a[l * m + i] : from_a[i * k + l]) *
                 (op.trans_b ? from_b[j * k + l] : from_b[l * n + j]);
        }
        accumulate(op, c[(e * m + i) * n + j], sum);
      }
      if (dbias == nullptr) continue;
      for (std::int64_t l = 0; l < k; ++l) (*dbias)[e * m + i] += from_a[l * m + i];
    }
  }
}

/// Row i of block j gets w[i] bias[j].
void expert_bias(Work& work) {
  const std::int64_t t = work.op.dims[0], h = work.op.dims[1], e = work.op.dims[2];
  const Array& x = input(work, 0, t * h);
  const Array& bias = input(work, 1, e * h);
  const Array& w = input(work, 2, t);
  Array& y = output(work, 0, t * h);
  for (std::int64_t i = 0; i < t * h; ++i) {
    const std::int64_t row = i / h, block = row / (t / e);
    y[i] = x[i] + w[row] * bias[block * h + i % h];
  }
}

void expert_bias_grad(Work& work) {
  const std::int64_t t = work.op.dims[0], h = work.op.dims[1], e = work.op.dims[2];
  const Array& dy = input(work, 0, t * h);
  const Array& bias = input(work, 1, e * h);
  const Array& w = input(work, 2, t);
  Array& dw = output(work, 0, t);
  std::fill(dw.begin(), dw.end(), 0.0);
  Array* dbias = work.writes.size() > 2 ? &output(work, 1, e * h) : nullptr;
  for (std::int64_t i = 0; i < t * h; ++i) {
    const std::int64_t row = i / h, at = row / (t / e) * h + i % h;
    dw[row] += dy[i] * bias[at];
    if (dbias != nullptr) (*dbias)[at] += dy[i] * w[row];
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

// Cells of a row that say which of h values are the k kept; none where all are.
std::int64_t marks_of(std::int64_t k, std::int64_t h) {
  return k == h ? 0 : (h + kBitsOfACell - 1) / kBitsOfACell;
}

// The k largest of one token go to a row of the payload; they become 0 in `token`.
void encode_token(double* token, std::int64_t h, std::int64_t k, double* row) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(h));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return std::abs(token[a]) > std::abs(token[b]);
  });
  std::sort(order.begin(), order.begin() + k);
  for (std::int64_t i = 0; i < k; ++i) {
    row[i] = std::exchange(token[order[i]], 0.0);
    if (k == h) continue;
    row[k + order[i] / kBitsOfACell] += std::ldexp(1.0, static_cast<int>(order[i] % kBitsOfACell));
  }
}

void encode(Work& work) {
  const auto [t, h, k, q, c, unused] = work.op.dims;
  Array x = input(work, 0, t * h);
  const std::int64_t row = static_cast<std::int64_t>(work.writes[0].size()) / t;
  need(k + marks_of(k, h) <= row, "a payload of less than 8 bits a value is not interpreted");
  const bool feedback = work.reads.size() > 1;
  for (std::int64_t i = 0; feedback && i < t * h; ++i) x[i] += input(work, 1, t * h)[i];
  Array& y = output(work, 0, t * row);
  std::fill(y.begin(), y.end(), 0.0);
  for (std::int64_t r = 0; r < t; ++r) encode_token(x.data() + r * h, h, k, y.data() + r * row);
  if (feedback) output(work, 1, t * h) = x;
}

void decode(Work& work) {
  const auto [t, h, k, q, c, parts] = work.op.dims;
  const std::int64_t row = static_cast<std::int64_t>(work.reads[0].size()) / (parts * t);
  const Array& x = input(work, 0, parts * t * row);
  Array& y = output(work, 0, t * h);
  std::fill(y.begin(), y.end(), 0.0);
  const bool all = marks_of(k, h) == 0;
  for (std::int64_t from = 0; from < parts * t; ++from) {
    for (std::int64_t column = 0, i = 0; column < h; ++column) {
      const std::int64_t cell = from * row + k + column / kBitsOfACell;
      const auto marks = all ? 0 : static_cast<std::uint64_t>(x[cell]);
      if (!all && (marks >> (column % kBitsOfACell) & 1) == 0) continue;
      y[from % t * h + column] += x[from * row + i++];
    }
  }
}

/// Gram-Schmidt over the columns of x [n, r], twice against rounding.
void orthonormalise(Work& work) {
  const std::int64_t n = work.op.dims[0], r = work.op.dims[1];
  Array x = input(work, 0, n * r);
  const auto dot = [&](std::int64_t a, std::int64_t b) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < n; ++i) sum += x[i * r + a] * x[i * r + b];
    return sum;
  };
  for (std::int64_t c = 0; c < r; ++c) {
    const double before = dot(c, c);
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t other = 0; other < c; ++other) {
        const double part = dot(c, other);
        for (std::int64_t i = 0; i < n; ++i) x[i * r + c] -= part * x[i * r + other];
      }
    }
    const double left = dot(c, c);
    const double scale = left > 1e-20 * before ? 1.0 / std::sqrt(left) : 0.0;
    for (std::int64_t i = 0; i < n; ++i) x[i * r + c] *= scale;
  }
  output(work, 0, n * r) = x;
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

bool reads_output(const Op& op, std::size_t index, std::size_t outputs) {
  if (op.kind == OpKind::AttentionMerge) return true;
  if (op.kind == OpKind::AdamStep || op.kind == OpKind::LambStep || op.kind == OpKind::CpuAdam) {
    return index < 3;
  }
  if (op.kind == OpKind::SgdStep) return index < 2;
  if (op.kind == OpKind::ExpertBias) return op.inverse && index == 1 && outputs > 2;
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
    case OpKind::ExpertBias: return work.op.inverse ? expert_bias_grad(work) : expert_bias(work);
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
    case OpKind::Orthonormalise: return orthonormalise(work);
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
