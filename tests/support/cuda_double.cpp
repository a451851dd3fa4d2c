#include "tests/support/cuda_double.h"

#include <cstdlib>
#include <cstring>

#include "validation/executors/cuda/check.h"

namespace {

gputwin::cuda_double::Script script;
std::vector<std::string> made;
int objects = 0;

bool fails(const char* name, int created = 0) {
  made.emplace_back(name);
  if (script.failing == name) return true;
  objects += created;
  return false;
}

cudaError_t cuda(const char* name, int created = 0) {
  return fails(name, created) ? cudaErrorUnknown : cudaSuccess;
}
cublasStatus_t blas(const char* name, int created = 0) {
  return fails(name, created) ? CUBLAS_STATUS_INTERNAL_ERROR : CUBLAS_STATUS_SUCCESS;
}
ncclResult_t nccl(const char* name, int created = 0) {
  return fails(name, created) ? ncclSystemError : ncclSuccess;
}

/// Handles only have to differ from null.
template <class Handle>
Handle handle() {
  static char place;
  return reinterpret_cast<Handle>(&place);
}

}  // namespace

namespace gputwin::cuda_double {

void start(const Script& next) {
  script = next;
  made.clear();
  objects = 0;
}
std::vector<std::string> calls() { return made; }
int alive() { return objects; }

}  // namespace gputwin::cuda_double

extern "C" {

const char* cudaGetErrorName(cudaError_t) { return "cudaErrorUnknown"; }
const char* cudaGetErrorString(cudaError_t) { return "unknown error"; }
const char* cublasLtGetStatusName(cublasStatus_t) { return "CUBLAS_STATUS_INTERNAL_ERROR"; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "internal error"; }
const char* ncclGetErrorString(ncclResult_t) { return "remote process exited"; }
const char* ncclGetLastError(ncclComm_t) { return "no more is known"; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = script.devices;
  return script.devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int) { return cuda("cudaSetDevice"); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = handle<cudaStream_t>();
  return cuda("cudaStreamCreateWithFlags", 1);
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cuda("cudaStreamDestroy", -1); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = handle<cudaEvent_t>();
  return cuda("cudaEventCreateWithFlags", 1);
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cuda("cudaEventDestroy", -1); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cuda("cudaEventRecord"); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cuda("cudaStreamWaitEvent");
}
cudaError_t cudaEventQuery(cudaEvent_t) { return script.hung ? cudaErrorNotReady : cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 2.0f;
  return cuda("cudaEventElapsedTime");
}
cudaError_t cudaMalloc(void** place, size_t bytes) {
  if (fails("cudaMalloc", 1)) return cudaErrorMemoryAllocation;
  *place = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* place) {
  std::free(place);
  return cuda("cudaFree", -1);
}
cudaError_t cudaMallocHost(void** place, size_t bytes) {
  if (fails("cudaMallocHost", 1)) return cudaErrorMemoryAllocation;
  *place = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* place) {
  std::free(place);
  return cuda("cudaFreeHost", -1);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  const cudaError_t status = cuda("cudaMemcpyAsync");
  if (status == cudaSuccess) std::memcpy(to, from, bytes);
  return status;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* made_handle) {
  *made_handle = handle<cublasLtHandle_t>();
  return blas("cublasLtCreate", 1);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return blas("cublasLtDestroy", -1); }
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t*, int* found) {
  *found = 1;
  return blas("cublasLtMatmulAlgoGetHeuristic");
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                              cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t,
                              const void*, const void*, cublasLtMatrixLayout_t, void*,
                              cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*, void*, size_t,
                              cudaStream_t) {
  return blas("cublasLtMatmul");
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made_handle, cublasComputeType_t,
                                        cudaDataType_t) {
  *made_handle = handle<cublasLtMatmulDesc_t>();
  return blas("cublasLtMatmulDescCreate", 1);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t) {
  return blas("cublasLtMatmulDescDestroy", -1);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
                                              const void*, size_t) {
  return blas("cublasLtMatmulDescSetAttribute");
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made_handle) {
  *made_handle = handle<cublasLtMatmulPreference_t>();
  return blas("cublasLtMatmulPreferenceCreate", 1);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) {
  return blas("cublasLtMatmulPreferenceDestroy", -1);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return blas("cublasLtMatmulPreferenceSetAttribute");
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made_handle, cudaDataType_t,
                                          uint64_t, uint64_t, int64_t) {
  *made_handle = handle<cublasLtMatrixLayout_t>();
  return blas("cublasLtMatrixLayoutCreate", 1);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t) {
  return blas("cublasLtMatrixLayoutDestroy", -1);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId*) { return nccl("ncclGetUniqueId"); }
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int, ncclUniqueId, int) {
  *comm = handle<ncclComm_t>();
  return nccl("ncclCommInitRank", 1);
}
ncclResult_t ncclCommDestroy(ncclComm_t) { return nccl("ncclCommDestroy", -1); }
ncclResult_t ncclCommAbort(ncclComm_t) { return nccl("ncclCommAbort", -1); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = script.member_lost ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                           cudaStream_t) {
  return nccl("ncclAllReduce");
}
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
  return nccl("ncclAllGather");
}
ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                               cudaStream_t) {
  return nccl("ncclReduceScatter");
}
ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
                           cudaStream_t) {
  return nccl("ncclBroadcast");
}
ncclResult_t ncclAlltoAll(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
  return nccl("ncclAlltoAll");
}
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return nccl("ncclSend");
}
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return nccl("ncclRecv");
}
ncclResult_t ncclGroupStart() { return nccl("ncclGroupStart"); }
ncclResult_t ncclGroupEnd() { return nccl("ncclGroupEnd"); }

}  // extern "C"
