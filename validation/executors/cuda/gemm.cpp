#include "validation/executors/cuda/gemm.h"

#include <tuple>

namespace gputwin::cuda {

namespace {

auto key(const Product& p) {
  return std::tuple(p.m, p.n, p.k, p.trans_a, p.trans_b, p.accumulate, p.lda, p.ldb, p.ldc, p.type);
}

/// cuBLASLt is column-major: a row-major rows x cols matrix is its cols x rows one.
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

Layout layout_of(const Product& p, std::int64_t rows, std::int64_t cols, std::int64_t ld) {
  cublasLtMatrixLayout_t layout = nullptr;
  GPUTWIN_CUDA(cublasLtMatrixLayoutCreate(&layout, p.type, static_cast<std::uint64_t>(cols),
                                          static_cast<std::uint64_t>(rows), ld));
  return Layout(layout);
}

}  // namespace

/// What cuBLASLt knows of one shape. Row-major C = A B is column-major C' = B' A'.
struct Gemm::Chosen {
  Product product;
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> matmul;
  Layout first, second, result;
  cublasLtMatmulAlgo_t algorithm{};

  explicit Chosen(const Product& p) : product(p) {
    cublasLtMatmulDesc_t made = nullptr;
    GPUTWIN_CUDA(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    matmul.reset(made);
    const cublasOperation_t op_first = p.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_second = p.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    GPUTWIN_CUDA(cublasLtMatmulDescSetAttribute(made, CUBLASLT_MATMUL_DESC_TRANSA, &op_first,
                                                sizeof op_first));
    GPUTWIN_CUDA(cublasLtMatmulDescSetAttribute(made, CUBLASLT_MATMUL_DESC_TRANSB, &op_second,
                                                sizeof op_second));
    first = p.trans_b ? layout_of(p, p.n, p.k, p.ldb) : layout_of(p, p.k, p.n, p.ldb);
    second = p.trans_a ? layout_of(p, p.k, p.m, p.lda) : layout_of(p, p.m, p.k, p.lda);
    result = layout_of(p, p.m, p.n, p.ldc);
  }
};

Gemm::Gemm(std::size_t workspace_bytes) : workspace_(workspace_bytes) {
  cublasLtHandle_t made = nullptr;
  GPUTWIN_CUDA(cublasLtCreate(&made));
  handle_.reset(made);
}

Gemm::~Gemm() = default;

const Gemm::Chosen& Gemm::choose(const Product& product) {
  for (const auto& known : chosen_) {
    if (key(known->product) == key(product)) return *known;
  }
  auto made = std::make_unique<Chosen>(product);
  cublasLtMatmulPreference_t created = nullptr;
  GPUTWIN_CUDA(cublasLtMatmulPreferenceCreate(&created));
  const Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference(created);
  const std::size_t workspace = workspace_.capacity();
  GPUTWIN_CUDA(cublasLtMatmulPreferenceSetAttribute(
      created, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  GPUTWIN_CUDA(cublasLtMatmulAlgoGetHeuristic(handle_.get(), made->matmul.get(), made->first.get(),
                                              made->second.get(), made->result.get(),
                                              made->result.get(), created, 1, &best, &found));
  if (found == 0) failed("cublasLtMatmulAlgoGetHeuristic", "no algorithm for this shape");
  made->algorithm = best.algo;
  chosen_.push_back(std::move(made));
  return *chosen_.back();
}

void Gemm::run(const Product& product, const void* a, const void* b, void* c,
               const Stream& stream) {
  const Chosen& chosen = choose(product);
  const float alpha = 1.0f, beta = product.accumulate ? 1.0f : 0.0f;
  GPUTWIN_CUDA(cublasLtMatmul(handle_.get(), chosen.matmul.get(), &alpha, b, chosen.first.get(), a,
                              chosen.second.get(), &beta, c, chosen.result.get(), c,
                              chosen.result.get(), &chosen.algorithm, workspace_.data(),
                              workspace_.capacity(), stream.get()));
}

}  // namespace gputwin::cuda
