// Loops over F32 arrays without gaps, as vector code for the processor that runs them: what kernels
// bound by memory do. Results may stand where inputs do, element by element. Null pointers leave
// operands out.
#pragma once

#include <cstdint>

#include "sim/core/workload.h"

namespace gputwin::executors {

/// y [t, h] = gamma (x - mean) / std + beta; stats [t, 2]: mean (0 unless `centred`) and 1 / std.
void norm_forward(const float* x, const float* gamma, const float* beta, std::int64_t t,
                  std::int64_t h, bool centred, float* y, float* stats);
/// dx [t, h], plus `add`; d_gamma and d_beta [h] get their sums over tokens added.
void norm_backward(const float* dy, const float* x, const float* gamma, const float* stats,
                   const float* add, std::int64_t t, std::int64_t h, bool centred, float* dx,
                   float* d_gamma, float* d_beta);

/// Softmax of rows of `u`; query row r % s of a causal row sees keys 0 .. r % s + u - s, the others
/// get 0. log_sums [rows]: log-sum-exp.
void softmax_rows(const float* scores, std::int64_t rows, std::int64_t s, std::int64_t u,
                  bool causal, float* probs, float* log_sums);
/// d_scores = probs (grad - sum of probs x grad over the row).
void softmax_backward(const float* probs, const float* grad, std::int64_t rows, std::int64_t u,
                      float* d_scores);
/// One head of a fused backward pass: scores [s, u] become probabilities by their log-sum-exp,
/// grad [s, u] (of the probabilities) becomes that of the scores. out, d_out [s, ...] with rows of
/// `d` at pitch `pitch`.
void flash_backward_rows(const float* log_sums, const float* out, const float* d_out,
                         std::int64_t s, std::int64_t u, std::int64_t d, std::int64_t pitch,
                         bool causal, float* scores, float* grad);

/// y [t, f] = act(x + bias), times x's second half where the activation is gated (x [t, 2f]).
void activation_forward(Activation activation, const float* x, const float* bias, std::int64_t t,
                        std::int64_t f, float* y);
void activation_backward(Activation activation, const float* dy, const float* x, const float* bias,
                         std::int64_t t, std::int64_t f, float* dx);

/// y [t, h] = x + bias + residual.
void add_rows(const float* x, const float* bias, const float* residual, std::int64_t t,
              std::int64_t h, float* y);
/// sums [h] += columns of x [t, h].
void add_columns(const float* x, std::int64_t t, std::int64_t h, float* sums);
void add(const float* x, const float* y, std::int64_t n, float* z);
double sum_of_squares(const float* x, std::int64_t n);

/// Largest of each row of x [t, v].
void row_max(const float* x, std::int64_t t, std::int64_t v, float* top);
/// Sum of exp(x - top) of each row.
void row_exp_sum(const float* x, const float* top, std::int64_t t, std::int64_t v, double* sums);
/// y [t, v] = scale exp(x - top) / sum.
void row_probabilities(const float* x, const float* top, const double* sums, float scale,
                       std::int64_t t, std::int64_t v, float* y);

struct AdamConstants {
  float clip, rate, epsilon;
  float scale1, scale2;  // 1 / (1 - beta^step)
};
/// Adam with betas 0.9 and 0.95.
void adam(const AdamConstants& constants, const float* grad, std::int64_t n, float* first,
          float* second, float* master);

}  // namespace gputwin::executors
