// cuBLASLt of the double: column-major products as its documentation says, by batches.
#include "tests/support/cuda_double/engine.h"

namespace {

using namespace gputwin::cuda_double;
using Guard = std::lock_guard<std::recursive_mutex>;

struct Matmul {
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
};
struct Layout {
  cudaDataType_t type = CUDA_R_32F;
  std::int64_t rows = 0, cols = 0, ld = 0, step = 0;
  std::int32_t batch = 1;
};
struct Preference {};

cublasStatus_t blas(const char* name, int created = 0) {
  return fails(name, created) ? CUBLAS_STATUS_INTERNAL_ERROR : CUBLAS_STATUS_SUCCESS;
}

template <class Real, class Handle, class... Given>
cublasStatus_t make(const char* name, Handle* made, Given... given) {
  const Guard guard(mutex());
  const cublasStatus_t status = blas(name, 1);
  if (status == CUBLAS_STATUS_SUCCESS) *made = reinterpret_cast<Handle>(new Real{given...});
  return status;
}
template <class Real, class Handle>
cublasStatus_t destroy(const char* name, Handle made) {
  const Guard guard(mutex());
  delete reinterpret_cast<Real*>(made);
  return blas(name, -1);
}
template <class Real, class Handle>
Real& of(Handle handle) {
  return *reinterpret_cast<Real*>(handle);
}
const Layout& of(cublasLtMatrixLayout_t layout) { return of<Layout>(layout); }

/// An operand of a product as op(matrix).
struct Side {
  const char* data;
  Layout layout;
  bool turned;
  std::int64_t rows() const { return turned ? layout.cols : layout.rows; }
  std::int64_t cols() const { return turned ? layout.rows : layout.cols; }
  float at(std::int64_t batch, std::int64_t row, std::int64_t col) const {
    const std::int64_t place = turned ? row * layout.ld + col : col * layout.ld + row;
    return element(data, batch * layout.step + place, layout.type == CUDA_R_16BF);
  }
};

void multiply(float alpha, const Side& a, const Side& b, float beta, void* c, const Layout& to) {
  const bool bf16 = to.type == CUDA_R_16BF;
  for (std::int64_t n = 0; n < to.batch; ++n) {
    for (std::int64_t col = 0; col < to.cols; ++col) {
      for (std::int64_t row = 0; row < to.rows; ++row) {
        float sum = 0.0f;
        for (std::int64_t k = 0; k < a.cols(); ++k) sum += a.at(n, row, k) * b.at(n, k, col);
        const std::int64_t place = n * to.step + col * to.ld + row;
        const float before = beta == 0.0f ? 0.0f : beta * element(c, place, bf16);
        set_element(c, place, bf16, alpha * sum + before);
      }
    }
  }
}

}  // namespace

extern "C" {

const char* cublasLtGetStatusName(cublasStatus_t) { return "CUBLAS_STATUS_INTERNAL_ERROR"; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "internal error"; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* made) {
  return make<Preference>("cublasLtCreate", made);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t made) {
  return destroy<Preference>("cublasLtDestroy", made);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t*, int* found) {
  const Guard guard(mutex());
  *found = 1;
  return blas("cublasLtMatmulAlgoGetHeuristic");
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t matmul, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                              cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t layout_c, void* d, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
  const Guard guard(mutex());
  const cublasStatus_t status = blas("cublasLtMatmul");
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const Matmul& m = of<Matmul>(matmul);
  const Side first{static_cast<const char*>(a), of(layout_a), m.a == CUBLAS_OP_T};
  const Side second{static_cast<const char*>(b), of(layout_b), m.b == CUBLAS_OP_T};
  const Layout to = of(layout_c);
  const bool fits = first.rows() == to.rows && second.cols() == to.cols &&
                    first.cols() == second.rows() && first.layout.batch == to.batch &&
                    second.layout.batch == to.batch && c == d &&
                    first.layout.type == second.layout.type;
  if (!fits) return CUBLAS_STATUS_INVALID_VALUE;
  const float by = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  enqueue_now(stream, "product", [=] { multiply(by, first, second, keep, d, to); });
  return status;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t,
                                        cudaDataType_t) {
  return make<Matmul>("cublasLtMatmulDescCreate", made);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t made) {
  return destroy<Matmul>("cublasLtMatmulDescDestroy", made);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmul,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t) {
  const Guard guard(mutex());
  auto& m = of<Matmul>(matmul);
  (attribute == CUBLASLT_MATMUL_DESC_TRANSA ? m.a : m.b) =
      *static_cast<const cublasOperation_t*>(value);
  return blas("cublasLtMatmulDescSetAttribute");
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  return make<Preference>("cublasLtMatmulPreferenceCreate", made);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t made) {
  return destroy<Preference>("cublasLtMatmulPreferenceDestroy", made);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  const Guard guard(mutex());
  return blas("cublasLtMatmulPreferenceSetAttribute");
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  return make<Layout>("cublasLtMatrixLayoutCreate", made, type, static_cast<std::int64_t>(rows),
                      static_cast<std::int64_t>(cols), ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t made) {
  return destroy<Layout>("cublasLtMatrixLayoutDestroy", made);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t) {
  const Guard guard(mutex());
  auto& made = of<Layout>(layout);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) {
    made.batch = *static_cast<const std::int32_t*>(value);
  } else {
    made.step = *static_cast<const std::int64_t*>(value);
  }
  return blas("cublasLtMatrixLayoutSetAttribute");
}

}  // extern "C"
