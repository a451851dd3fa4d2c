#include "validation/executors/cuda/cuda_kernels.h"

#include <algorithm>

#include "sim/core/codec.h"
#include "sim/core/spelling.h"
#include "validation/codecs/cuda_codec.h"
#include "validation/executors/cuda/operands.h"
#include "validation/executors/host/host_kernels.h"

namespace gputwin::executors {

namespace {

using cuda::Matrix;

struct Rows {
  std::int64_t rows = 0, cols = 0;
};

/// Rows in which all these operands of equally many elements lie evenly: those of one with gaps.
Rows common_rows(std::initializer_list<const Placed*> operands) {
  for (const Placed* operand : operands) {
    if (!is_dense(operand->view)) return {operand->view.rows, operand->view.cols};
  }
  return {1, (*operands.begin())->view.elements()};
}

/// Bytes as they are, between any two memories that the driver knows.
PreparedKernel copy_bytes(const Placed& from, const Placed& to) {
  need(from.view.dtype == to.view.dtype, "a copy changes the format");
  need(from.view.elements() == to.view.elements(), "both ends of a copy have one size");
  const Rows shape = common_rows({&from, &to});
  const auto pitch = [&](const View& view) {
    need(is_dense(view) || view.cols == shape.cols, "the rows of a copy differ in length");
    return static_cast<std::size_t>((is_dense(view) ? shape.cols : view.ld) * bits(view.dtype) / 8);
  };
  const std::size_t to_pitch = pitch(to.view), from_pitch = pitch(from.view);
  const auto width = static_cast<std::size_t>(shape.cols * bits(from.view.dtype) / 8);
  return {.enqueue = [=, a = start(from), b = start(to)](const Lane& lane) {
    if (width == 0) return;
    if (shape.rows == 1) {  // a pitch is at most 2 GiB
      return cuda::copy(b, a, width, cudaMemcpyDefault, lane.stream);
    }
    GPUTWIN_CUDA(cudaMemcpy2DAsync(b, to_pitch, a, from_pitch, width,
                                   static_cast<std::size_t>(shape.rows), cudaMemcpyDefault,
                                   lane.stream.get()));
  }};
}

/// y = scale x + other.
PreparedKernel scaled(const Placed& x, const Placed* other, float scale, const Placed& y) {
  need(x.view.elements() == y.view.elements(), "operands differ in size");
  const Rows s = other != nullptr ? common_rows({&x, other, &y}) : common_rows({&x, &y});
  const Matrix from = matrix(x, s.rows, s.cols), to = matrix(y, s.rows, s.cols);
  const Matrix more = other != nullptr ? matrix(*other, s.rows, s.cols) : Matrix{};
  return {.enqueue = [=](const Lane& lane) {
    cuda::add(s.rows, s.cols, from, {}, more, scale, to, lane.stream.get());
  }};
}

PreparedKernel copy_or_cast(const Placed& from, const Placed& to, float scale) {
  const bool plain = from.view.dtype == to.view.dtype && scale == 1.0f;
  return plain ? copy_bytes(from, to) : scaled(from, nullptr, scale, to);
}

PreparedKernel cast_copy(const KernelWork& work) {
  const Op& op = work.op;
  if (work.reads.size() > 1) {
    need(work.reads.size() == work.writes.size(), "a copy has as many sources as targets");
    std::vector<PreparedKernel> all;
    for (std::size_t k = 0; k < work.reads.size(); ++k) {
      all.push_back(copy_or_cast(work.reads[k], work.writes[k], 1.0f));
    }
    return {.enqueue = [all](const Lane& lane) {
      for (const PreparedKernel& each : all) each.enqueue(lane);
    }};
  }
  Placed from = read(work, 0);
  if (op.slot.valid()) {  // the rank's own part
    const std::int64_t n = op.dims[0], first = work.member * n;
    need(is_dense(from.view) && first + n <= from.view.elements(),
         "the own part leaves its source");
    from.view = {from.view.buffer, from.view.offset + first, 1, n, n, from.view.dtype};
  }
  return copy_or_cast(from, result(work, 0), op.scale);
}

PreparedKernel zero(const KernelWork& work) {
  const Placed& x = result(work, 0);
  const View& view = x.view;
  const Rows shape = common_rows({&x});
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements * bits(view.dtype) / 8);
  };
  const std::size_t width = bytes(shape.cols), pitch = is_dense(view) ? width : bytes(view.ld);
  return {.enqueue = [=, to = start(x)](const Lane& lane) {
    if (width == 0) return;
    if (shape.rows == 1) {
      GPUTWIN_CUDA(cudaMemsetAsync(to, 0, width, lane.stream.get()));
      return;
    }
    GPUTWIN_CUDA(cudaMemset2DAsync(to, pitch, 0, width, static_cast<std::size_t>(shape.rows),
                                   lane.stream.get()));
  }};
}

