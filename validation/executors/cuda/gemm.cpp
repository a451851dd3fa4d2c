#include "validation/executors/cuda/gemm.h"

#include <tuple>

namespace gputwin::cuda {

namespace {

auto key(const Product& p) {
  return std::tuple(p.m, p.n, p.k, p.trans_a, p.trans_b, p.accumulate, p.lda, p.ldb, p.ldc, p.type);
}

/// cuBLASLt is column-major: a row-major rows x cols matrix is its cols x rows one.
cublasLtMatrixLayout_t layout_of(const Product& p, std::int64_t rows, std::int64_t cols,
                                 std::int64_t ld) {
  cublasLtMatrixLayout_t layout = nullptr;
  GPUTWIN_CUDA(cublasLtMatrixLayoutCreate(&layout, p.type, static_cast<std::uint64_t>(cols),
                                          static_cast<std::uint64_t>(rows), ld));
  return layout;
}

}  // namespace

/// What cuBLASLt knows of one shape. Row-major C = A B is column-major C' = B' A'.
struct Gemm::Chosen {
  Product product;
  cublasLtMatmulDesc_t matmul = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  explicit Chosen(const Product& p) : product(p) {
    GPUTWIN_CUDA(cublasLtMatmulDescCreate(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t op_first = p.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_second = p.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    GPUTWIN_CUDA(cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_TRANSA, &op_first,
                                                sizeof op_first));
    GPUTWIN_CUDA(cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_TRANSB, &op_second,
                                                sizeof op_second));
    first = p.trans_b ? layout_of(p, p.n, p.k, p.ldb) : layout_of(p, p.k, p.n, p.ldb);
    second = p.trans_a ? layout_of(p, p.k, p.m, p.lda) : layout_of(p, p.m, p.k, p.lda);
    result = layout_of(p, p.m, p.n, p.ldc);
  }
  ~Chosen() {
    if (result) static_cast<void>(cublasLtMatrixLayoutDestroy(result));
    if (second) static_cast<void>(cublasLtMatrixLayoutDestroy(second));
    if (first) static_cast<void>(cublasLtMatrixLayoutDestroy(first));
    if (matmul) static_cast<void>(cublasLtMatmulDescDestroy(matmul));
  }
  Chosen(const Chosen&) = delete;
  Chosen& operator=(const Chosen&) = delete;
};

Gemm::Gemm(std::size_t workspace_bytes) : workspace_bytes_(workspace_bytes) {
  GPUTWIN_CUDA(cublasLtCreate(&handle_));
  GPUTWIN_CUDA(cudaMalloc(&workspace_, workspace_bytes_));
}

Gemm::~Gemm() {
  for (Chosen* chosen : chosen_) delete chosen;
  static_cast<void>(cudaFree(workspace_));
  static_cast<void>(cublasLtDestroy(handle_));
}

const Gemm::Chosen& Gemm::choose(const Product& product) {
  for (const Chosen* known : chosen_) {
    if (key(known->product) == key(product)) return *known;
  }
  chosen_.push_back(new Chosen(product));
  Chosen& made = *chosen_.back();
  cublasLtMatmulPreference_t preference = nullptr;
  GPUTWIN_CUDA(cublasLtMatmulPreferenceCreate(&preference));
  GPUTWIN_CUDA(cublasLtMatmulPreferenceSetAttribute(preference,
                                                    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &workspace_bytes_, sizeof workspace_bytes_));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, made.matmul, made.first, made.second, made.result,
                                     made.result, preference, 1, &best, &found);
  GPUTWIN_CUDA(cublasLtMatmulPreferenceDestroy(preference));
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  if (found == 0) failed("cublasLtMatmulAlgoGetHeuristic", "no algorithm for this shape");
  made.algorithm = best.algo;
  return made;
}

void Gemm::run(const Product& product, const void* a, const void* b, void* c,
               const Stream& stream) {
  const Chosen& chosen = choose(product);
  const float alpha = 1.0f, beta = product.accumulate ? 1.0f : 0.0f;
  GPUTWIN_CUDA(cublasLtMatmul(handle_, chosen.matmul, &alpha, b, chosen.first, a, chosen.second,
                              &beta, c, chosen.result, c, chosen.result, &chosen.algorithm,
                              workspace_, workspace_bytes_, stream.get()));
}

}  // namespace gputwin::cuda
