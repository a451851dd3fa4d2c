#include "validation/executors/cuda/gemm.h"

namespace gputwin::cuda {

namespace {

/// The largest power of two that divides the addresses of all matrices of a batch, at most what
/// cuBLASLt makes use of.
std::uint32_t alignment_of(const void* place, std::int64_t step, cudaDataType_t type) {
  constexpr std::uintptr_t kMost = 256;
  const std::uintptr_t size = type == CUDA_R_32F ? 4 : 2;
  const std::uintptr_t bits =
      reinterpret_cast<std::uintptr_t>(place) | static_cast<std::uintptr_t>(step) * size | kMost;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

/// cuBLASLt is column-major: a row-major rows x cols matrix is its cols x rows one.
Layout layout_of(cudaDataType_t type, std::int64_t rows, std::int64_t cols, std::int64_t ld,
                 const Product& p, std::int64_t step) {
  cublasLtMatrixLayout_t made = nullptr;
  GPUTWIN_CUDA(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(cols),
                                          static_cast<std::uint64_t>(rows), ld));
  Layout layout(made);
  if (p.batch == 1) return layout;
  GPUTWIN_CUDA(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &p.batch,
                                                sizeof p.batch));
  GPUTWIN_CUDA(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                &step, sizeof step));
  return layout;
}

}  // namespace

/// What cuBLASLt knows of one shape. Row-major C = A B is column-major C' = B' A'.
struct Gemm::Chosen {
  Product product;
  Alignment alignment;
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> matmul;
  Layout first, second, result;
  cublasLtMatmulAlgo_t algorithm{};

  Chosen(const Product& p, const Alignment& aligned) : product(p), alignment(aligned) {
    cublasLtMatmulDesc_t made = nullptr;
    const bool tf32 = p.tf32 && p.type == CUDA_R_32F;
    GPUTWIN_CUDA(cublasLtMatmulDescCreate(
        &made, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    matmul.reset(made);
    const cublasOperation_t op_first = p.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_second = p.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    GPUTWIN_CUDA(cublasLtMatmulDescSetAttribute(made, CUBLASLT_MATMUL_DESC_TRANSA, &op_first,
                                                sizeof op_first));
    GPUTWIN_CUDA(cublasLtMatmulDescSetAttribute(made, CUBLASLT_MATMUL_DESC_TRANSB, &op_second,
                                                sizeof op_second));
    first = p.trans_b ? layout_of(p.type, p.n, p.k, p.ldb, p, p.step_b)
                      : layout_of(p.type, p.k, p.n, p.ldb, p, p.step_b);
    second = p.trans_a ? layout_of(p.type, p.k, p.m, p.lda, p, p.step_a)
                       : layout_of(p.type, p.m, p.k, p.lda, p, p.step_a);
    result = layout_of(p.out, p.m, p.n, p.ldc, p, p.step_c);
  }
};

Gemm::Gemm(std::size_t workspace_bytes) : workspace_(workspace_bytes) {
  cublasLtHandle_t made = nullptr;
  GPUTWIN_CUDA(cublasLtCreate(&made));
  handle_.reset(made);
}

Gemm::~Gemm() = default;

const Gemm::Chosen& Gemm::choose(const Product& product, const Alignment& alignment) {
  for (const auto& known : chosen_) {
    if (known->product == product && known->alignment == alignment) return *known;
  }
  auto made = std::make_unique<Chosen>(product, alignment);
  cublasLtMatmulPreference_t created = nullptr;
  GPUTWIN_CUDA(cublasLtMatmulPreferenceCreate(&created));
  const Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference(created);
  const std::size_t workspace = workspace_.capacity();
  GPUTWIN_CUDA(cublasLtMatmulPreferenceSetAttribute(
      created, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
  // Our B is cuBLASLt's A. It takes operands for aligned to 256 bytes unless told.
  for (const auto& [attribute, bytes] :
       {std::pair{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment.b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment.a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment.c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment.c}}) {
    GPUTWIN_CUDA(cublasLtMatmulPreferenceSetAttribute(created, attribute, &bytes, sizeof bytes));
  }
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
  const Chosen& chosen = choose(product, {alignment_of(a, product.step_a, product.type),
                                          alignment_of(b, product.step_b, product.type),
                                          alignment_of(c, product.step_c, product.out)});
  const float alpha = product.factor, beta = product.accumulate ? 1.0f : 0.0f;
  GPUTWIN_CUDA(cublasLtMatmul(handle_.get(), chosen.matmul.get(), &alpha, b, chosen.first.get(), a,
                              chosen.second.get(), &beta, c, chosen.result.get(), c,
                              chosen.result.get(), &chosen.algorithm, workspace_.data(),
                              workspace_.capacity(), stream.get()));
}

}  // namespace gputwin::cuda
