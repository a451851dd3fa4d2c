// Fused attention that keeps no scores: one warp for a query of a head, keys in the order they lie
// with a running maximum (Dao et al. 2022, algorithm 1, with one query a tile); backward one warp
// for a query, then one for a key. Sums are in a fixed order. Every warp reads its keys, or
// queries, from the caches: far from the speed of a tiled kernel on tensor cores.
#include "validation/executors/cuda/block.cuh"

namespace gputwin::cuda {

namespace {

constexpr int kMaxHead = 256;
constexpr int kParts = kMaxHead / kWarp;  // elements of a head that a lane may hold
constexpr int kRows = kThreads / kWarp;   // queries or keys of a block

__device__ float warp_sum(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, step);
  }
  return value;
}

/// A lane's elements of one head's row: lane, lane + 32, … Zero behind the head's size.
struct Slice {
  float part[kParts];

  __device__ static Slice zero() {
    Slice s;
    for (int e = 0; e < kParts; ++e) s.part[e] = 0.0f;
    return s;
  }
  __device__ static Slice load(const Matrix& m, std::int64_t first, std::int64_t size) {
    Slice s;
    for (int e = 0; e < kParts; ++e) {
      const std::int64_t x = threadIdx.x % kWarp + e * kWarp;
      s.part[e] = x < size ? at(m, first + x) : 0.0f;
    }
    return s;
  }
  __device__ void store(const Matrix& m, std::int64_t first, std::int64_t size) const {
    for (int e = 0; e < kParts; ++e) {
      const std::int64_t x = threadIdx.x % kWarp + e * kWarp;
      if (x < size) put(m, first + x, part[e]);
    }
  }
  __device__ float dot(const Slice& other) const {
    float sum = 0.0f;
    for (int e = 0; e < kParts; ++e) sum += part[e] * other.part[e];
    return warp_sum(sum);
  }
  __device__ void scale_and_add(float scale, float factor, const Slice& other) {
    for (int e = 0; e < kParts; ++e) part[e] = part[e] * scale + factor * other.part[e];
  }
};

/// Row (query or key) `row` of `rows` of head `head` of a sample; the warp's place in the launch.
struct Place {
  std::int64_t number, sample, head, row;
  bool there;
  __device__ Place(const AttentionShape& shape, std::int64_t heads, std::int64_t rows)
      : number(static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.x / kWarp),
        sample(number / (heads * rows)),
        head(number / rows % heads),
        row(number % rows),
        there(sample < shape.samples) {}
};

__device__ std::int64_t place_of(const Matrix& m, std::int64_t row, std::int64_t head,
                                 const AttentionShape& shape) {
  return row * m.ld + head * shape.size;
}
/// Keys that a query sees: 0 .. this - 1.
__device__ std::int64_t seen_by(const AttentionShape& shape, std::int64_t query) {
  const std::int64_t seen = shape.causal ? query + shape.keys - shape.queries + 1 : shape.keys;
  return seen < shape.keys ? seen : shape.keys;
}

__global__ void forward_kernel(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                               Matrix log_sums) {
  const Place p(shape, shape.heads, shape.queries);
  if (!p.there) return;
  const std::int64_t key_head = p.head / (shape.heads / shape.key_heads);
  const std::int64_t row = p.sample * shape.queries + p.row, seen = seen_by(shape, p.row);
  const Slice query = Slice::load(q, place_of(q, row, p.head, shape), shape.size);
  const float scale = rsqrtf(static_cast<float>(shape.size));
  Slice value = Slice::zero();
  float top = -INFINITY, sum = 0.0f;
  for (std::int64_t j = 0; j < seen; ++j) {
    const std::int64_t at_key = p.sample * shape.keys + j;
    const Slice key = Slice::load(k, place_of(k, at_key, key_head, shape), shape.size);
    const float score = query.dot(key) * scale, higher = fmaxf(top, score);
    const float keep = expf(top - higher), part = expf(score - higher);
    sum = sum * keep + part;
    value.scale_and_add(keep, part,
                        Slice::load(v, place_of(v, at_key, key_head, shape), shape.size));
    top = higher;
  }
  if (seen > 0) value.scale_and_add(1.0f / sum, 0.0f, value);
  value.store(out, place_of(out, row, p.head, shape), shape.size);
  if (threadIdx.x % kWarp == 0) put(log_sums, p.number, top + logf(sum));
}

