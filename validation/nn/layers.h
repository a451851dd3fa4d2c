// Layers of a transformer with their gradients, in 32-bit floats on OpenBLAS. Matrices are
// row-major and dense. Backward functions add to the gradients of parameters and overwrite those of
// inputs.
#pragma once

#include <cstdint>
#include <vector>

namespace gputwin::nn {

using Floats = std::vector<float>;
enum class Transposed : bool { No, Yes };

/// Keeps OpenBLAS to the calling thread: the ranks are the threads.
void use_one_blas_thread();

/// c [m, n] = op(a) [m, k] x op(b) [k, n] + beta x c, with leading dimensions.
void gemm(Transposed a_is, Transposed b_is, std::int64_t m, std::int64_t n, std::int64_t k,
          const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
          std::int64_t ldc);

/// y [rows, out] = x [rows, in] x w [in, out].
void linear(const Floats& x, const Floats& w, std::int64_t rows, Floats& y);
/// dx = dy x w^T;  dw += x^T x dy.
void linear_backward(const Floats& x, const Floats& w, const Floats& dy, std::int64_t rows,
                     Floats& dx, Floats& dw);

/// What the backward pass of a normalisation needs.
struct Normalised {
  Floats hat;      // [rows, width], before gain and shift
  Floats inverse;  // [rows], 1 / standard deviation
};

/// y = (x - mean) / sqrt(variance + 1e-5) x gain + shift, by row (Ba et al. 2016, equation 4).
void layer_norm(const Floats& x, const Floats& gain, const Floats& shift, Normalised& kept,
                Floats& y);
void layer_norm_backward(const Normalised& kept, const Floats& gain, const Floats& dy, Floats& dx,
                         Floats& dgain, Floats& dshift);

/// GELU by tanh (Hendrycks and Gimpel 2016, section 2). y may not be x.
void gelu(const Floats& x, Floats& y);
void gelu_backward(const Floats& x, const Floats& dy, Floats& dx);

/// Shape of causal attention: rows are sequences x length; qkv is [rows, 3 x heads x head_width],
/// the queries of all heads first, then keys, then values.
struct AttentionShape {
  std::int64_t sequences = 1, length = 1, heads = 1, head_width = 1;
};

/// out [rows, heads x head_width]; weights [sequences, heads, length, length] are kept.
void attention(const AttentionShape& shape, const Floats& qkv, Floats& weights, Floats& out);
void attention_backward(const AttentionShape& shape, const Floats& qkv, const Floats& weights,
                        const Floats& dout, Floats& dqkv);

/// Mean cross entropy of logits [rows, classes] against the target classes; dlogits is its
/// gradient.
double cross_entropy(const Floats& logits, const std::vector<std::int32_t>& targets,
                     Floats& dlogits);

/// One trained tensor with its gradient and Adam's two moments.
struct Parameter {
  Floats value, grad, first, second;

  explicit Parameter(std::int64_t size = 0) : value(size), grad(size), first(size), second(size) {}
};

/// One step of Adam (Kingma and Ba 2015, algorithm 1; 0.9, 0.95, 1e-8); zeroes the gradient.
void adam_step(Parameter& p, double rate, std::int64_t step);

}  // namespace gputwin::nn
