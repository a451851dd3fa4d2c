// Activations, sums, rotary positions and the optimizers: a thread for an element.
#include <algorithm>

#include "validation/executors/cuda/block.cuh"

namespace gputwin::cuda {

namespace {

__device__ float curve_at(Curve curve, float x) {
  if (curve == Curve::Gelu) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  if (curve == Curve::Silu) return x / (1.0f + expf(-x));
  if (x <= 0.0f) return 0.0f;
  return curve == Curve::Relu ? x : x * x;
}

__device__ float slope_at(Curve curve, float x) {
  if (curve == Curve::Gelu) {
    return 0.5f * (1.0f + erff(x * 0.70710678f)) + x * expf(-0.5f * x * x) * 0.39894228f;
  }
  if (curve == Curve::Silu) {
    const float sigmoid = 1.0f / (1.0f + expf(-x));
    return sigmoid * (1.0f + x * (1.0f - sigmoid));
  }
  if (x <= 0.0f) return 0.0f;
  return curve == Curve::Relu ? 1.0f : 2.0f * x;
}

__device__ float biased(const Matrix& x, const Matrix& bias, std::int64_t row, std::int64_t col) {
  return at(x, row, col) + (bias.data ? at(bias, col) : 0.0f);
}

__global__ void activation_forward_kernel(ActivationShape shape, Matrix x, Matrix bias, Matrix y) {
  const std::int64_t k = this_index();
  if (k >= shape.rows * shape.cols) return;
  const std::int64_t r = k / shape.cols, c = k % shape.cols;
  const float up = shape.gated ? biased(x, bias, r, shape.cols + c) : 1.0f;
  put(y, r, c, curve_at(shape.curve, biased(x, bias, r, c)) * up);
}

__global__ void activation_backward_kernel(ActivationShape shape, Matrix dy, Matrix x, Matrix bias,
                                           Matrix dx) {
  const std::int64_t k = this_index();
  if (k >= shape.rows * shape.cols) return;
  const std::int64_t r = k / shape.cols, c = k % shape.cols;
  const float grad = at(dy, r, c), gate = biased(x, bias, r, c);
  const float up = shape.gated ? biased(x, bias, r, shape.cols + c) : 1.0f;
  put(dx, r, c, grad * up * slope_at(shape.curve, gate));
  if (shape.gated) put(dx, r, shape.cols + c, grad * curve_at(shape.curve, gate));
}

__global__ void add_kernel(std::int64_t rows, std::int64_t cols, Matrix x, Matrix bias,
                           Matrix other, float scale, Matrix y) {
  const std::int64_t k = this_index();
  if (k >= rows * cols) return;
  const std::int64_t r = k / cols, c = k % cols;
  put(y, r, c,
      scale * at(x, r, c) + (bias.data ? at(bias, c) : 0.0f) +
          (other.data ? at(other, r, c) : 0.0f));
}

__global__ void column_sums_kernel(std::int64_t rows, std::int64_t cols, Matrix x, bool accumulate,
                                   Matrix sums) {
  const std::int64_t c = this_index();
  if (c >= cols) return;
  float sum = 0.0f;
  for (std::int64_t r = 0; r < rows; ++r) sum += at(x, r, c);
  put(sums, c, sum + (accumulate ? at(sums, c) : 0.0f));
}

/// Block b adds the squares of elements b kThreads ..., a grid apart.
__global__ void squares_kernel(std::int64_t count, Matrix x, float* partial) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  float part = 0.0f;
  for (std::int64_t k = this_index(); k < count; k += step) part += at(x, k) * at(x, k);
  part = block_sum(part);
  if (threadIdx.x == 0) partial[blockIdx.x] = part;
}

__global__ void total_kernel(std::int64_t count, const float* partial, bool accumulate,
                             Matrix sum) {
  float part = 0.0f;
  for (std::int64_t k = threadIdx.x; k < count; k += kThreads) part += partial[k];
  part = block_sum(part);
  if (threadIdx.x == 0) put(sum, 0, part + (accumulate ? at(sum, 0) : 0.0f));
}

/// Thread k of a row has its pair k, or copies element k behind the pairs.
__global__ void rope_kernel(RopeShape shape, Matrix x, Matrix y) {
  const std::int64_t half = shape.size / 2, pairs = shape.heads * half;
  const std::int64_t each = shape.cols - pairs, k = this_index();
  if (k >= shape.rows * each) return;
  const std::int64_t row = k / each, place = k % each;
  if (place >= pairs) return put(y, row, place + pairs, at(x, row, place + pairs));
  constexpr float kLog2OfBase = 13.28771238f;  // 10,000
  const std::int64_t low = place / half * shape.size + place % half;
  const float share = static_cast<float>(place % half) / static_cast<float>(half);
  const float angle =
      static_cast<float>((shape.first + row) % shape.sequence) * exp2f(-share * kLog2OfBase);
  const float cosine = cosf(angle), sine = shape.inverse ? -sinf(angle) : sinf(angle);
  const float first = at(x, row, low), second = at(x, row, low + half);
  put(y, row, low, first * cosine - second * sine);
  put(y, row, low + half, first * sine + second * cosine);
}

__device__ float clip_factor(const AdamSettings& set, const Matrix& sum_squares) {
  const float norm = sum_squares.data ? sqrtf(at(sum_squares, 0)) : 0.0f;
  return norm > set.clip_norm ? set.clip_norm / norm : 1.0f;
}

/// `correction1`, `correction2`: 1 - beta^step.
__global__ void adam_kernel(AdamSettings set, float correction1, float correction2,
                            std::int64_t count, Matrix grad, Matrix sum_squares, Matrix master,
                            Matrix first, Matrix second, Matrix weight) {
  const std::int64_t k = this_index();
  if (k >= count) return;
  const float g = at(grad, k) * clip_factor(set, sum_squares);
  const float m = set.beta1 * at(first, k) + (1.0f - set.beta1) * g;
  const float v = set.beta2 * at(second, k) + (1.0f - set.beta2) * g * g;
  const float updated =
      at(master, k) - set.rate * (m / correction1) / (sqrtf(v / correction2) + set.epsilon);
  put(first, k, m);
  put(second, k, v);
  put(master, k, updated);
  if (weight.data) put(weight, k, updated);
}

__global__ void sgd_kernel(AdamSettings set, std::int64_t count, Matrix grad, Matrix sum_squares,
                           Matrix master, Matrix momentum, Matrix weight) {
  constexpr float kMomentum = 0.9f;
  const std::int64_t k = this_index();
  if (k >= count) return;
  const float m = kMomentum * at(momentum, k) + at(grad, k) * clip_factor(set, sum_squares);
  const float updated = at(master, k) - set.rate * m;
  put(momentum, k, m);
  put(master, k, updated);
  if (weight.data) put(weight, k, updated);
}

}  // namespace

