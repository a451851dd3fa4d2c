// Activations, sums, embedding, loss and Adam.
#include "validation/executors/cuda/block.cuh"
#include "validation/executors/cuda/kernels.h"

namespace gputwin::cuda {

namespace {

__device__ std::int64_t this_index() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

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

__global__ void activation_forward_kernel(ActivationShape shape, Matrix x, const float* bias,
                                          Matrix y) {
  const std::int64_t k = this_index();
  if (k >= shape.rows * shape.cols) return;
  const std::int64_t r = k / shape.cols, c = k % shape.cols;
  const float gate = x.data[r * x.ld + c] + (bias ? bias[c] : 0.0f);
  const std::int64_t other = shape.cols + c;
  const float up = shape.gated ? x.data[r * x.ld + other] + (bias ? bias[other] : 0.0f) : 1.0f;
  y.data[r * y.ld + c] = curve_at(shape.curve, gate) * up;
}

__global__ void activation_backward_kernel(ActivationShape shape, Matrix dy, Matrix x,
                                           const float* bias, Matrix dx) {
  const std::int64_t k = this_index();
  if (k >= shape.rows * shape.cols) return;
  const std::int64_t r = k / shape.cols, c = k % shape.cols, other = shape.cols + c;
  const float grad = dy.data[r * dy.ld + c];
  const float gate = x.data[r * x.ld + c] + (bias ? bias[c] : 0.0f);
  const float up = shape.gated ? x.data[r * x.ld + other] + (bias ? bias[other] : 0.0f) : 1.0f;
  dx.data[r * dx.ld + c] = grad * up * slope_at(shape.curve, gate);
  if (shape.gated) dx.data[r * dx.ld + other] = grad * curve_at(shape.curve, gate);
}

__global__ void add_kernel(std::int64_t rows, std::int64_t cols, Matrix x, const float* bias,
                           Matrix other, float scale, Matrix y) {
  const std::int64_t k = this_index();
  if (k >= rows * cols) return;
  const std::int64_t r = k / cols, c = k % cols;
  y.data[r * y.ld + c] = scale * x.data[r * x.ld + c] + (bias ? bias[c] : 0.0f) +
                         (other.data ? other.data[r * other.ld + c] : 0.0f);
}

__global__ void column_sums_kernel(std::int64_t rows, std::int64_t cols, Matrix x, bool accumulate,
                                   float* sums) {
  const std::int64_t c = this_index();
  if (c >= cols) return;
  float sum = 0.0f;
  for (std::int64_t r = 0; r < rows; ++r) sum += x.data[r * x.ld + c];
  sums[c] = sum + (accumulate ? sums[c] : 0.0f);
}

__global__ void sum_of_squares_kernel(std::int64_t count, const float* x, bool accumulate,
                                      float* sum) {
  float part = 0.0f;
  for (std::int64_t k = threadIdx.x; k < count; k += kThreads) part += x[k] * x[k];
  part = block_sum(part);
  if (threadIdx.x == 0) *sum = part + (accumulate ? *sum : 0.0f);
}

__global__ void embedding_forward_kernel(std::int64_t rows, std::int64_t cols, std::int64_t first,
                                         std::int64_t table_rows, const std::int32_t* tokens,
                                         const float* table, Matrix y) {
  const std::int64_t k = this_index();
  if (k >= rows * cols) return;
  const std::int64_t row = tokens[k / cols] - first;
  const bool here = row >= 0 && row < table_rows;
  y.data[k / cols * y.ld + k % cols] = here ? table[row * cols + k % cols] : 0.0f;
}

__global__ void embedding_backward_kernel(std::int64_t rows, std::int64_t cols, std::int64_t first,
                                          std::int64_t table_rows, const std::int32_t* tokens,
                                          Matrix dy, float* dtable) {
  const std::int64_t k = this_index();
  if (k >= rows * cols) return;
  const std::int64_t row = tokens[k / cols] - first;
  if (row < 0 || row >= table_rows) return;
  atomicAdd(dtable + row * cols + k % cols, dy.data[k / cols * dy.ld + k % cols]);
}

__global__ void logits_max_kernel(LogitsShape shape, Matrix logits, float* top) {
  const std::int64_t row = blockIdx.x;
  float part = -INFINITY;
  for (std::int64_t c = threadIdx.x; c < shape.cols; c += kThreads) {
    part = fmaxf(part, logits.data[row * logits.ld + c]);
  }
  part = block_max(part);
  if (threadIdx.x == 0) top[row] = part;
}

__global__ void logits_sum_kernel(LogitsShape shape, Matrix logits, const float* top,
                                  const std::int32_t* targets, float* sums) {
  const std::int64_t row = blockIdx.x;
  float part = 0.0f;
  for (std::int64_t c = threadIdx.x; c < shape.cols; c += kThreads) {
    part += expf(logits.data[row * logits.ld + c] - top[row]);
  }
  part = block_sum(part);
  if (threadIdx.x != 0) return;
  const std::int64_t target = targets[row] - shape.first;
  sums[2 * row] = part;
  sums[2 * row + 1] =
      target >= 0 && target < shape.cols ? logits.data[row * logits.ld + target] : 0.0f;
}

__global__ void loss_kernel(LogitsShape shape, const float* top, const float* sums, float* loss) {
  float part = 0.0f;
  for (std::int64_t r = threadIdx.x; r < shape.rows; r += kThreads) {
    part += top[r] + logf(sums[2 * r]) - sums[2 * r + 1];
  }
  part = block_sum(part) * shape.scale;
  if (threadIdx.x == 0) *loss = part + (shape.accumulate ? *loss : 0.0f);
}

__global__ void cross_entropy_kernel(LogitsShape shape, Matrix logits, const float* top,
                                     const float* sums, const std::int32_t* targets,
                                     Matrix dlogits) {
  const std::int64_t k = this_index();
  if (k >= shape.rows * shape.cols) return;
  const std::int64_t r = k / shape.cols, c = k % shape.cols;
  const float prob = expf(logits.data[r * logits.ld + c] - top[r]) / sums[2 * r];
  const float hit = c == targets[r] - shape.first ? 1.0f : 0.0f;
  dlogits.data[r * dlogits.ld + c] = (prob - hit) * shape.scale;
}

/// `correction1`, `correction2`: 1 - beta^step.
__global__ void adam_kernel(AdamSettings set, float correction1, float correction2,
                            std::int64_t count, const float* grad, const float* sum_squares,
                            float* master, float* first, float* second, float* weight) {
  const std::int64_t k = this_index();
  if (k >= count) return;
  const float norm = sum_squares ? sqrtf(*sum_squares) : 0.0f;
  const float g = grad[k] * (norm > set.clip_norm ? set.clip_norm / norm : 1.0f);
  const float m = set.beta1 * first[k] + (1.0f - set.beta1) * g;
  const float v = set.beta2 * second[k] + (1.0f - set.beta2) * g * g;
  const float updated =
      master[k] - set.rate * (m / correction1) / (sqrtf(v / correction2) + set.epsilon);
  first[k] = m;
  second[k] = v;
  master[k] = updated;
  weight[k] = updated;
}

}  // namespace

void activation_forward(ActivationShape shape, Matrix x, const float* bias, Matrix y,
                        cudaStream_t stream) {
  activation_forward_kernel<<<blocks_for(shape.rows * shape.cols), kThreads, 0, stream>>>(shape, x,
                                                                                          bias, y);
  check_launch("activation_forward");
}

void activation_backward(ActivationShape shape, Matrix dy, Matrix x, const float* bias, Matrix dx,
                         cudaStream_t stream) {
  activation_backward_kernel<<<blocks_for(shape.rows * shape.cols), kThreads, 0, stream>>>(
      shape, dy, x, bias, dx);
  check_launch("activation_backward");
}

void add(std::int64_t rows, std::int64_t cols, Matrix x, const float* bias, Matrix other,
         float scale, Matrix y, cudaStream_t stream) {
  add_kernel<<<blocks_for(rows * cols), kThreads, 0, stream>>>(rows, cols, x, bias, other, scale,
                                                               y);
  check_launch("add");
}

void column_sums(std::int64_t rows, std::int64_t cols, Matrix x, bool accumulate, float* sums,
                 cudaStream_t stream) {
  column_sums_kernel<<<blocks_for(cols), kThreads, 0, stream>>>(rows, cols, x, accumulate, sums);
  check_launch("column_sums");
}

void zero(std::int64_t count, float* x, cudaStream_t stream) {
  GPUTWIN_CUDA(cudaMemsetAsync(x, 0, static_cast<std::size_t>(count) * sizeof(float), stream));
}

void sum_of_squares(std::int64_t count, const float* x, bool accumulate, float* sum,
                    cudaStream_t stream) {
  sum_of_squares_kernel<<<1, kThreads, 0, stream>>>(count, x, accumulate, sum);
  check_launch("sum_of_squares");
}

void embedding_forward(std::int64_t rows, std::int64_t cols, std::int64_t first,
                       std::int64_t table_rows, const std::int32_t* tokens, const float* table,
                       Matrix y, cudaStream_t stream) {
  embedding_forward_kernel<<<blocks_for(rows * cols), kThreads, 0, stream>>>(
      rows, cols, first, table_rows, tokens, table, y);
  check_launch("embedding_forward");
}

void embedding_backward(std::int64_t rows, std::int64_t cols, std::int64_t first,
                        std::int64_t table_rows, const std::int32_t* tokens, Matrix dy,
                        float* dtable, cudaStream_t stream) {
  embedding_backward_kernel<<<blocks_for(rows * cols), kThreads, 0, stream>>>(
      rows, cols, first, table_rows, tokens, dy, dtable);
  check_launch("embedding_backward");
}

void logits_max(LogitsShape shape, Matrix logits, float* top, cudaStream_t stream) {
  logits_max_kernel<<<static_cast<unsigned>(shape.rows), kThreads, 0, stream>>>(shape, logits, top);
  check_launch("logits_max");
}

void logits_sum(LogitsShape shape, Matrix logits, const float* top, const std::int32_t* targets,
                float* sums, cudaStream_t stream) {
  logits_sum_kernel<<<static_cast<unsigned>(shape.rows), kThreads, 0, stream>>>(shape, logits, top,
                                                                                targets, sums);
  check_launch("logits_sum");
}

void loss_from_sums(LogitsShape shape, const float* top, const float* sums, float* loss,
                    cudaStream_t stream) {
  loss_kernel<<<1, kThreads, 0, stream>>>(shape, top, sums, loss);
  check_launch("loss_from_sums");
}

void cross_entropy_backward(LogitsShape shape, Matrix logits, const float* top, const float* sums,
                            const std::int32_t* targets, Matrix dlogits, cudaStream_t stream) {
  cross_entropy_kernel<<<blocks_for(shape.rows * shape.cols), kThreads, 0, stream>>>(
      shape, logits, top, sums, targets, dlogits);
  check_launch("cross_entropy_backward");
}

void adam(AdamSettings settings, std::int64_t count, const float* grad, const float* sum_squares,
          float* master, float* first, float* second, float* weight, cudaStream_t stream) {
  const float correction1 = 1.0f - powf(settings.beta1, static_cast<float>(settings.step));
  const float correction2 = 1.0f - powf(settings.beta2, static_cast<float>(settings.step));
  adam_kernel<<<blocks_for(count), kThreads, 0, stream>>>(
      settings, correction1, correction2, count, grad, sum_squares, master, first, second, weight);
  check_launch("adam");
}

}  // namespace gputwin::cuda
