// What stands between the products: which kernel of kernels.h an op is, on which operands.
#include "validation/executors/cuda/operands.h"

namespace gputwin::executors {

namespace {

using cuda::Matrix;

cudaStream_t stream_of(const Lane& lane) { return lane.stream.get(); }

/// The operand if the call has it.
Matrix optional_read(const KernelWork& work, std::size_t index, std::int64_t rows,
                     std::int64_t cols) {
  return work.reads.size() > index ? read(work, index, rows, cols) : Matrix{};
}
Matrix optional_result(const KernelWork& work, std::size_t index, std::int64_t rows,
                       std::int64_t cols) {
  return work.writes.size() > index ? result(work, index, rows, cols) : Matrix{};
}

PreparedKernel norm(const KernelWork& work) {
  const Op& op = work.op;
  const std::int64_t t = op.dims[0], h = op.dims[1];
  const cuda::NormShape shape{t, h, op.norm == Norm::LayerNorm, op.accumulate};
  if (op.kind == OpKind::NormForward) {
    const Matrix x = read(work, 0, t, h), gamma = read(work, 1, 1, h);
    const Matrix beta = optional_read(work, 2, 1, h);
    const Matrix y = result(work, 0, t, h), stats = result(work, 1, t, 2);
    return {.enqueue = [=](const Lane& lane) {
      cuda::norm_forward(shape, x, gamma, beta, y, stats, stream_of(lane));
    }};
  }
  const Matrix dy = read(work, 0, t, h), x = read(work, 1, t, h), gamma = read(work, 2, 1, h);
  const Matrix stats = read(work, 3, t, 2), add = optional_read(work, 4, t, h);
  const Matrix dx = result(work, 0, t, h), dgamma = optional_result(work, 1, 1, h);
  const Matrix dbeta = optional_result(work, 2, 1, h);
  return {.enqueue = [=](const Lane& lane) {
    cuda::norm_backward(shape, dy, x, gamma, stats, add, dx, dgamma, dbeta, stream_of(lane));
  }};
}

PreparedKernel softmax(const KernelWork& work) {
  const Op& op = work.op;
  const std::int64_t s = op.dims[2], u = op.dims[3], rows = op.dims[0] * op.dims[1] * s;
  const cuda::SoftmaxShape shape{rows, s, u, op.causal};
  const Matrix x = read(work, 0, rows, u), y = result(work, 0, rows, u);
  if (op.kind == OpKind::SoftmaxForward) {
    return {
        .enqueue = [=](const Lane& lane) { cuda::softmax_forward(shape, x, y, stream_of(lane)); }};
  }
  const Matrix grad = read(work, 1, rows, u);
  return {.enqueue = [=](const Lane& lane) {
    cuda::softmax_backward(shape, x, grad, y, stream_of(lane));
  }};
}

PreparedKernel flash(const KernelWork& work) {
  const Op& op = work.op;
  const auto [b, a, g, s, u, d] = op.dims;
  need(!op.alibi && op.window == 0 && op.value_size == 0,
       "the fused attention here has no ALiBi, no window and one head size");
  need(g > 0 && a % g == 0, "query heads are not a multiple of key heads");
  need(d <= 256, "the fused attention here takes heads of at most 256 elements");
  const cuda::AttentionShape shape{b, a, g, s, u, d, op.causal};
  const Matrix q = read(work, 0, b * s, a * d), k = read(work, 1, b * u, g * d);
  const Matrix v = read(work, 2, b * u, g * d);
  if (op.kind == OpKind::FlashForward) {
    const Matrix out = result(work, 0, b * s, a * d), sums = result(work, 1, 1, b * a * s);
    return {.enqueue = [=](const Lane& lane) {
      cuda::attention_forward(shape, q, k, v, out, sums, stream_of(lane));
    }};
  }
  const Matrix out = read(work, 3, b * s, a * d), sums = read(work, 4, 1, b * a * s);
  const Matrix grad = read(work, 5, b * s, a * d), dq = result(work, 0, b * s, a * d);
  const Matrix dk = result(work, 1, b * u, g * d), dv = result(work, 2, b * u, g * d);
  return {.enqueue = [=](const Lane& lane) {
    cuda::attention_backward(shape, q, k, v, out, sums, grad, dq, dk, dv, stream_of(lane));
  }};
}

cuda::Curve curve_of(Activation activation) {
  switch (activation) {
    case Activation::Gelu:
    case Activation::Geglu: return cuda::Curve::Gelu;
    case Activation::Relu: return cuda::Curve::Relu;
    case Activation::SqRelu: return cuda::Curve::SquaredRelu;
    case Activation::Swiglu: return cuda::Curve::Silu;
  }
  throw Fault("unknown activation");
}

PreparedKernel activation(const KernelWork& work) {
  const Op& op = work.op;
  need(!op.weighted, "no kernel here weighs the rows of an activation");
  const bool gated = is_gated(op.activation);
  const std::int64_t t = op.dims[0], f = op.dims[1], width = gated ? 2 * f : f;
  const cuda::ActivationShape shape{t, f, curve_of(op.activation), gated};
  if (op.kind == OpKind::ActivationForward) {
    const Matrix x = read(work, 0, t, width), bias = optional_read(work, 1, 1, width);
    const Matrix y = result(work, 0, t, f);
    return {.enqueue = [=](const Lane& lane) {
      cuda::activation_forward(shape, x, bias, y, stream_of(lane));
    }};
  }
  const Matrix dy = read(work, 0, t, f), x = read(work, 1, t, width);
  const Matrix bias = optional_read(work, 2, 1, width), dx = result(work, 0, t, width);
  const Matrix dbias = optional_result(work, 1, 1, width);
  return {.enqueue = [=, sums = work.writes.size() > 1, adds = op.accumulate](const Lane& lane) {
    cuda::activation_backward(shape, dy, x, bias, dx, stream_of(lane));
    if (sums) cuda::column_sums(t, width, dx, adds, dbias, stream_of(lane));
  }};
}

PreparedKernel rows_and_columns(const KernelWork& work) {
  const Op& op = work.op;
  const std::int64_t t = op.dims[0], h = op.dims[1];
  const Matrix x = read(work, 0, t, h);
  if (op.kind == OpKind::BiasGrad) {
    const Matrix sums = result(work, 0, 1, h);
    return {.enqueue = [=, adds = op.accumulate](const Lane& lane) {
      cuda::column_sums(t, h, x, adds, sums, stream_of(lane));
    }};
  }
  const Matrix y = result(work, 0, t, h);
  const bool biased = op.kind == OpKind::BiasDropoutAdd && work.reads.size() > 2;
  const Matrix bias = biased ? read(work, 1, 1, h) : Matrix{};
  const Matrix other =
      op.kind == OpKind::BiasDropoutAdd ? read(work, biased ? 2 : 1, t, h) : Matrix{};
  return {.enqueue = [=](const Lane& lane) {
    cuda::add(t, h, x, bias, other, 1.0f, y, stream_of(lane));
  }};
}

PreparedKernel rope(const KernelWork& work) {
  const Op& op = work.op;
  need(work.reads.size() == 1, "rope turns one tensor here");
  const std::int64_t t = op.dims[0], elements = read(work, 0).view.elements();
  need(t > 0 && elements % t == 0, "the rows of rope are of unequal length");
  const cuda::RopeShape shape{.rows = t,
                              .cols = elements / t,
                              .heads = op.dims[1] + op.dims[2],
                              .size = op.dims[3],
                              .sequence = op.dims[4] > 0 ? op.dims[4] : t,
                              .first = op.dims[5],
                              .inverse = op.inverse};
  need(shape.cols >= shape.heads * shape.size && shape.size % 2 == 0, "rope rows are too short");
  const Matrix x = read(work, 0, t, shape.cols), y = result(work, 0, t, shape.cols);
  return {.enqueue = [=](const Lane& lane) { cuda::rope(shape, x, y, stream_of(lane)); }};
}

PreparedKernel embedding(const KernelWork& work) {
  const Op& op = work.op;
  const std::int64_t t = op.dims[0], h = op.dims[1], v = op.dims[2];
  const cuda::EmbeddingShape shape{t, h, work.member * v, v, op.accumulate};
  const std::int64_t* const tokens = integers(work, 0, t);
  if (op.kind == OpKind::EmbeddingForward) {
    const Matrix table = read(work, 1, v, h), y = result(work, 0, t, h);
    return {.enqueue = [=](const Lane& lane) {
      cuda::embedding_forward(shape, tokens, table, y, stream_of(lane));
    }};
  }
  const Matrix dy = read(work, 1, t, h), dtable = result(work, 0, v, h);
  const bool direct = dtable.format == cuda::Element::Fp32;  // atomics are of 32 bits
  return {.scratch = direct ? 0 : static_cast<std::size_t>(v * h) * sizeof(float),
          .enqueue = [=](const Lane& lane) {
            if (direct) {
              return cuda::embedding_backward(shape, tokens, dy, dtable, stream_of(lane));
            }
            cuda::EmbeddingShape fresh = shape;
            fresh.accumulate = false;
            const Matrix sums{lane.scratch, h}, before = shape.accumulate ? dtable : Matrix{};
            cuda::embedding_backward(fresh, tokens, dy, sums, stream_of(lane));
            cuda::add(v, h, sums, {}, before, 1.0f, dtable, stream_of(lane));
          }};
}

PreparedKernel position(const KernelWork& work) {
  const Op& op = work.op;
  const std::int64_t t = op.dims[0], h = op.dims[1];
  const bool forward = op.kind == OpKind::PositionAdd;
  const std::int64_t size = (forward ? read(work, 1) : result(work, 0)).view.elements();
  need(size > 0 && size % h == 0, "the position table has other columns");
  const cuda::PositionShape shape{t, h, work.member * t, size / h, op.accumulate};
  const Matrix x = read(work, 0, t, h);
  if (forward) {
    const Matrix table = read(work, 1, size / h, h), y = result(work, 0, t, h);
    return {.enqueue = [=](const Lane& lane) {
      cuda::position_add(shape, x, table, y, stream_of(lane));
    }};
  }
  const Matrix dtable = result(work, 0, size / h, h);
  return {
      .enqueue = [=](const Lane& lane) { cuda::position_grad(shape, x, dtable, stream_of(lane)); }};
}

PreparedKernel loss(const KernelWork& work) {
  const Op& op = work.op;
  const std::int64_t t = op.dims[0], v = op.dims[1];
  const cuda::LogitsShape shape{t, v, work.member * v, op.scale, op.accumulate};
  if (op.kind == OpKind::LossFromSums) {
    const Matrix top = read(work, 0, 1, t), sums = read(work, 1, t, 2);
    const Matrix loss = result(work, 0, 1, 1);
    return {.enqueue = [=](const Lane& lane) {
      cuda::loss_from_sums(shape, top, sums, loss, stream_of(lane));
    }};
  }
  const Matrix logits = read(work, 0, t, v);
  if (op.kind == OpKind::LogitsMax) {
    const Matrix top = result(work, 0, 1, t);
    return {.enqueue = [=](const Lane& lane) {
      cuda::logits_max(shape, logits, top, stream_of(lane));
    }};
  }
  const Matrix top = read(work, 1, 1, t);
  if (op.kind == OpKind::LogitsSum) {
    const std::int64_t* const targets = integers(work, 2, t);
    const Matrix sums = result(work, 0, t, 2);
    return {.enqueue = [=](const Lane& lane) {
      cuda::logits_sum(shape, logits, top, targets, sums, stream_of(lane));
    }};
  }
  const Matrix sums = read(work, 2, t, 2), grad = result(work, 0, t, v);
  const std::int64_t* const targets = integers(work, 3, t);
  return {.enqueue = [=](const Lane& lane) {
    cuda::cross_entropy_backward(shape, logits, top, sums, targets, grad, stream_of(lane));
  }};
}

}  // namespace

PreparedKernel prepare_layer(const KernelWork& work) {
  const Op& op = work.op;
  need(op.dropout == 0.0f, "no kernel here drops out");
  need(!op.cp_slot.valid(), "no kernel here takes sequences cut over ranks");
  switch (op.kind) {
    case OpKind::NormForward:
    case OpKind::NormBackward: return norm(work);
    case OpKind::SoftmaxForward:
    case OpKind::SoftmaxBackward: return softmax(work);
    case OpKind::FlashForward:
    case OpKind::FlashBackward: return flash(work);
    case OpKind::ActivationForward:
    case OpKind::ActivationBackward: return activation(work);
    case OpKind::BiasDropoutAdd:
    case OpKind::BiasGrad:
    case OpKind::DropoutBackward: return rows_and_columns(work);
    case OpKind::Rope: return rope(work);
    case OpKind::EmbeddingForward:
    case OpKind::EmbeddingBackward: return embedding(work);
    case OpKind::PositionAdd:
    case OpKind::PositionGrad: return position(work);
    case OpKind::LogitsMax:
    case OpKind::LogitsSum:
    case OpKind::LossFromSums:
    case OpKind::CrossEntropyBackward: return loss(work);
    default: throw Fault("no kernel here does that");
  }
}

}  // namespace gputwin::executors
