#include "validation/executors/host/host_loops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "sim/core/check.h"

namespace gputwin::executors {

namespace {

// One function per set of instructions, chosen when the program starts. Sanitizers of threads start
// too late for that.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define GPUTWIN_VECTOR [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#else
#define GPUTWIN_VECTOR
#endif
#define GPUTWIN_BODY [[gnu::always_inline]] inline

constexpr float kNormEpsilon = 1e-5f;

/// e^x as 2^n e^r, |r| <= ln 2 / 2, with the series of e^r; relative error below 3e-7 where the
/// result is normal. Below -87 the result is about 1e-38, above 88 about 2e38; NaN stays NaN.
GPUTWIN_BODY float exp_of(float x) {
  const float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  const float steps = clamped * 1.44269504f;
  const auto n = static_cast<std::int32_t>(steps + (steps < 0.0f ? -0.5f : 0.5f));
  const auto whole = static_cast<float>(n);
  const float r = (clamped - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float series = 1.0f / 5040;
  series = series * r + 1.0f / 720;
  series = series * r + 1.0f / 120;
  series = series * r + 1.0f / 24;
  series = series * r + 1.0f / 6;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  return series * std::bit_cast<float>((n + 127) << 23);
}

/// Error below 3e-7. Source: Abramowitz and Stegun, 7.1.26.
GPUTWIN_BODY float erf_of(float x) {
  const float magnitude = x < 0.0f ? -x : x;
  const float t = 1.0f / (1.0f + 0.3275911f * magnitude);
  const float series =
      ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t +
       0.254829592f) *
      t;
  const float value = 1.0f - series * exp_of(-magnitude * magnitude);
  return x < 0.0f ? -value : value;
}

struct Gelu {
  GPUTWIN_BODY static float value(float x) { return 0.5f * x * (1.0f + erf_of(x * 0.70710678f)); }
  GPUTWIN_BODY static float slope(float x) {
    return 0.5f * (1.0f + erf_of(x * 0.70710678f)) + x * exp_of(-0.5f * x * x) * 0.39894228f;
  }
};
struct Relu {
  GPUTWIN_BODY static float value(float x) { return x > 0.0f ? x : 0.0f; }
  GPUTWIN_BODY static float slope(float x) { return x > 0.0f ? 1.0f : 0.0f; }
};
struct SquaredRelu {
  GPUTWIN_BODY static float value(float x) { return x > 0.0f ? x * x : 0.0f; }
  GPUTWIN_BODY static float slope(float x) { return x > 0.0f ? 2.0f * x : 0.0f; }
};
struct Silu {
  GPUTWIN_BODY static float value(float x) { return x / (1.0f + exp_of(-x)); }
  GPUTWIN_BODY static float slope(float x) {
    const float sigmoid = 1.0f / (1.0f + exp_of(-x));
    return sigmoid * (1.0f + x * (1.0f - sigmoid));
  }
};

template <class Act>
GPUTWIN_BODY void forward_rows(const float* x, const float* bias, std::int64_t t, std::int64_t f,
                               float* y) {
  for (std::int64_t r = 0; r < t; ++r) {
    const float* from = x + r * f;
    float* to = y + r * f;
    if (bias != nullptr) {
      for (std::int64_t c = 0; c < f; ++c) to[c] = Act::value(from[c] + bias[c]);
    } else {
      for (std::int64_t c = 0; c < f; ++c) to[c] = Act::value(from[c]);
    }
  }
}

template <class Act>
GPUTWIN_BODY void gated_forward_rows(const float* x, const float* bias, std::int64_t t,
                                     std::int64_t f, float* y) {
  for (std::int64_t r = 0; r < t; ++r) {
    const float *gate = x + 2 * r * f, *up = gate + f;
    float* to = y + r * f;
    for (std::int64_t c = 0; c < f; ++c) {
      const float b = bias != nullptr ? bias[c] : 0.0f, d = bias != nullptr ? bias[f + c] : 0.0f;
      to[c] = Act::value(gate[c] + b) * (up[c] + d);
    }
  }
}

template <class Act>
GPUTWIN_BODY void backward_rows(const float* dy, const float* x, const float* bias, std::int64_t t,
                                std::int64_t f, float* dx) {
  for (std::int64_t r = 0; r < t; ++r) {
    const float *from = x + r * f, *grad = dy + r * f;
    float* to = dx + r * f;
    if (bias != nullptr) {
      for (std::int64_t c = 0; c < f; ++c) to[c] = grad[c] * Act::slope(from[c] + bias[c]);
    } else {
      for (std::int64_t c = 0; c < f; ++c) to[c] = grad[c] * Act::slope(from[c]);
    }
  }
}

template <class Act>
GPUTWIN_BODY void gated_backward_rows(const float* dy, const float* x, const float* bias,
                                      std::int64_t t, std::int64_t f, float* dx) {
  for (std::int64_t r = 0; r < t; ++r) {
    const float *gate = x + 2 * r * f, *up = gate + f, *grad = dy + r * f;
    float *to = dx + 2 * r * f, *to_up = to + f;
    for (std::int64_t c = 0; c < f; ++c) {
      const float g = gate[c] + (bias != nullptr ? bias[c] : 0.0f);
      const float u = up[c] + (bias != nullptr ? bias[f + c] : 0.0f);
      to[c] = grad[c] * u * Act::slope(g);
      to_up[c] = grad[c] * Act::value(g);
    }
  }
}

GPUTWIN_BODY float dot(const float* a, const float* b, std::int64_t n) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

GPUTWIN_BODY float largest(const float* x, std::int64_t n) {
  float top = x[0];
#pragma omp simd reduction(max : top)
  for (std::int64_t i = 0; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

/// Number of keys that a row sees.
GPUTWIN_BODY std::int64_t keys_of(std::int64_t row, std::int64_t s, std::int64_t u, bool causal) {
  return causal ? std::min(u, row % s + (u - s) + 1) : u;
}

}  // namespace

GPUTWIN_VECTOR void norm_forward(const float* x, const float* gamma, const float* beta,
                                 std::int64_t t, std::int64_t h, bool centred, float* y,
                                 float* stats) {
  const float share = 1.0f / static_cast<float>(h);
  for (std::int64_t r = 0; r < t; ++r) {
    const float* from = x + r * h;
    float* to = y + r * h;
    float sum = 0.0f, square = 0.0f;
    if (centred) {
#pragma omp simd reduction(+ : sum)
      for (std::int64_t c = 0; c < h; ++c) sum += from[c];
    }
    const float mean = sum * share;
#pragma omp simd reduction(+ : square)
    for (std::int64_t c = 0; c < h; ++c) square += (from[c] - mean) * (from[c] - mean);
    const float inverse = 1.0f / std::sqrt(square * share + kNormEpsilon);
    if (beta != nullptr) {
      for (std::int64_t c = 0; c < h; ++c) to[c] = (from[c] - mean) * inverse * gamma[c] + beta[c];
    } else {
      for (std::int64_t c = 0; c < h; ++c) to[c] = (from[c] - mean) * inverse * gamma[c];
    }
    stats[2 * r] = mean;
    stats[2 * r + 1] = inverse;
  }
}

GPUTWIN_VECTOR void norm_backward(const float* dy, const float* x, const float* gamma,
                                  const float* stats, const float* add, std::int64_t t,
                                  std::int64_t h, bool centred, float* dx, float* d_gamma,
                                  float* d_beta) {
  const float share = 1.0f / static_cast<float>(h);
  for (std::int64_t r = 0; r < t; ++r) {
    const float *grad = dy + r * h, *from = x + r * h;
    const float mean = stats[2 * r], inverse = stats[2 * r + 1];
    float sum = 0.0f, product = 0.0f;
#pragma omp simd reduction(+ : sum, product)
    for (std::int64_t c = 0; c < h; ++c) {
      const float g = grad[c] * gamma[c];
      sum += g;
      product += g * (from[c] - mean) * inverse;
    }
    if (d_gamma != nullptr) {
      for (std::int64_t c = 0; c < h; ++c) d_gamma[c] += grad[c] * (from[c] - mean) * inverse;
    }
    if (d_beta != nullptr) {
      for (std::int64_t c = 0; c < h; ++c) d_beta[c] += grad[c];
    }
    const float shift = centred ? sum * share : 0.0f, slope = product * share;
    float* to = dx + r * h;
    const float* more = add != nullptr ? add + r * h : nullptr;
    for (std::int64_t c = 0; c < h; ++c) {
      const float normed = (from[c] - mean) * inverse;
      to[c] = inverse * (grad[c] * gamma[c] - shift - normed * slope) +
              (more != nullptr ? more[c] : 0.0f);
    }
  }
}

GPUTWIN_VECTOR void softmax_rows(const float* scores, std::int64_t rows, std::int64_t s,
                                 std::int64_t u, bool causal, float* probs, float* log_sums) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t seen = keys_of(row, s, u, causal);
    const float* from = scores + row * u;
    float* to = probs + row * u;
    const float top = largest(from, seen);
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t j = 0; j < seen; ++j) {
      to[j] = exp_of(from[j] - top);
      sum += to[j];
    }
    const float share = 1.0f / sum;
    for (std::int64_t j = 0; j < seen; ++j) to[j] *= share;
    std::fill(to + seen, to + u, 0.0f);
    if (log_sums != nullptr) log_sums[row] = top + std::log(sum);
  }
}

