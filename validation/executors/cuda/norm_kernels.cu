// Normalisation and softmax: one block for a row.
#include "validation/executors/cuda/block.cuh"

namespace gputwin::cuda {

namespace {

constexpr float kEpsilon = 1e-5f;

__global__ void norm_forward_kernel(NormShape shape, Matrix x, Matrix gamma, Matrix beta, Matrix y,
                                    Matrix stats) {
  const std::int64_t row = blockIdx.x;
  const float n = static_cast<float>(shape.cols);
  float sum = 0.0f, square = 0.0f;
  for (std::int64_t c = threadIdx.x; c < shape.cols; c += kThreads) sum += at(x, row, c);
  const float mean = shape.centred ? block_sum(sum) / n : 0.0f;
  for (std::int64_t c = threadIdx.x; c < shape.cols; c += kThreads) {
    const float off = at(x, row, c) - mean;
    square += off * off;
  }
  const float inverse = rsqrtf(block_sum(square) / n + kEpsilon);
  for (std::int64_t c = threadIdx.x; c < shape.cols; c += kThreads) {
    const float shift = beta.data ? at(beta, c) : 0.0f;
    put(y, row, c, (at(x, row, c) - mean) * inverse * at(gamma, c) + shift);
  }
  if (threadIdx.x == 0) {
    put(stats, row, 0, mean);
    put(stats, row, 1, inverse);
  }
}

__global__ void norm_input_kernel(NormShape shape, Matrix dy, Matrix x, Matrix gamma, Matrix stats,
                                  Matrix add, Matrix dx) {
  const std::int64_t row = blockIdx.x;
  const float mean = at(stats, row, 0), inverse = at(stats, row, 1);
  const float n = static_cast<float>(shape.cols);
  float sum = 0.0f, dot = 0.0f;
  for (std::int64_t c = threadIdx.x; c < shape.cols; c += kThreads) {
    const float grad = at(dy, row, c) * at(gamma, c);
    sum += grad;
    dot += grad * (at(x, row, c) - mean) * inverse;
  }
  const float all = shape.centred ? block_sum(sum) / n : 0.0f;
  const float product = block_sum(dot) / n;
  for (std::int64_t c = threadIdx.x; c < shape.cols; c += kThreads) {
    const float normed = (at(x, row, c) - mean) * inverse;
    const float grad = at(dy, row, c) * at(gamma, c);
    const float more = add.data ? at(add, row, c) : 0.0f;
    put(dx, row, c, inverse * (grad - all - normed * product) + more);
  }
}

__global__ void norm_gain_kernel(NormShape shape, Matrix dy, Matrix x, Matrix stats, Matrix dgamma,
                                 Matrix dbeta) {
  const std::int64_t c = this_index();
  if (c >= shape.cols) return;
  float gain = 0.0f, shift = 0.0f;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const float grad = at(dy, r, c);
    gain += grad * (at(x, r, c) - at(stats, r, 0)) * at(stats, r, 1);
    shift += grad;
  }
  put(dgamma, c, gain + (shape.accumulate ? at(dgamma, c) : 0.0f));
  if (dbeta.data) put(dbeta, c, shift + (shape.accumulate ? at(dbeta, c) : 0.0f));
}

__device__ std::int64_t keys_seen(const SoftmaxShape& shape, std::int64_t row) {
  if (!shape.causal) return shape.keys;
  const std::int64_t seen = row % shape.queries + shape.keys - shape.queries + 1;
  return seen < shape.keys ? seen : shape.keys;
}

__global__ void softmax_forward_kernel(SoftmaxShape shape, Matrix scores, Matrix probs) {
  const std::int64_t row = blockIdx.x, seen = keys_seen(shape, row);
  float top = -INFINITY, sum = 0.0f;
  for (std::int64_t j = threadIdx.x; j < seen; j += kThreads) top = fmaxf(top, at(scores, row, j));
  top = block_max(top);
  for (std::int64_t j = threadIdx.x; j < seen; j += kThreads) {
    sum += expf(at(scores, row, j) - top);
  }
  sum = block_sum(sum);
  for (std::int64_t j = threadIdx.x; j < shape.keys; j += kThreads) {
    put(probs, row, j, j < seen ? expf(at(scores, row, j) - top) / sum : 0.0f);
  }
}

__global__ void softmax_backward_kernel(SoftmaxShape shape, Matrix probs, Matrix dprobs,
                                        Matrix dscores) {
  const std::int64_t row = blockIdx.x;
  float dot = 0.0f;
  for (std::int64_t j = threadIdx.x; j < shape.keys; j += kThreads) {
    dot += at(probs, row, j) * at(dprobs, row, j);
  }
  dot = block_sum(dot);
  for (std::int64_t j = threadIdx.x; j < shape.keys; j += kThreads) {
    put(dscores, row, j, at(probs, row, j) * (at(dprobs, row, j) - dot));
  }
}

}  // namespace

void norm_forward(NormShape shape, Matrix x, Matrix gamma, Matrix beta, Matrix y, Matrix stats,
                  cudaStream_t stream) {
  launch("norm_forward", norm_forward_kernel, shape.rows, stream, shape, x, gamma, beta, y, stats);
}

void norm_backward(NormShape shape, Matrix dy, Matrix x, Matrix gamma, Matrix stats, Matrix add,
                   Matrix dx, Matrix dgamma, Matrix dbeta, cudaStream_t stream) {
  if (dgamma.data != nullptr) {  // before dx, which may lie on dy
    launch("norm_gain", norm_gain_kernel, blocks_for(shape.cols), stream, shape, dy, x, stats,
           dgamma, dbeta);
  }
  launch("norm_backward", norm_input_kernel, shape.rows, stream, shape, dy, x, gamma, stats, add,
         dx);
}

void softmax_forward(SoftmaxShape shape, Matrix scores, Matrix probs, cudaStream_t stream) {
  launch("softmax_forward", softmax_forward_kernel, shape.rows, stream, shape, scores, probs);
}

void softmax_backward(SoftmaxShape shape, Matrix probs, Matrix dprobs, Matrix dscores,
                      cudaStream_t stream) {
  launch("softmax_backward", softmax_backward_kernel, shape.rows, stream, shape, probs, dprobs,
         dscores);
}

}  // namespace gputwin::cuda