/// The elements of a view that this rank counts in the norm, as ranges [first, first + count).
std::vector<std::pair<std::int64_t, std::int64_t>> counted(const KernelWork& work,
                                                           const View& view) {
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  std::int64_t next = 0;  // behind the last element that was left out
  const std::int64_t n = view.elements(), size = bits(view.dtype) / 8;
  const auto add = [&](std::int64_t end) {
    if (end > next) ranges.emplace_back(next, end - next);
  };
  if (work.elsewhere != nullptr) {
    for (auto at = work.elsewhere->lower_bound({view.buffer, view.offset * size});
         at != work.elsewhere->end() && at->buffer == view.buffer; ++at) {
      const std::int64_t element = at->byte / size - view.offset;
      if (element >= n) break;
      add(element);
      next = element + 1;
    }
  }
  add(n);
  return ranges;
}

PreparedKernel sum_of_squares(const KernelWork& work) {
  const Op& op = work.op;
  const Matrix x = read(work, 0, 1, op.dims[0]), sum = result(work, 0, 1, 1);
  const auto ranges = counted(work, work.reads[0].view);
  return {.scratch = cuda::kPartialSums * sizeof(float),
          .enqueue = [=, adds = op.accumulate](const Lane& lane) {
            auto* const partial = reinterpret_cast<float*>(lane.scratch);
            bool more = adds;
            for (const auto& [first, count] : ranges) {
              Matrix part = x;
              part.data = static_cast<std::byte*>(x.data) + first * codecs::bytes_of(x.format);
              cuda::sum_of_squares(count, part, more, sum, partial, lane.stream.get());
              more = true;
            }
            if (!more) cuda::sum_of_squares(0, x, false, sum, partial, lane.stream.get());
          }};
}

PreparedKernel optimizer(const KernelWork& work) {
  const Op& op = work.op;
  const std::int64_t n = op.dims[0];
  const bool sgd = op.kind == OpKind::SgdStep;
  const std::size_t states = sgd ? 1 : 2;  // besides the weight or its master copy
  const bool has_master = work.writes.size() > states + 1;
  cuda::AdamSettings set;
  set.rate = static_cast<float>(work.values.learning_rate);
  set.epsilon = static_cast<float>(work.values.adam_epsilon);
  set.clip_norm = static_cast<float>(work.values.clip_norm);
  set.step = work.step;
  const Matrix grad = read(work, 0, 1, n);
  const Matrix norm = work.reads.size() > 1 ? read(work, 1, 1, 1) : Matrix{};
  const std::size_t at = has_master ? 1 : 0;
  const Matrix first = result(work, at, 1, n);
  const Matrix second = sgd ? Matrix{} : result(work, at + 1, 1, n);
  const Matrix master = result(work, has_master ? 0 : states, 1, n);
  const Matrix weight = has_master ? result(work, states + 1, 1, n) : Matrix{};
  return {.enqueue = [=](const Lane& lane) {
    if (sgd) return cuda::sgd(set, n, grad, norm, master, first, weight, lane.stream.get());
    cuda::adam(set, n, grad, norm, master, first, second, weight, lane.stream.get());
  }};
}

