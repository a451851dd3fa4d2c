// The ends of a model: embedding, learned positions, and the loss over a sharded vocabulary.
#include "validation/executors/cuda/block.cuh"

namespace gputwin::cuda {

namespace {

__global__ void embedding_forward_kernel(EmbeddingShape shape, const std::int64_t* tokens,
                                         Matrix table, Matrix y) {
  const std::int64_t k = this_index();
  if (k >= shape.rows * shape.cols) return;
  const std::int64_t r = k / shape.cols, c = k % shape.cols, row = tokens[r] - shape.first;
  const bool here = row >= 0 && row < shape.table_rows;
  put(y, r, c, here ? at(table, row, c) : 0.0f);
}

__global__ void embedding_backward_kernel(EmbeddingShape shape, const std::int64_t* tokens,
                                          Matrix dy, Matrix dtable) {
  const std::int64_t k = this_index();
  if (k >= shape.rows * shape.cols) return;
  const std::int64_t r = k / shape.cols, c = k % shape.cols, row = tokens[r] - shape.first;
  if (row < 0 || row >= shape.table_rows) return;
  atomicAdd(static_cast<float*>(dtable.data) + row * dtable.ld + c, at(dy, r, c));
}

__global__ void position_add_kernel(PositionShape shape, Matrix x, Matrix table, Matrix y) {
  const std::int64_t k = this_index();
  if (k >= shape.rows * shape.cols) return;
  const std::int64_t r = k / shape.cols, c = k % shape.cols;
  put(y, r, c, at(x, r, c) + at(table, (shape.first + r) % shape.table_rows, c));
}

/// A thread for an element of the table adds the rows that stand at its position, in their order.
__global__ void position_grad_kernel(PositionShape shape, Matrix dy, Matrix dtable) {
  const std::int64_t k = this_index(), positions = shape.table_rows;
  if (k >= positions * shape.cols) return;
  const std::int64_t row = k / shape.cols, c = k % shape.cols;
  float sum = shape.accumulate ? at(dtable, row, c) : 0.0f;
  const std::int64_t first = (row + positions - shape.first % positions) % positions;
  for (std::int64_t r = first; r < shape.rows; r += positions) sum += at(dy, r, c);
  put(dtable, row, c, sum);
}

__global__ void logits_max_kernel(LogitsShape shape, Matrix logits, Matrix top) {
  const std::int64_t row = blockIdx.x;
  float part = -INFINITY;
  for (std::int64_t c = threadIdx.x; c < shape.cols; c += kThreads) {
    part = fmaxf(part, at(logits, row, c));
  }
  part = block_max(part);
  if (threadIdx.x == 0) put(top, row, part);
}

__global__ void logits_sum_kernel(LogitsShape shape, Matrix logits, Matrix top,
                                  const std::int64_t* targets, Matrix sums) {
  const std::int64_t row = blockIdx.x;
  const float highest = at(top, row);
  float part = 0.0f;
  for (std::int64_t c = threadIdx.x; c < shape.cols; c += kThreads) {
    part += expf(at(logits, row, c) - highest);
  }
  part = block_sum(part);
  if (threadIdx.x != 0) return;
  const std::int64_t target = targets[row] - shape.first;
  put(sums, row, 0, part);
  put(sums, row, 1, target >= 0 && target < shape.cols ? at(logits, row, target) : 0.0f);
}

__global__ void loss_kernel(LogitsShape shape, Matrix top, Matrix sums, Matrix loss) {
  float part = 0.0f;
  for (std::int64_t r = threadIdx.x; r < shape.rows; r += kThreads) {
    part += at(top, r) + logf(at(sums, r, 0)) - at(sums, r, 1);
  }
  part = block_sum(part) * shape.scale;
  if (threadIdx.x == 0) put(loss, 0, part + (shape.accumulate ? at(loss, 0) : 0.0f));
}

__global__ void cross_entropy_kernel(LogitsShape shape, Matrix logits, Matrix top, Matrix sums,
                                     const std::int64_t* targets, Matrix dlogits) {
  const std::int64_t k = this_index();
  if (k >= shape.rows * shape.cols) return;
  const std::int64_t r = k / shape.cols, c = k % shape.cols;
  const float prob = expf(at(logits, r, c) - at(top, r)) / at(sums, r, 0);
  const float hit = c == targets[r] - shape.first ? 1.0f : 0.0f;
  put(dlogits, r, c, (prob - hit) * shape.scale);
}

}  // namespace

void embedding_forward(EmbeddingShape shape, const std::int64_t* tokens, Matrix table, Matrix y,
                       cudaStream_t stream) {
  launch("embedding_forward", embedding_forward_kernel, blocks_for(shape.rows * shape.cols), stream,
         shape, tokens, table, y);
}

void embedding_backward(EmbeddingShape shape, const std::int64_t* tokens, Matrix dy, Matrix dtable,
                        cudaStream_t stream) {
  if (dtable.format != Element::Fp32) failed("embedding_backward", "gradients are not in 32 bits");
  if (!shape.accumulate) {
    GPUTWIN_CUDA(cudaMemset2DAsync(dtable.data, static_cast<std::size_t>(dtable.ld) * sizeof(float),
                                   0, static_cast<std::size_t>(shape.cols) * sizeof(float),
                                   static_cast<std::size_t>(shape.table_rows), stream));
  }
  launch("embedding_backward", embedding_backward_kernel, blocks_for(shape.rows * shape.cols),
         stream, shape, tokens, dy, dtable);
}

void position_add(PositionShape shape, Matrix x, Matrix table, Matrix y, cudaStream_t stream) {
  launch("position_add", position_add_kernel, blocks_for(shape.rows * shape.cols), stream, shape, x,
         table, y);
}

void position_grad(PositionShape shape, Matrix dy, Matrix dtable, cudaStream_t stream) {
  launch("position_grad", position_grad_kernel, blocks_for(shape.table_rows * shape.cols), stream,
         shape, dy, dtable);
}

void logits_max(LogitsShape shape, Matrix logits, Matrix top, cudaStream_t stream) {
  launch("logits_max", logits_max_kernel, shape.rows, stream, shape, logits, top);
}

void logits_sum(LogitsShape shape, Matrix logits, Matrix top, const std::int64_t* targets,
                Matrix sums, cudaStream_t stream) {
  launch("logits_sum", logits_sum_kernel, shape.rows, stream, shape, logits, top, targets, sums);
}

void loss_from_sums(LogitsShape shape, Matrix top, Matrix sums, Matrix loss, cudaStream_t stream) {
  launch("loss_from_sums", loss_kernel, 1, stream, shape, top, sums, loss);
}

void cross_entropy_backward(LogitsShape shape, Matrix logits, Matrix top, Matrix sums,
                            const std::int64_t* targets, Matrix dlogits, cudaStream_t stream) {
  launch("cross_entropy_backward", cross_entropy_kernel, blocks_for(shape.rows * shape.cols),
         stream, shape, logits, top, sums, targets, dlogits);
}

}  // namespace gputwin::cuda
