#include "validation/nn/layers.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>

namespace gputwin::nn {
namespace {

CBLAS_TRANSPOSE cblas(Transposed t) { return t == Transposed::Yes ? CblasTrans : CblasNoTrans; }

blasint size_of(std::int64_t n) { return static_cast<blasint>(n); }

constexpr float kGeluRoot = 0.7978845608F;  // sqrt(2 / pi)
constexpr float kGeluCube = 0.044715F;

// Rows of a causal matrix of scores to weights: softmax over the columns up to the row's.
void causal_softmax(float* scores, std::int64_t length) {
  for (std::int64_t i = 0; i < length; ++i) {
    float* row = scores + i * length;
    const float top = *std::max_element(row, row + i + 1);
    float sum = 0;
    for (std::int64_t j = 0; j <= i; ++j) sum += row[j] = std::exp(row[j] - top);
    for (std::int64_t j = 0; j <= i; ++j) row[j] /= sum;
    std::fill(row + i + 1, row + length, 0.0F);
  }
}

// In place: the gradient of weights to that of scores.
void causal_softmax_backward(const float* weights, float* grad, std::int64_t length) {
  for (std::int64_t i = 0; i < length; ++i) {
    const float* w = weights + i * length;
    float* g = grad + i * length;
    float dot = 0;
    for (std::int64_t j = 0; j <= i; ++j) dot += w[j] * g[j];
    for (std::int64_t j = 0; j <= i; ++j) g[j] = w[j] * (g[j] - dot);
    std::fill(g + i + 1, g + length, 0.0F);
  }
}

}  // namespace

void use_one_blas_thread() { openblas_set_num_threads(1); }

void gemm(Transposed a_is, Transposed b_is, std::int64_t m, std::int64_t n, std::int64_t k,
          const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
          std::int64_t ldc) {
  cblas_sgemm(CblasRowMajor, cblas(a_is), cblas(b_is), size_of(m), size_of(n), size_of(k), 1.0F, a,
              size_of(lda), b, size_of(ldb), beta, c, size_of(ldc));
}

void linear(const Floats& x, const Floats& w, std::int64_t rows, Floats& y) {
  const std::int64_t in = static_cast<std::int64_t>(x.size()) / rows;
  const std::int64_t out = static_cast<std::int64_t>(w.size()) / in;
  y.resize(rows * out);
  gemm(Transposed::No, Transposed::No, rows, out, in, x.data(), in, w.data(), out, 0, y.data(),
       out);
}

void linear_backward(const Floats& x, const Floats& w, const Floats& dy, std::int64_t rows,
                     Floats& dx, Floats& dw) {
  const std::int64_t in = static_cast<std::int64_t>(x.size()) / rows;
  const std::int64_t out = static_cast<std::int64_t>(w.size()) / in;
  dx.resize(x.size());
  gemm(Transposed::No, Transposed::Yes, rows, in, out, dy.data(), out, w.data(), out, 0, dx.data(),
       in);
  gemm(Transposed::Yes, Transposed::No, in, out, rows, x.data(), in, dy.data(), out, 1, dw.data(),
       out);
}

void layer_norm(const Floats& x, const Floats& gain, const Floats& shift, Normalised& kept,
                Floats& y) {
  const std::size_t width = gain.size(), rows = x.size() / width;
  kept.hat.resize(x.size());
  kept.inverse.resize(rows);
  y.resize(x.size());
  for (std::size_t r = 0; r < rows; ++r) {
    const float* in = &x[r * width];
    double mean = 0, square = 0;
    for (std::size_t i = 0; i < width; ++i) mean += in[i];
    mean /= static_cast<double>(width);
    for (std::size_t i = 0; i < width; ++i) square += (in[i] - mean) * (in[i] - mean);
    const double inverse = 1 / std::sqrt(square / static_cast<double>(width) + 1e-5);
    kept.inverse[r] = static_cast<float>(inverse);
    for (std::size_t i = 0; i < width; ++i) {
      kept.hat[r * width + i] = static_cast<float>((in[i] - mean) * inverse);
      y[r * width + i] = kept.hat[r * width + i] * gain[i] + shift[i];
    }
  }
}

void layer_norm_backward(const Normalised& kept, const Floats& gain, const Floats& dy, Floats& dx,
                         Floats& dgain, Floats& dshift) {
  const std::size_t width = gain.size(), rows = dy.size() / width;
  dx.resize(dy.size());
  for (std::size_t r = 0; r < rows; ++r) {
    const float* hat = &kept.hat[r * width];
    const float* d = &dy[r * width];
    double sum = 0, dot = 0;
    for (std::size_t i = 0; i < width; ++i) {
      dgain[i] += d[i] * hat[i];
      dshift[i] += d[i];
      sum += d[i] * gain[i];
      dot += d[i] * gain[i] * hat[i];
    }
    const double n = static_cast<double>(width);
    for (std::size_t i = 0; i < width; ++i) {
      dx[r * width + i] =
          static_cast<float>(kept.inverse[r] * (d[i] * gain[i] - sum / n - hat[i] * (dot / n)));
    }
  }
}

void gelu(const Floats& x, Floats& y) {
  y.resize(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float u = kGeluRoot * (x[i] + kGeluCube * x[i] * x[i] * x[i]);
    y[i] = 0.5F * x[i] * (1 + std::tanh(u));
  }
}

void gelu_backward(const Floats& x, const Floats& dy, Floats& dx) {
  dx.resize(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float t = std::tanh(kGeluRoot * (x[i] + kGeluCube * x[i] * x[i] * x[i]));
    const float inner = kGeluRoot * (1 + 3 * kGeluCube * x[i] * x[i]);
    dx[i] = dy[i] * (0.5F * (1 + t) + 0.5F * x[i] * (1 - t * t) * inner);
  }
}

void attention(const AttentionShape& s, const Floats& qkv, Floats& weights, Floats& out) {
  const std::int64_t width = s.heads * s.head_width, ld = 3 * width;
  const float scale = 1 / std::sqrt(static_cast<float>(s.head_width));
  weights.resize(s.sequences * s.heads * s.length * s.length);
  out.resize(s.sequences * s.length * width);
  for (std::int64_t i = 0; i < s.sequences * s.heads; ++i) {
    const std::int64_t first = i / s.heads * s.length, column = i % s.heads * s.head_width;
    const float* q = &qkv[first * ld + column];
    float* w = &weights[i * s.length * s.length];
    gemm(Transposed::No, Transposed::Yes, s.length, s.length, s.head_width, q, ld, q + width, ld, 0,
         w, s.length);
    for (std::int64_t j = 0; j < s.length * s.length; ++j) w[j] *= scale;
    causal_softmax(w, s.length);
    gemm(Transposed::No, Transposed::No, s.length, s.head_width, s.length, w, s.length,
         q + 2 * width, ld, 0, &out[first * width + column], width);
  }
}

void attention_backward(const AttentionShape& s, const Floats& qkv, const Floats& weights,
                        const Floats& dout, Floats& dqkv) {
  const std::int64_t width = s.heads * s.head_width, ld = 3 * width;
  const float scale = 1 / std::sqrt(static_cast<float>(s.head_width));
  Floats grad(s.length * s.length);
  dqkv.resize(qkv.size());
  for (std::int64_t i = 0; i < s.sequences * s.heads; ++i) {
    const std::int64_t first = i / s.heads * s.length, column = i % s.heads * s.head_width;
    const float* q = &qkv[first * ld + column];
    float* dq = &dqkv[first * ld + column];
    const float* w = &weights[i * s.length * s.length];
    const float* d = &dout[first * width + column];
    gemm(Transposed::Yes, Transposed::No, s.length, s.head_width, s.length, w, s.length, d, width,
         0, dq + 2 * width, ld);
    gemm(Transposed::No, Transposed::Yes, s.length, s.length, s.head_width, d, width, q + 2 * width,
         ld, 0, grad.data(), s.length);
    causal_softmax_backward(w, grad.data(), s.length);
    for (float& g : grad) g *= scale;
    gemm(Transposed::No, Transposed::No, s.length, s.head_width, s.length, grad.data(), s.length,
         q + width, ld, 0, dq, ld);
    gemm(Transposed::Yes, Transposed::No, s.length, s.head_width, s.length, grad.data(), s.length,
         q, ld, 0, dq + width, ld);
  }
}

double cross_entropy(const Floats& logits, const std::vector<std::int32_t>& targets,
                     Floats& dlogits) {
  const std::size_t rows = targets.size(), classes = logits.size() / rows;
  dlogits.resize(logits.size());
  double loss = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    const float* in = &logits[r * classes];
    float* d = &dlogits[r * classes];
    const float top = *std::max_element(in, in + classes);
    double sum = 0;
    for (std::size_t i = 0; i < classes; ++i) sum += std::exp(static_cast<double>(in[i] - top));
    loss += std::log(sum) - (in[targets[r]] - top);
    for (std::size_t i = 0; i < classes; ++i) {
      const double p = std::exp(static_cast<double>(in[i] - top)) / sum;
      const double hit = static_cast<std::int32_t>(i) == targets[r] ? 1.0 : 0.0;
      d[i] = static_cast<float>((p - hit) / static_cast<double>(rows));
    }
  }
  return loss / static_cast<double>(rows);
}

void adam_step(Parameter& p, double rate, std::int64_t step) {
  constexpr float kFirst = 0.9F, kSecond = 0.95F;
  const auto n = static_cast<double>(step);
  const auto by_first = static_cast<float>(rate / (1 - std::pow(double{kFirst}, n)));
  const auto by_second = static_cast<float>(1 / (1 - std::pow(double{kSecond}, n)));
  for (std::size_t i = 0; i < p.value.size(); ++i) {
    const float g = p.grad[i];
    p.first[i] = kFirst * p.first[i] + (1 - kFirst) * g;
    p.second[i] = kSecond * p.second[i] + (1 - kSecond) * g * g;
    p.value[i] -= by_first * p.first[i] / (std::sqrt(p.second[i] * by_second) + 1e-8F);
    p.grad[i] = 0;
  }
}

}  // namespace gputwin::nn
