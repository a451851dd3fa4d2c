// Matrix products of a plan through cuBLASLt.
#pragma once

#include "validation/executors/cuda/device.h"

namespace gputwin::cuda {

/// C (+)= op(A) op(B), all row-major with a leading dimension: op(A) m x k, op(B) k x n, C m x n.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false, accumulate = false;
  std::int64_t lda = 0, ldb = 0, ldc = 0;  // elements between rows as stored
  cudaDataType_t type = CUDA_R_32F;        // of A, B and C; the sum is in 32 bits
};

/// A cuBLASLt handle and its workspace. The algorithm of a shape is chosen at its first use by the
/// library's heuristic and kept.
class Gemm {
 public:
  explicit Gemm(std::size_t workspace_bytes = std::size_t{32} << 20);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  void run(const Product& product, const void* a, const void* b, void* c, const Stream& stream);

 private:
  struct Chosen;
  const Chosen& choose(const Product& product);

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::size_t workspace_bytes_;
  std::vector<Chosen*> chosen_;
};

}  // namespace gputwin::cuda
