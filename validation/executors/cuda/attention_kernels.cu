// Fused attention that keeps no scores: one block for a query of a head, keys in the order they lie
// with a running maximum (Dao et al. 2022, algorithm 1, with one query a tile). Made for correct
// sums in a fixed order; it reads K and V once for every query, and backward Q and dO once for
// every key, and is far from the speed of a tiled kernel.
#include "validation/executors/cuda/block.cuh"

namespace gputwin::cuda {

namespace {

constexpr int kMaxHead = kThreads;  // a thread for an element of a head

__device__ std::int64_t row_of(const AttentionShape& shape, const Matrix& m, std::int64_t sample,
                               std::int64_t query, std::int64_t head) {
  return (sample * shape.queries + query) * m.ld + head * shape.size;
}
__device__ std::int64_t key_of(const AttentionShape& shape, const Matrix& m, std::int64_t sample,
                               std::int64_t key, std::int64_t key_head) {
  return (sample * shape.keys + key) * m.ld + key_head * shape.size;
}
/// Keys that a query sees: 0 .. this - 1.
__device__ std::int64_t seen_by(const AttentionShape& shape, std::int64_t query) {
  const std::int64_t seen = shape.causal ? query + shape.keys - shape.queries + 1 : shape.keys;
  return seen < shape.keys ? seen : shape.keys;
}

/// Block b of one for each query of each head of each sample.
struct Place {
  std::int64_t sample, head, query, key_head, seen;
  __device__ explicit Place(const AttentionShape& shape)
      : sample(blockIdx.x / (shape.heads * shape.queries)),
        head(blockIdx.x / shape.queries % shape.heads),
        query(blockIdx.x % shape.queries),
        key_head(head / (shape.heads / shape.key_heads)),
        seen(seen_by(shape, query)) {}
};

__global__ void forward_kernel(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                               Matrix log_sums) {
  const Place p(shape);
  const std::int64_t x = threadIdx.x;
  const bool mine = x < shape.size;
  const float scale = rsqrtf(static_cast<float>(shape.size));
  const float query = mine ? at(q, row_of(shape, q, p.sample, p.query, p.head) + x) * scale : 0.0f;
  float top = -INFINITY, sum = 0.0f, value = 0.0f;
  for (std::int64_t j = 0; j < p.seen; ++j) {
    const float key = mine ? at(k, key_of(shape, k, p.sample, j, p.key_head) + x) : 0.0f;
    const float score = block_sum(query * key);
    const float higher = fmaxf(top, score), keep = expf(top - higher), part = expf(score - higher);
    sum = sum * keep + part;
    value =
        value * keep + (mine ? part * at(v, key_of(shape, v, p.sample, j, p.key_head) + x) : 0.0f);
    top = higher;
  }
  const std::int64_t to = row_of(shape, out, p.sample, p.query, p.head) + x;
  if (mine) put(out, to, p.seen > 0 ? value / sum : 0.0f);
  if (x == 0) put(log_sums, blockIdx.x, top + logf(sum));
}

__global__ void query_kernel(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                             Matrix log_sums, Matrix dout, Matrix dq) {
  const Place p(shape);
  const std::int64_t x = threadIdx.x;
  const bool mine = x < shape.size;
  const auto row = [&](const Matrix& m) {
    return mine ? at(m, row_of(shape, m, p.sample, p.query, p.head) + x) : 0.0f;
  };
  const float scale = rsqrtf(static_cast<float>(shape.size));
  const float query = row(q), grad = row(dout), dot = block_sum(grad * row(out));
  const float log_sum = at(log_sums, blockIdx.x);
  float to_query = 0.0f;
  for (std::int64_t j = 0; j < p.seen; ++j) {
    const float key = mine ? at(k, key_of(shape, k, p.sample, j, p.key_head) + x) : 0.0f;
    const float value = mine ? at(v, key_of(shape, v, p.sample, j, p.key_head) + x) : 0.0f;
    const float prob = expf(block_sum(query * key) * scale - log_sum);
    to_query += prob * (block_sum(grad * value) - dot) * scale * key;
  }
  if (mine) put(dq, row_of(shape, dq, p.sample, p.query, p.head) + x, to_query);
}

/// Block b of one for each key of each key head of each sample.
__global__ void key_kernel(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                           Matrix log_sums, Matrix dout, Matrix dk, Matrix dv) {
  const std::int64_t sample = blockIdx.x / (shape.key_heads * shape.keys);
  const std::int64_t key_head = blockIdx.x / shape.keys % shape.key_heads;
  const std::int64_t j = blockIdx.x % shape.keys, x = threadIdx.x;
  const std::int64_t group = shape.heads / shape.key_heads;
  const bool mine = x < shape.size;
  const float scale = rsqrtf(static_cast<float>(shape.size));
  const float key = mine ? at(k, key_of(shape, k, sample, j, key_head) + x) : 0.0f;
  const float value = mine ? at(v, key_of(shape, v, sample, j, key_head) + x) : 0.0f;
  float to_key = 0.0f, to_value = 0.0f;
  for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
    for (std::int64_t i = 0; i < shape.queries; ++i) {
      if (j >= seen_by(shape, i)) continue;  // the same for all threads
      const auto row = [&](const Matrix& m) {
        return mine ? at(m, row_of(shape, m, sample, i, head) + x) : 0.0f;
      };
      const float query = row(q), grad = row(dout), dot = block_sum(grad * row(out));
      const float log_sum = at(log_sums, (sample * shape.heads + head) * shape.queries + i);
      const float prob = expf(block_sum(query * key) * scale - log_sum);
      to_value += prob * grad;
      to_key += prob * (block_sum(grad * value) - dot) * scale * query;
    }
  }
  if (!mine) return;
  put(dk, key_of(shape, dk, sample, j, key_head) + x, to_key);
  put(dv, key_of(shape, dv, sample, j, key_head) + x, to_value);
}

void check_head(const AttentionShape& shape) {
  if (shape.size > kMaxHead) failed("attention", "heads of more than 256 elements");
}

}  // namespace

void attention_forward(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                       Matrix log_sums, cudaStream_t stream) {
  check_head(shape);
  launch("attention_forward", forward_kernel, shape.samples * shape.heads * shape.queries, stream,
         shape, q, k, v, out, log_sums);
}

void attention_backward(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                        Matrix log_sums, Matrix dout, Matrix dq, Matrix dk, Matrix dv,
                        cudaStream_t stream) {
  check_head(shape);
  launch("attention_queries", query_kernel, shape.samples * shape.heads * shape.queries, stream,
         shape, q, k, v, out, log_sums, dout, dq);
  launch("attention_keys", key_kernel, shape.samples * shape.key_heads * shape.keys, stream, shape,
         q, k, v, out, log_sums, dout, dk, dv);
}

}  // namespace gputwin::cuda
