// Matrix products of a plan through cuBLASLt.
#pragma once

#include <memory>
#include <type_traits>

#include "validation/executors/cuda/device.h"

namespace gputwin::cuda {

/// C (+)= factor op(A) op(B), all row-major with a leading dimension: op(A) m x k, op(B) k x n, C
/// m x n. `batch` such products lie `step_*` elements apart; a step of 0 shares an operand.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false, accumulate = false;
  std::int64_t lda = 0, ldb = 0, ldc = 0;  // elements between rows as stored
  cudaDataType_t type = CUDA_R_32F;        // of A and B; the sum is in 32 bits
  cudaDataType_t out = CUDA_R_32F;         // of C
  bool tf32 = false;                       // products of 32-bit elements in TF32
  float factor = 1.0f;
  std::int32_t batch = 1;
  std::int64_t step_a = 0, step_b = 0, step_c = 0;

  bool operator==(const Product&) const = default;
};

/// What a library made, given back by `kDestroy`.
template <auto kDestroy>
struct Destroy {
  template <class T>
  void operator()(T* made) const {
    static_cast<void>(kDestroy(made));
  }
};
template <class Handle, auto kDestroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<kDestroy>>;

/// A cuBLASLt handle and its workspace, for the products of one stream. The algorithm of a shape
/// and of how its operands are aligned is chosen at its first use by the library's heuristic and
/// kept.
class Gemm {
 public:
  explicit Gemm(std::size_t workspace_bytes = std::size_t{32} << 20);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  void run(const Product& product, const void* a, const void* b, void* c, const Stream& stream);

 private:
  struct Chosen;
  /// Bytes that divide the addresses of A, B and C.
  struct Alignment {
    std::uint32_t a = 0, b = 0, c = 0;
    bool operator==(const Alignment&) const = default;
  };
  const Chosen& choose(const Product& product, const Alignment& alignment);

  Owned<cublasLtHandle_t, cublasLtDestroy> handle_;
  Arena workspace_;
  std::vector<std::unique_ptr<Chosen>> chosen_;
};

}  // namespace gputwin::cuda
