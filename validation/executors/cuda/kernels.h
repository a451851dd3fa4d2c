// Own kernels in 32 bits for what lies between the matrix products of a plan. Each function
// enqueues one op of sim/core/op.h, with its order of operands and its meaning, and checks the
// launch. Matrices are row-major with a pitch; dropout is 0. What is not here a plan cannot run on
// a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace gputwin::cuda {

/// A view of device memory: row r begins at data + r * ld.
struct Matrix {
  float* data = nullptr;
  std::int64_t ld = 0;
};

/// Of a normalisation of `rows` rows of `cols`; stats [rows, 2] holds mean and 1 / deviation.
struct NormShape {
  std::int64_t rows = 0, cols = 0;
  bool centred = true;  // LayerNorm; else RMSNorm
  bool accumulate = false;
};
void norm_forward(NormShape shape, Matrix x, const float* gamma, const float* beta, Matrix y,
                  float* stats, cudaStream_t stream);
/// `add`, `dgamma` and `dbeta` may be missing.
void norm_backward(NormShape shape, Matrix dy, Matrix x, const float* gamma, const float* stats,
                   Matrix add, Matrix dx, float* dgamma, float* dbeta, cudaStream_t stream);

/// One causal or full softmax of `rows` rows of `keys`; row r is query r mod `queries`.
struct SoftmaxShape {
  std::int64_t rows = 0, queries = 0, keys = 0;
  bool causal = false;
};
void softmax_forward(SoftmaxShape shape, const float* scores, float* probs, cudaStream_t stream);
void softmax_backward(SoftmaxShape shape, const float* probs, const float* dprobs, float* dscores,
                      cudaStream_t stream);

/// As dims of Flash* in op.h; head size at most 256.
struct AttentionShape {
  std::int64_t samples = 0, heads = 0, key_heads = 0, queries = 0, keys = 0, size = 0;
  bool causal = false;
};
void attention_forward(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                       float* log_sums, cudaStream_t stream);
/// Sums over queries are added by atomics: their last bits differ from run to run.
void attention_backward(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                        const float* log_sums, Matrix dout, Matrix dq, Matrix dk, Matrix dv,
                        cudaStream_t stream);

enum class Curve : std::uint8_t { Gelu, Relu, SquaredRelu, Silu };
/// y [rows, cols]; x is [rows, 2 cols], gate then up, where `gated`. `bias` may be missing.
struct ActivationShape {
  std::int64_t rows = 0, cols = 0;
  Curve curve = Curve::Gelu;
  bool gated = false;
};
void activation_forward(ActivationShape shape, Matrix x, const float* bias, Matrix y,
                        cudaStream_t stream);
void activation_backward(ActivationShape shape, Matrix dy, Matrix x, const float* bias, Matrix dx,
                         cudaStream_t stream);

/// y = x + bias + other, both optional: BiasDropoutAdd, Add and copies.
void add(std::int64_t rows, std::int64_t cols, Matrix x, const float* bias, Matrix other,
         float scale, Matrix y, cudaStream_t stream);
/// sums (+)= the columns of x. One thread adds a column, in order of rows.
void column_sums(std::int64_t rows, std::int64_t cols, Matrix x, bool accumulate, float* sums,
                 cudaStream_t stream);
void zero(std::int64_t count, float* x, cudaStream_t stream);
/// sum (+)= x . x, in a fixed order.
void sum_of_squares(std::int64_t count, const float* x, bool accumulate, float* sum,
                    cudaStream_t stream);

/// Rows `first` .. `first + table_rows` of the vocabulary lie in `table`; others give 0.
void embedding_forward(std::int64_t rows, std::int64_t cols, std::int64_t first,
                       std::int64_t table_rows, const std::int32_t* tokens, const float* table,
                       Matrix y, cudaStream_t stream);
/// Adds to `dtable`, by atomics.
void embedding_backward(std::int64_t rows, std::int64_t cols, std::int64_t first,
                        std::int64_t table_rows, const std::int32_t* tokens, Matrix dy,
                        float* dtable, cudaStream_t stream);

/// LogitsMax, LogitsSum, LossFromSums and CrossEntropyBackward of a shard of the vocabulary.
struct LogitsShape {
  std::int64_t rows = 0, cols = 0, first = 0;
  float scale = 1.0f;
  bool accumulate = false;
};
void logits_max(LogitsShape shape, Matrix logits, float* top, cudaStream_t stream);
void logits_sum(LogitsShape shape, Matrix logits, const float* top, const std::int32_t* targets,
                float* sums, cudaStream_t stream);
void loss_from_sums(LogitsShape shape, const float* top, const float* sums, float* loss,
                    cudaStream_t stream);
void cross_entropy_backward(LogitsShape shape, Matrix logits, const float* top, const float* sums,
                            const std::int32_t* targets, Matrix dlogits, cudaStream_t stream);

/// AdamStep without weight decay (Kingma and Ba 2015, algorithm 1). `sum_squares` may be missing:
/// no clipping. `weight` may be `master`.
struct AdamSettings {
  float rate = 1e-3f, beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, clip_norm = 1.0f;
  int step = 1;
};
void adam(AdamSettings settings, std::int64_t count, const float* grad, const float* sum_squares,
          float* master, float* first, float* second, float* weight, cudaStream_t stream);

}  // namespace gputwin::cuda
