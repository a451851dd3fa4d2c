// Operands of an op brought to the shapes that kernels take.
#pragma once

#include <string>

#include "validation/executors/cuda/cuda_kernels.h"
#include "validation/executors/cuda/kernels.h"

namespace gputwin::executors {

inline void need(bool condition, const std::string& what) {
  if (!condition) throw Fault(what);
}

inline bool is_dense(const View& view) { return view.rows <= 1 || view.ld == view.cols; }

/// Its first element.
inline std::byte* start(const Placed& operand) {
  const View& view = operand.view;
  return operand.memory == nullptr ? nullptr : operand.memory + view.offset * bits(view.dtype) / 8;
}

inline cuda::Element element_of(DType dtype) {
  need(dtype == DType::F32 || dtype == DType::Tf32 || dtype == DType::Bf16,
       "an operand is neither F32 nor BF16");
  return dtype == DType::Bf16 ? cuda::Element::Bf16 : cuda::Element::Fp32;
}

/// An operand as a matrix of `rows` x `cols`: it lies without gaps, or in just such rows.
inline cuda::Matrix matrix(const Placed& operand, std::int64_t rows, std::int64_t cols) {
  const View& view = operand.view;
  need(view.elements() == rows * cols, "an operand has " + std::to_string(view.elements()) +
                                           " elements, the dims say " +
                                           std::to_string(rows * cols));
  const bool dense = is_dense(view);
  need(dense || view.cols == cols, "the rows of an operand lie apart and are not those of the op");
  return {start(operand), dense ? cols : view.ld, element_of(view.dtype)};
}

inline const Placed& read(const KernelWork& work, std::size_t index) {
  need(index < work.reads.size(), "an operand is missing");
  return work.reads[index];
}
inline const Placed& result(const KernelWork& work, std::size_t index) {
  need(index < work.writes.size(), "a result is missing");
  return work.writes[index];
}
inline cuda::Matrix read(const KernelWork& work, std::size_t index, std::int64_t rows,
                         std::int64_t cols) {
  return matrix(read(work, index), rows, cols);
}
inline cuda::Matrix result(const KernelWork& work, std::size_t index, std::int64_t rows,
                           std::int64_t cols) {
  return matrix(result(work, index), rows, cols);
}

/// Token ids or targets, one for each row.
inline const std::int64_t* integers(const KernelWork& work, std::size_t index, std::int64_t count) {
  const Placed& operand = read(work, index);
  need(operand.view.dtype == DType::I64 && operand.view.elements() == count &&
           is_dense(operand.view),
       "tokens are not " + std::to_string(count) + " integers of 64 bits");
  return reinterpret_cast<const std::int64_t*>(start(operand));
}

// products.cpp
PreparedKernel prepare_product(const KernelWork& work);
PreparedKernel prepare_attention_product(const KernelWork& work);
// layers.cpp
PreparedKernel prepare_layer(const KernelWork& work);

}  // namespace gputwin::executors
