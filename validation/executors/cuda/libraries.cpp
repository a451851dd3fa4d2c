// cuBLASLt and NCCL for the program: loaded at the first call, each function by its name. A run
// that needs no GPU neither needs them nor waits for them.
#include <dlfcn.h>

#include <string>

#include "validation/executors/cuda/check.h"

namespace {

/// By the name that the dynamic linker knows, else where the build found it.
class Library {
 public:
  Library(const char* name, const char* built_with) : name_(name) {
    handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) handle_ = dlopen(built_with, RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) {
      const char* const why = dlerror();
      throw gputwin::cuda::DeviceError(std::string(name) + " cannot be loaded (LD_LIBRARY_PATH): " +
                                       (why != nullptr ? why : "no reason given"));
    }
  }
  template <class Function>
  Function* symbol(const char* name, Function*) const {
    void* const found = dlsym(handle_, name);
    if (found == nullptr) {
      throw gputwin::cuda::DeviceError(name_ + " has no " + name + ": it is older than this build");
    }
    return reinterpret_cast<Function*>(found);
  }

 private:
  std::string name_;
  void* handle_ = nullptr;
};

#define GPUTWIN_TEXT(number) #number
#define GPUTWIN_NUMBER(number) GPUTWIN_TEXT(number)

const Library& blas() {
  static const Library kLibrary("libcublasLt.so." GPUTWIN_NUMBER(CUBLAS_VER_MAJOR),
                                GPUTWIN_CUBLASLT);
  return kLibrary;
}
const Library& nccl() {
  static const Library kLibrary("libnccl.so." GPUTWIN_NUMBER(NCCL_MAJOR), GPUTWIN_NCCL);
  return kLibrary;
}

}  // namespace

#define GPUTWIN_FORWARD(library, result, name, parameters, arguments) \
  extern "C" result name parameters {                                 \
    static auto* const kFunction = library().symbol(#name, &name);    \
    return kFunction arguments;                                       \
  }

GPUTWIN_FORWARD(blas, const char*, cublasLtGetStatusName, (cublasStatus_t s), (s))
GPUTWIN_FORWARD(blas, const char*, cublasLtGetStatusString, (cublasStatus_t s), (s))
GPUTWIN_FORWARD(blas, cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * h), (h))
GPUTWIN_FORWARD(blas, cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t h), (h))
GPUTWIN_FORWARD(blas, cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
                (cublasLtHandle_t h, cublasLtMatmulDesc_t m, cublasLtMatrixLayout_t a,
                 cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                 cublasLtMatmulPreference_t p, int wanted, cublasLtMatmulHeuristicResult_t* results,
                 int* found),
                (h, m, a, b, c, d, p, wanted, results, found))
GPUTWIN_FORWARD(blas, cublasStatus_t, cublasLtMatmul,
                (cublasLtHandle_t h, cublasLtMatmulDesc_t m, const void* alpha, const void* a,
                 cublasLtMatrixLayout_t la, const void* b, cublasLtMatrixLayout_t lb,
                 const void* beta, const void* c, cublasLtMatrixLayout_t lc, void* d,
                 cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                 size_t bytes, cudaStream_t stream),
                (h, m, alpha, a, la, b, lb, beta, c, lc, d, ld, algorithm, workspace, bytes,
                 stream))
GPUTWIN_FORWARD(blas, cublasStatus_t, cublasLtMatmulDescCreate,
                (cublasLtMatmulDesc_t * m, cublasComputeType_t compute, cudaDataType_t scale),
                (m, compute, scale))
GPUTWIN_FORWARD(blas, cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t m), (m))
GPUTWIN_FORWARD(blas, cublasStatus_t, cublasLtMatmulDescSetAttribute,
                (cublasLtMatmulDesc_t m, cublasLtMatmulDescAttributes_t what, const void* value,
                 size_t bytes),
                (m, what, value, bytes))
