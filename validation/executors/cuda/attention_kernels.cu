// Fused attention that keeps no scores: one block for a query of a head, keys in the order they lie
// with a running maximum (Dao et al. 2022, algorithm 1, with one query a tile). Made for correct
// sums; it reads K and V once for every query and is far from the speed of a tiled kernel.
#include "validation/executors/cuda/block.cuh"
#include "validation/executors/cuda/kernels.h"

namespace gputwin::cuda {

namespace {

constexpr int kMaxHead = 256;  // a thread for an element of a head

struct Place {
  std::int64_t sample, head, query, seen;
  __device__ explicit Place(const AttentionShape& shape)
      : sample(blockIdx.x / (shape.heads * shape.queries)),
        head(blockIdx.x / shape.queries % shape.heads),
        query(blockIdx.x % shape.queries),
        seen(shape.causal ? query + shape.keys - shape.queries + 1 : shape.keys) {
    if (seen > shape.keys) seen = shape.keys;
  }
  __device__ std::int64_t row_of(const AttentionShape& shape, const Matrix& m) const {
    return (sample * shape.queries + query) * m.ld + head * shape.size;
  }
  __device__ std::int64_t key_of(const AttentionShape& shape, const Matrix& m,
                                 std::int64_t key) const {
    return (sample * shape.keys + key) * m.ld + head / (shape.heads / shape.key_heads) * shape.size;
  }
};

__global__ void forward_kernel(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                               float* log_sums) {
  const Place place(shape);
  const std::int64_t x = threadIdx.x;
  const bool mine = x < shape.size;
  const float scale = rsqrtf(static_cast<float>(shape.size));
  const float query = mine ? q.data[place.row_of(shape, q) + x] * scale : 0.0f;
  float top = -INFINITY, sum = 0.0f, value = 0.0f;
  for (std::int64_t j = 0; j < place.seen; ++j) {
    const float score = block_sum(mine ? query * k.data[place.key_of(shape, k, j) + x] : 0.0f);
    const float higher = fmaxf(top, score), keep = expf(top - higher), part = expf(score - higher);
    sum = sum * keep + part;
    value = value * keep + (mine ? part * v.data[place.key_of(shape, v, j) + x] : 0.0f);
    top = higher;
  }
  if (mine) out.data[place.row_of(shape, out) + x] = place.seen > 0 ? value / sum : 0.0f;
  if (x == 0) log_sums[blockIdx.x] = top + logf(sum);
}

__global__ void backward_kernel(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                                const float* log_sums, Matrix dout, Matrix dq, Matrix dk,
                                Matrix dv) {
  const Place place(shape);
  const std::int64_t x = threadIdx.x;
  const bool mine = x < shape.size;
  const float scale = rsqrtf(static_cast<float>(shape.size));
  const float query = mine ? q.data[place.row_of(shape, q) + x] : 0.0f;
  const float grad = mine ? dout.data[place.row_of(shape, dout) + x] : 0.0f;
  const float dot = block_sum(mine ? grad * out.data[place.row_of(shape, out) + x] : 0.0f);
  float to_query = 0.0f;
  for (std::int64_t j = 0; j < place.seen; ++j) {
    const float key = mine ? k.data[place.key_of(shape, k, j) + x] : 0.0f;
    const float value = mine ? v.data[place.key_of(shape, v, j) + x] : 0.0f;
    const float prob = expf(block_sum(query * key) * scale - log_sums[blockIdx.x]);
    const float to_score = prob * (block_sum(grad * value) - dot) * scale;
    to_query += to_score * key;
    if (!mine) continue;
    atomicAdd(dk.data + place.key_of(shape, dk, j) + x, to_score * query);
    atomicAdd(dv.data + place.key_of(shape, dv, j) + x, prob * grad);
  }
  if (mine) dq.data[place.row_of(shape, dq) + x] = to_query;
}

unsigned blocks_of(const AttentionShape& shape) {
  if (shape.size > kMaxHead) failed("attention", "heads of more than 256 elements");
  return static_cast<unsigned>(shape.samples * shape.heads * shape.queries);
}

void clear(const AttentionShape& shape, Matrix m, cudaStream_t stream) {
  const std::size_t width = static_cast<std::size_t>(shape.key_heads * shape.size) * sizeof(float);
  GPUTWIN_CUDA(cudaMemset2DAsync(m.data, static_cast<std::size_t>(m.ld) * sizeof(float), 0, width,
                                 static_cast<std::size_t>(shape.samples * shape.keys), stream));
}

}  // namespace

void attention_forward(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                       float* log_sums, cudaStream_t stream) {
  forward_kernel<<<blocks_of(shape), kThreads, 0, stream>>>(shape, q, k, v, out, log_sums);
  check_launch("attention_forward");
}

void attention_backward(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                        const float* log_sums, Matrix dout, Matrix dq, Matrix dk, Matrix dv,
                        cudaStream_t stream) {
  clear(shape, dk, stream);
  clear(shape, dv, stream);
  backward_kernel<<<blocks_of(shape), kThreads, 0, stream>>>(shape, q, k, v, out, log_sums, dout,
                                                             dq, dk, dv);
  check_launch("attention_backward");
}

}  // namespace gputwin::cuda
