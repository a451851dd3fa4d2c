// Own kernels for what lies between the matrix products of a plan. Each function enqueues one op of
// sim/core/op.h, with its order of operands and its meaning, and checks the launch. Elements are
// F32 or BF16, each operand by itself; sums are in F32, results rounded to nearest. Matrices are
// row-major with a pitch; a matrix without data is left out. Dropout is 0.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "validation/codecs/element.h"

namespace gputwin::cuda {

using codecs::Element;

/// A view of device memory: row r begins at element r * ld.
struct Matrix {
  void* data = nullptr;
  std::int64_t ld = 0;
  Element format = Element::Fp32;
};

/// Of a normalisation of `rows` rows of `cols`; stats [rows, 2] holds mean and 1 / deviation.
struct NormShape {
  std::int64_t rows = 0, cols = 0;
  bool centred = true;  // LayerNorm; else RMSNorm
  bool accumulate = false;
};
void norm_forward(NormShape shape, Matrix x, Matrix gamma, Matrix beta, Matrix y, Matrix stats,
                  cudaStream_t stream);
/// `add`, `dgamma` and `dbeta` may be missing.
void norm_backward(NormShape shape, Matrix dy, Matrix x, Matrix gamma, Matrix stats, Matrix add,
                   Matrix dx, Matrix dgamma, Matrix dbeta, cudaStream_t stream);

/// One causal or full softmax of `rows` rows of `keys`; row r is query r mod `queries`.
struct SoftmaxShape {
  std::int64_t rows = 0, queries = 0, keys = 0;
  bool causal = false;
};
void softmax_forward(SoftmaxShape shape, Matrix scores, Matrix probs, cudaStream_t stream);
void softmax_backward(SoftmaxShape shape, Matrix probs, Matrix dprobs, Matrix dscores,
                      cudaStream_t stream);

/// As dims of Flash* in op.h; head size at most 256. `log_sums` has one row.
struct AttentionShape {
  std::int64_t samples = 0, heads = 0, key_heads = 0, queries = 0, keys = 0, size = 0;
  bool causal = false;
};
void attention_forward(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                       Matrix log_sums, cudaStream_t stream);
void attention_backward(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                        Matrix log_sums, Matrix dout, Matrix dq, Matrix dk, Matrix dv,
                        cudaStream_t stream);

enum class Curve : std::uint8_t { Gelu, Relu, SquaredRelu, Silu };
/// y [rows, cols]; x is [rows, 2 cols], gate then up, where `gated`. `bias` may be missing.
struct ActivationShape {
  std::int64_t rows = 0, cols = 0;
  Curve curve = Curve::Gelu;
  bool gated = false;
};
void activation_forward(ActivationShape shape, Matrix x, Matrix bias, Matrix y,
                        cudaStream_t stream);
void activation_backward(ActivationShape shape, Matrix dy, Matrix x, Matrix bias, Matrix dx,
                         cudaStream_t stream);

/// y = scale x + bias + other, both optional: BiasDropoutAdd, Add, CastCopy. y may lie on x.
void add(std::int64_t rows, std::int64_t cols, Matrix x, Matrix bias, Matrix other, float scale,
         Matrix y, cudaStream_t stream);
/// sums (+)= the columns of x. One thread adds a column, in order of rows.
void column_sums(std::int64_t rows, std::int64_t cols, Matrix x, bool accumulate, Matrix sums,
                 cudaStream_t stream);
/// sum (+)= x . x of one row, in a fixed order. `partial` holds kPartialSums floats meanwhile.
inline constexpr std::int64_t kPartialSums = 1024;
void sum_of_squares(std::int64_t count, Matrix x, bool accumulate, Matrix sum, float* partial,
                    cudaStream_t stream);

/// Rows `first` .. `first + table_rows` of the vocabulary lie in `table`; others give 0.
struct EmbeddingShape {
  std::int64_t rows = 0, cols = 0, first = 0, table_rows = 0;
  bool accumulate = false;
};
void embedding_forward(EmbeddingShape shape, const std::int64_t* tokens, Matrix table, Matrix y,
                       cudaStream_t stream);
/// `dtable` is F32: sums are by atomics, and their last bits differ from run to run.
void embedding_backward(EmbeddingShape shape, const std::int64_t* tokens, Matrix dy, Matrix dtable,
                        cudaStream_t stream);

/// PositionAdd and PositionGrad: row r takes row (first + r) mod `table_rows` of the table.
struct PositionShape {
  std::int64_t rows = 0, cols = 0, first = 0, table_rows = 0;
  bool accumulate = false;
};
void position_add(PositionShape shape, Matrix x, Matrix table, Matrix y, cudaStream_t stream);
void position_grad(PositionShape shape, Matrix dy, Matrix dtable, cudaStream_t stream);

/// Turns pairs (x, x + size/2) of the first `heads` heads of each row of `cols` by ((first + row)
/// mod `sequence`) 10000^(-2x/size); the rest of a row is copied. y may be x.
struct RopeShape {
  std::int64_t rows = 0, cols = 0, heads = 0, size = 0, sequence = 0, first = 0;
  bool inverse = false;
};
void rope(RopeShape shape, Matrix x, Matrix y, cudaStream_t stream);

/// LogitsMax, LogitsSum, LossFromSums and CrossEntropyBackward of a shard of the vocabulary.
/// `top` has one row, `sums` is [rows, 2].
struct LogitsShape {
  std::int64_t rows = 0, cols = 0, first = 0;
  float scale = 1.0f;
  bool accumulate = false;
};
void logits_max(LogitsShape shape, Matrix logits, Matrix top, cudaStream_t stream);
void logits_sum(LogitsShape shape, Matrix logits, Matrix top, const std::int64_t* targets,
                Matrix sums, cudaStream_t stream);
void loss_from_sums(LogitsShape shape, Matrix top, Matrix sums, Matrix loss, cudaStream_t stream);
void cross_entropy_backward(LogitsShape shape, Matrix logits, Matrix top, Matrix sums,
                            const std::int64_t* targets, Matrix dlogits, cudaStream_t stream);

/// AdamStep without weight decay (Kingma and Ba 2015, algorithm 1). `sum_squares` may be missing:
/// no clipping. `weight` may be missing, where the master is the weight.
struct AdamSettings {
  float rate = 1e-3f, beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, clip_norm = 1.0f;
  int step = 1;
};
void adam(AdamSettings settings, std::int64_t count, Matrix grad, Matrix sum_squares, Matrix master,
          Matrix first, Matrix second, Matrix weight, cudaStream_t stream);
/// SgdStep: momentum = 0.9 momentum + gradient; of the settings, rate and clip_norm.
void sgd(AdamSettings settings, std::int64_t count, Matrix grad, Matrix sum_squares, Matrix master,
         Matrix momentum, Matrix weight, cudaStream_t stream);

}  // namespace gputwin::cuda