GPUTWIN_FORWARD(blas, cublasStatus_t, cublasLtMatmulPreferenceCreate,
                (cublasLtMatmulPreference_t * p), (p))
GPUTWIN_FORWARD(blas, cublasStatus_t, cublasLtMatmulPreferenceDestroy,
                (cublasLtMatmulPreference_t p), (p))
GPUTWIN_FORWARD(blas, cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
                (cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t what,
                 const void* value, size_t bytes),
                (p, what, value, bytes))
GPUTWIN_FORWARD(blas, cublasStatus_t, cublasLtMatrixLayoutCreate,
                (cublasLtMatrixLayout_t * l, cudaDataType type, uint64_t rows, uint64_t cols,
                 int64_t ld),
                (l, type, rows, cols, ld))
GPUTWIN_FORWARD(blas, cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t l), (l))
GPUTWIN_FORWARD(blas, cublasStatus_t, cublasLtMatrixLayoutSetAttribute,
                (cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t what, const void* value,
                 size_t bytes),
                (l, what, value, bytes))

GPUTWIN_FORWARD(nccl, const char*, ncclGetErrorString, (ncclResult_t r), (r))
GPUTWIN_FORWARD(nccl, const char*, ncclGetLastError, (ncclComm_t c), (c))
GPUTWIN_FORWARD(nccl, ncclResult_t, ncclCommInitAll, (ncclComm_t * c, int n, const int* devices),
                (c, n, devices))
GPUTWIN_FORWARD(nccl, ncclResult_t, ncclCommDestroy, (ncclComm_t c), (c))
GPUTWIN_FORWARD(nccl, ncclResult_t, ncclCommAbort, (ncclComm_t c), (c))
GPUTWIN_FORWARD(nccl, ncclResult_t, ncclCommGetAsyncError, (ncclComm_t c, ncclResult_t* state),
                (c, state))
GPUTWIN_FORWARD(nccl, ncclResult_t, ncclAllReduce,
                (const void* from, void* to, size_t n, ncclDataType_t type, ncclRedOp_t op,
                 ncclComm_t c, cudaStream_t stream),
                (from, to, n, type, op, c, stream))
GPUTWIN_FORWARD(nccl, ncclResult_t, ncclAllGather,
                (const void* from, void* to, size_t n, ncclDataType_t type, ncclComm_t c,
                 cudaStream_t stream),
                (from, to, n, type, c, stream))
GPUTWIN_FORWARD(nccl, ncclResult_t, ncclReduceScatter,
                (const void* from, void* to, size_t n, ncclDataType_t type, ncclRedOp_t op,
                 ncclComm_t c, cudaStream_t stream),
                (from, to, n, type, op, c, stream))
GPUTWIN_FORWARD(nccl, ncclResult_t, ncclBroadcast,
                (const void* from, void* to, size_t n, ncclDataType_t type, int root, ncclComm_t c,
                 cudaStream_t stream),
                (from, to, n, type, root, c, stream))
GPUTWIN_FORWARD(nccl, ncclResult_t, ncclAlltoAll,
                (const void* from, void* to, size_t n, ncclDataType_t type, ncclComm_t c,
                 cudaStream_t stream),
                (from, to, n, type, c, stream))
GPUTWIN_FORWARD(nccl, ncclResult_t, ncclSend,
                (const void* from, size_t n, ncclDataType_t type, int peer, ncclComm_t c,
                 cudaStream_t stream),
                (from, n, type, peer, c, stream))
GPUTWIN_FORWARD(nccl, ncclResult_t, ncclRecv,
                (void* to, size_t n, ncclDataType_t type, int peer, ncclComm_t c,
                 cudaStream_t stream),
                (to, n, type, peer, c, stream))
GPUTWIN_FORWARD(nccl, ncclResult_t, ncclGroupStart, (), ())
GPUTWIN_FORWARD(nccl, ncclResult_t, ncclGroupEnd, (), ())