__global__ void query_kernel(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                             Matrix log_sums, Matrix dout, Matrix dq) {
  const Place p(shape, shape.heads, shape.queries);
  if (!p.there) return;
  const std::int64_t key_head = p.head / (shape.heads / shape.key_heads);
  const std::int64_t row = p.sample * shape.queries + p.row, seen = seen_by(shape, p.row);
  const Slice query = Slice::load(q, place_of(q, row, p.head, shape), shape.size);
  const Slice grad = Slice::load(dout, place_of(dout, row, p.head, shape), shape.size);
  const float dot = grad.dot(Slice::load(out, place_of(out, row, p.head, shape), shape.size));
  const float scale = rsqrtf(static_cast<float>(shape.size)), log_sum = at(log_sums, p.number);
  Slice to_query = Slice::zero();
  for (std::int64_t j = 0; j < seen; ++j) {
    const std::int64_t at_key = p.sample * shape.keys + j;
    const Slice key = Slice::load(k, place_of(k, at_key, key_head, shape), shape.size);
    const Slice value = Slice::load(v, place_of(v, at_key, key_head, shape), shape.size);
    const float prob = expf(query.dot(key) * scale - log_sum);
    to_query.scale_and_add(1.0f, prob * (grad.dot(value) - dot) * scale, key);
  }
  to_query.store(dq, place_of(dq, row, p.head, shape), shape.size);
}

/// Adds up what the queries of one head give to a key.
__device__ void add_queries(const AttentionShape& shape, const Place& p, std::int64_t head,
                            Matrix q, Matrix out, Matrix log_sums, Matrix dout, const Slice& key,
                            const Slice& value, Slice& to_key, Slice& to_value) {
  const float scale = rsqrtf(static_cast<float>(shape.size));
  for (std::int64_t i = 0; i < shape.queries; ++i) {
    if (p.row >= seen_by(shape, i)) continue;  // the same for the whole warp
    const std::int64_t row = p.sample * shape.queries + i;
    const Slice query = Slice::load(q, place_of(q, row, head, shape), shape.size);
    const Slice grad = Slice::load(dout, place_of(dout, row, head, shape), shape.size);
    const float dot = grad.dot(Slice::load(out, place_of(out, row, head, shape), shape.size));
    const float log_sum = at(log_sums, (p.sample * shape.heads + head) * shape.queries + i);
    const float prob = expf(query.dot(key) * scale - log_sum);
    to_value.scale_and_add(1.0f, prob, grad);
    to_key.scale_and_add(1.0f, prob * (grad.dot(value) - dot) * scale, query);
  }
}

__global__ void key_kernel(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                           Matrix log_sums, Matrix dout, Matrix dk, Matrix dv) {
  const Place p(shape, shape.key_heads, shape.keys);
  if (!p.there) return;
  const std::int64_t row = p.sample * shape.keys + p.row, group = shape.heads / shape.key_heads;
  const Slice key = Slice::load(k, place_of(k, row, p.head, shape), shape.size);
  const Slice value = Slice::load(v, place_of(v, row, p.head, shape), shape.size);
  Slice to_key = Slice::zero(), to_value = Slice::zero();
  for (std::int64_t head = p.head * group; head < (p.head + 1) * group; ++head) {
    add_queries(shape, p, head, q, out, log_sums, dout, key, value, to_key, to_value);
  }
  to_key.store(dk, place_of(dk, row, p.head, shape), shape.size);
  to_value.store(dv, place_of(dv, row, p.head, shape), shape.size);
}

std::int64_t blocks_of(const AttentionShape& shape, std::int64_t rows) {
  if (shape.size > kMaxHead) failed("attention", "heads of more than 256 elements");
  return (shape.samples * rows + kRows - 1) / kRows;
}

}  // namespace

void attention_forward(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                       Matrix log_sums, cudaStream_t stream) {
  launch("attention_forward", forward_kernel, blocks_of(shape, shape.heads * shape.queries), stream,
         shape, q, k, v, out, log_sums);
}

void attention_backward(AttentionShape shape, Matrix q, Matrix k, Matrix v, Matrix out,
                        Matrix log_sums, Matrix dout, Matrix dq, Matrix dk, Matrix dv,
                        cudaStream_t stream) {
  launch("attention_queries", query_kernel, blocks_of(shape, shape.heads * shape.queries), stream,
         shape, q, k, v, out, log_sums, dout, dq);
  launch("attention_keys", key_kernel, blocks_of(shape, shape.key_heads * shape.keys), stream,
         shape, q, k, v, out, log_sums, dout, dk, dv);
}

}  // namespace gputwin::cuda