GPUTWIN_VECTOR void softmax_backward(const float* probs, const float* grad, std::int64_t rows,
                                     std::int64_t u, float* d_scores) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float *p = probs + row * u, *g = grad + row * u;
    float* to = d_scores + row * u;
    const float mean = dot(p, g, u);
    for (std::int64_t j = 0; j < u; ++j) to[j] = p[j] * (g[j] - mean);
  }
}

GPUTWIN_VECTOR void flash_backward_rows(const float* log_sums, const float* out, const float* d_out,
                                        std::int64_t s, std::int64_t u, std::int64_t d,
                                        std::int64_t pitch, bool causal, float* scores,
                                        float* grad) {
  for (std::int64_t i = 0; i < s; ++i) {
    const std::int64_t seen = keys_of(i, s, u, causal);
    float *p = scores + i * u, *g = grad + i * u;
    const float mean = dot(out + i * pitch, d_out + i * pitch, d), log_sum = log_sums[i];
    for (std::int64_t j = 0; j < seen; ++j) {
      p[j] = exp_of(p[j] - log_sum);
      g[j] = p[j] * (g[j] - mean);
    }
    std::fill(p + seen, p + u, 0.0f);
    std::fill(g + seen, g + u, 0.0f);
  }
}

GPUTWIN_VECTOR void activation_forward(Activation activation, const float* x, const float* bias,
                                       std::int64_t t, std::int64_t f, float* y) {
  switch (activation) {
    case Activation::Gelu: return forward_rows<Gelu>(x, bias, t, f, y);
    case Activation::Relu: return forward_rows<Relu>(x, bias, t, f, y);
    case Activation::SqRelu: return forward_rows<SquaredRelu>(x, bias, t, f, y);
    case Activation::Geglu: return gated_forward_rows<Gelu>(x, bias, t, f, y);
    case Activation::Swiglu: return gated_forward_rows<Silu>(x, bias, t, f, y);
  }
}

