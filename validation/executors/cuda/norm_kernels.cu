// Normalisation and softmax: one block for a row.
#include "validation/executors/cuda/block.cuh"
#include "validation/executors/cuda/kernels.h"

namespace gputwin::cuda {

namespace {

constexpr float kEpsilon = 1e-5f;

__global__ void norm_forward_kernel(NormShape shape, Matrix x, const float* gamma,
                                    const float* beta, Matrix y, float* stats) {
  const std::int64_t row = blockIdx.x;
  const float* from = x.data + row * x.ld;
  const float n = static_cast<float>(shape.cols);
  float sum = 0.0f, square = 0.0f;
  for (std::int64_t c = threadIdx.x; c < shape.cols; c += kThreads) sum += from[c];
  const float mean = shape.centred ? block_sum(sum) / n : 0.0f;
  for (std::int64_t c = threadIdx.x; c < shape.cols; c += kThreads) {
    square += (from[c] - mean) * (from[c] - mean);
  }
  const float inverse = rsqrtf(block_sum(square) / n + kEpsilon);
  for (std::int64_t c = threadIdx.x; c < shape.cols; c += kThreads) {
    y.data[row * y.ld + c] = (from[c] - mean) * inverse * gamma[c] + (beta ? beta[c] : 0.0f);
  }
  if (threadIdx.x == 0) {
    stats[2 * row] = mean;
    stats[2 * row + 1] = inverse;
  }
}

__global__ void norm_input_kernel(NormShape shape, Matrix dy, Matrix x, const float* gamma,
                                  const float* stats, Matrix add, Matrix dx) {
  const std::int64_t row = blockIdx.x;
  const float mean = stats[2 * row], inverse = stats[2 * row + 1];
  const float n = static_cast<float>(shape.cols);
  float sum = 0.0f, dot = 0.0f;
  for (std::int64_t c = threadIdx.x; c < shape.cols; c += kThreads) {
    const float grad = dy.data[row * dy.ld + c] * gamma[c];
    sum += grad;
    dot += grad * (x.data[row * x.ld + c] - mean) * inverse;
  }
  const float all = shape.centred ? block_sum(sum) / n : 0.0f;
  const float product = block_sum(dot) / n;
  for (std::int64_t c = threadIdx.x; c < shape.cols; c += kThreads) {
    const float normed = (x.data[row * x.ld + c] - mean) * inverse;
    const float grad = dy.data[row * dy.ld + c] * gamma[c];
    dx.data[row * dx.ld + c] =
        inverse * (grad - all - normed * product) + (add.data ? add.data[row * add.ld + c] : 0.0f);
  }
}

__global__ void norm_gain_kernel(NormShape shape, Matrix dy, Matrix x, const float* stats,
                                 float* dgamma, float* dbeta) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= shape.cols) return;
  float gain = 0.0f, shift = 0.0f;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const float grad = dy.data[r * dy.ld + c];
    gain += grad * (x.data[r * x.ld + c] - stats[2 * r]) * stats[2 * r + 1];
    shift += grad;
  }
  dgamma[c] = gain + (shape.accumulate ? dgamma[c] : 0.0f);
  if (dbeta) dbeta[c] = shift + (shape.accumulate ? dbeta[c] : 0.0f);
}

__device__ std::int64_t keys_seen(const SoftmaxShape& shape, std::int64_t row) {
  if (!shape.causal) return shape.keys;
  const std::int64_t seen = row % shape.queries + shape.keys - shape.queries + 1;
  return seen < shape.keys ? seen : shape.keys;
}

__global__ void softmax_forward_kernel(SoftmaxShape shape, const float* scores, float* probs) {
  const std::int64_t row = blockIdx.x, seen = keys_seen(shape, row);
  const float* from = scores + row * shape.keys;
  float* to = probs + row * shape.keys;
  float top = -INFINITY, sum = 0.0f;
  for (std::int64_t j = threadIdx.x; j < seen; j += kThreads) top = fmaxf(top, from[j]);
  top = block_max(top);
  for (std::int64_t j = threadIdx.x; j < seen; j += kThreads) sum += expf(from[j] - top);
  sum = block_sum(sum);
  for (std::int64_t j = threadIdx.x; j < shape.keys; j += kThreads) {
    to[j] = j < seen ? expf(from[j] - top) / sum : 0.0f;
  }
}

__global__ void softmax_backward_kernel(SoftmaxShape shape, const float* probs, const float* dprobs,
                                        float* dscores) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * shape.keys;
  float dot = 0.0f;
  for (std::int64_t j = threadIdx.x; j < shape.keys; j += kThreads) {
    dot += probs[first + j] * dprobs[first + j];
  }
  dot = block_sum(dot);
  for (std::int64_t j = threadIdx.x; j < shape.keys; j += kThreads) {
    dscores[first + j] = probs[first + j] * (dprobs[first + j] - dot);
  }
}

}  // namespace

void norm_forward(NormShape shape, Matrix x, const float* gamma, const float* beta, Matrix y,
                  float* stats, cudaStream_t stream) {
  norm_forward_kernel<<<static_cast<unsigned>(shape.rows), kThreads, 0, stream>>>(shape, x, gamma,
                                                                                  beta, y, stats);
  check_launch("norm_forward");
}

void norm_backward(NormShape shape, Matrix dy, Matrix x, const float* gamma, const float* stats,
                   Matrix add, Matrix dx, float* dgamma, float* dbeta, cudaStream_t stream) {
  if (dgamma != nullptr) {  // before dx, which may lie on dy
    norm_gain_kernel<<<blocks_for(shape.cols), kThreads, 0, stream>>>(shape, dy, x, stats, dgamma,
                                                                      dbeta);
    check_launch("norm_gain");
  }
  norm_input_kernel<<<static_cast<unsigned>(shape.rows), kThreads, 0, stream>>>(shape, dy, x, gamma,
                                                                                stats, add, dx);
  check_launch("norm_backward");
}

void softmax_forward(SoftmaxShape shape, const float* scores, float* probs, cudaStream_t stream) {
  softmax_forward_kernel<<<static_cast<unsigned>(shape.rows), kThreads, 0, stream>>>(shape, scores,
                                                                                     probs);
  check_launch("softmax_forward");
}

void softmax_backward(SoftmaxShape shape, const float* probs, const float* dprobs, float* dscores,
                      cudaStream_t stream) {
  softmax_backward_kernel<<<static_cast<unsigned>(shape.rows), kThreads, 0, stream>>>(
      shape, probs, dprobs, dscores);
  check_launch("softmax_backward");
}

}  // namespace gputwin::cuda