std::uint8_t* payload_of(const Placed& operand, std::int64_t bytes) {
  need(
      operand.view.dtype == DType::U8 && operand.view.elements() == bytes && is_dense(operand.view),
      "a payload has the bytes that its codec makes, without gaps");
  return reinterpret_cast<std::uint8_t*>(start(operand));
}

PreparedKernel encode(const KernelWork& work) {
  need(work.reads.size() == 1, "error feedback is not run here");
  const std::int64_t t = work.op.dims[0], h = work.op.dims[1];
  const Codec codec = codec_of(work.op);
  const Matrix x = read(work, 0, t, h);
  need(x.ld == h, "a codec reads rows without gaps");
  std::uint8_t* const payload = payload_of(result(work, 0), payload_bytes(codec, t, h).value);
  return {.enqueue = [=](const Lane& lane) {
    codecs::cuda_encode(codec, {x.data, x.format, t, h}, payload, lane.stream.get());
  }};
}

/// The sum of all payloads, in F32, then in the format of the result.
PreparedKernel decode(const KernelWork& work) {
  const std::int64_t t = work.op.dims[0], h = work.op.dims[1], parts = work.op.dims[5];
  const Codec codec = codec_of(work.op);
  const std::int64_t bytes = payload_bytes(codec, t, h).value;
  const std::uint8_t* const payloads = payload_of(read(work, 0), parts * bytes);
  const Matrix y = result(work, 0, t, h);
  const bool direct = y.format == cuda::Element::Fp32 && y.ld == h;
  return {.scratch = direct ? 0 : static_cast<std::size_t>(t * h) * sizeof(float),
          .enqueue = [=](const Lane& lane) {
            void* const place = direct ? y.data : lane.scratch;
            auto* const sum = static_cast<float*>(place);
            codecs::cuda_decode(codec, payloads, y.format, t, h, sum, lane.stream.get());
            for (std::int64_t p = 1; p < parts; ++p) {
              codecs::cuda_accumulate(codec, payloads + p * bytes, y.format, t, h, sum,
                                      lane.stream.get());
            }
            if (direct) return;
            cuda::add(t, h, {place, h}, {}, {}, 1.0f, y, lane.stream.get());
          }};
}

}  // namespace

PreparedKernel prepare_kernel(const KernelWork& work) {
  try {
    switch (work.op.kind) {
      case OpKind::Gemm: return prepare_product(work);
      case OpKind::Add: return scaled(read(work, 0), &read(work, 1), 1.0f, result(work, 0));
      case OpKind::CastCopy: return cast_copy(work);
      case OpKind::CopyBytes: return copy_bytes(read(work, 0), result(work, 0));
      case OpKind::Zero: return zero(work);
      case OpKind::SumOfSquares: return sum_of_squares(work);
      case OpKind::AdamStep:
      case OpKind::SgdStep: return optimizer(work);
      case OpKind::Encode: return encode(work);
      case OpKind::Decode: return decode(work);
      default: break;
    }
    return is_attention_gemm(work.op.kind) ? prepare_attention_product(work) : prepare_layer(work);
  } catch (const Fault& fault) {
    throw Fault(std::string(to_string(work.op.kind)) + ": " + fault.what());
  }
}

KernelWork work_without_memory(const Plan& plan, RankId rank, const Instruction& i) {
  Call own;
  const Call& call = placed(plan, rank, plan.call(i), own);
  KernelWork work{plan.call(i).op, {}, {}, 0, 1, {}, nullptr};
  for (const View& view : call.reads) work.reads.push_back({nullptr, view});
  for (const View& view : call.writes) work.writes.push_back({nullptr, view});
  return work;
}

ncclDataType_t collective_type(DType dtype) {
  switch (dtype) {
    case DType::F32:
    case DType::Tf32: return ncclFloat32;
    case DType::Bf16: return ncclBfloat16;
    case DType::U8: return ncclUint8;
    case DType::I32: return ncclInt32;
    case DType::I64: return ncclInt64;
    default: throw Fault("a collective of a format that is not run here");
  }
}

std::byte* without_gaps(const Placed& operand) {
  need(is_dense(operand.view), "what is sent has gaps between its rows");
  return start(operand);
}

}  // namespace gputwin::executors