GPUTWIN_VECTOR void activation_backward(Activation activation, const float* dy, const float* x,
                                        const float* bias, std::int64_t t, std::int64_t f,
                                        float* dx) {
  switch (activation) {
    case Activation::Gelu: return backward_rows<Gelu>(dy, x, bias, t, f, dx);
    case Activation::Relu: return backward_rows<Relu>(dy, x, bias, t, f, dx);
    case Activation::SqRelu: return backward_rows<SquaredRelu>(dy, x, bias, t, f, dx);
    case Activation::Geglu: return gated_backward_rows<Gelu>(dy, x, bias, t, f, dx);
    case Activation::Swiglu: return gated_backward_rows<Silu>(dy, x, bias, t, f, dx);
  }
}

GPUTWIN_VECTOR void add_rows(const float* x, const float* bias, const float* residual,
                             std::int64_t t, std::int64_t h, float* y) {
  for (std::int64_t r = 0; r < t; ++r) {
    const float *from = x + r * h, *more = residual + r * h;
    float* to = y + r * h;
    if (bias != nullptr) {
      for (std::int64_t c = 0; c < h; ++c) to[c] = from[c] + bias[c] + more[c];
    } else {
      for (std::int64_t c = 0; c < h; ++c) to[c] = from[c] + more[c];
    }
  }
}

GPUTWIN_VECTOR void add_columns(const float* x, std::int64_t t, std::int64_t h, float* sums) {
  for (std::int64_t r = 0; r < t; ++r) {
    const float* from = x + r * h;
    for (std::int64_t c = 0; c < h; ++c) sums[c] += from[c];
  }
}

GPUTWIN_VECTOR void add(const float* x, const float* y, std::int64_t n, float* z) {
  for (std::int64_t i = 0; i < n; ++i) z[i] = x[i] + y[i];
}

GPUTWIN_VECTOR double sum_of_squares(const float* x, std::int64_t n) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

GPUTWIN_VECTOR void row_max(const float* x, std::int64_t t, std::int64_t v, float* top) {
  for (std::int64_t r = 0; r < t; ++r) top[r] = largest(x + r * v, v);
}

GPUTWIN_VECTOR void row_exp_sum(const float* x, const float* top, std::int64_t t, std::int64_t v,
                                double* sums) {
  for (std::int64_t r = 0; r < t; ++r) {
    const float* from = x + r * v;
    const float above = top[r];
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t c = 0; c < v; ++c) sum += exp_of(from[c] - above);
    sums[r] = static_cast<double>(sum);
  }
}

GPUTWIN_VECTOR void row_probabilities(const float* x, const float* top, const double* sums,
                                      float scale, std::int64_t t, std::int64_t v, float* y) {
  for (std::int64_t r = 0; r < t; ++r) {
    const float* from = x + r * v;
    float* to = y + r * v;
    const float above = top[r], factor = scale / static_cast<float>(sums[r]);
    for (std::int64_t c = 0; c < v; ++c) to[c] = exp_of(from[c] - above) * factor;
  }
}

GPUTWIN_VECTOR void adam(const AdamConstants& constants, const float* grad, std::int64_t n,
                         float* first, float* second, float* master) {
  constexpr float kBeta1 = 0.9f, kBeta2 = 0.95f;
  const AdamConstants k = constants;
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * k.clip;
    const float m = kBeta1 * first[i] + (1.0f - kBeta1) * g;
    const float v = kBeta2 * second[i] + (1.0f - kBeta2) * g * g;
    first[i] = m;
    second[i] = v;
    master[i] -= k.rate * (m * k.scale1) / (std::sqrt(v * k.scale2) + k.epsilon);
  }
}

}  // namespace gputwin::executors