void activation_forward(ActivationShape shape, Matrix x, Matrix bias, Matrix y,
                        cudaStream_t stream) {
  launch("activation_forward", activation_forward_kernel, blocks_for(shape.rows * shape.cols),
         stream, shape, x, bias, y);
}

void activation_backward(ActivationShape shape, Matrix dy, Matrix x, Matrix bias, Matrix dx,
                         cudaStream_t stream) {
  launch("activation_backward", activation_backward_kernel, blocks_for(shape.rows * shape.cols),
         stream, shape, dy, x, bias, dx);
}

void add(std::int64_t rows, std::int64_t cols, Matrix x, Matrix bias, Matrix other, float scale,
         Matrix y, cudaStream_t stream) {
  launch("add", add_kernel, blocks_for(rows * cols), stream, rows, cols, x, bias, other, scale, y);
}

void column_sums(std::int64_t rows, std::int64_t cols, Matrix x, bool accumulate, Matrix sums,
                 cudaStream_t stream) {
  launch("column_sums", column_sums_kernel, blocks_for(cols), stream, rows, cols, x, accumulate,
         sums);
}

void sum_of_squares(std::int64_t count, Matrix x, bool accumulate, Matrix sum, float* partial,
                    cudaStream_t stream) {
  const std::int64_t blocks = std::min(blocks_for(count), kPartialSums);
  launch("squares", squares_kernel, blocks, stream, count, x, partial);
  launch("sum_of_squares", total_kernel, 1, stream, blocks, partial, accumulate, sum);
}

void rope(RopeShape shape, Matrix x, Matrix y, cudaStream_t stream) {
  const std::int64_t each = shape.cols - shape.heads * (shape.size / 2);
  launch("rope", rope_kernel, blocks_for(shape.rows * each), stream, shape, x, y);
}

void adam(AdamSettings settings, std::int64_t count, Matrix grad, Matrix sum_squares, Matrix master,
          Matrix first, Matrix second, Matrix weight, cudaStream_t stream) {
  const float correction1 = 1.0f - powf(settings.beta1, static_cast<float>(settings.step));
  const float correction2 = 1.0f - powf(settings.beta2, static_cast<float>(settings.step));
  launch("adam", adam_kernel, blocks_for(count), stream, settings, correction1, correction2, count,
         grad, sum_squares, master, first, second, weight);
}

void sgd(AdamSettings settings, std::int64_t count, Matrix grad, Matrix sum_squares, Matrix master,
         Matrix momentum, Matrix weight, cudaStream_t stream) {
  launch("sgd", sgd_kernel, blocks_for(count), stream, settings, count, grad, sum_squares, master,
         momentum, weight);
}

}  // namespace gputwin::cuda
