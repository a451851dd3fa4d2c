// Every call of the CUDA runtime, cuBLASLt and NCCL goes through one of these: a failure becomes an
// exception that names the call, the library's own words and what was being done.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <stdexcept>
#include <string>

namespace gputwin::cuda {

/// A call of a GPU library failed, or did not end in time.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void failed(const char* call, const std::string& why) {
  throw DeviceError(std::string(call) + " failed: " + why);
}

inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  failed(call, std::string(cudaGetErrorName(status)) + ", " + cudaGetErrorString(status));
}

inline void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  failed(call, std::string(cublasLtGetStatusName(status)) + ", " + cublasLtGetStatusString(status));
}

/// ncclInProgress is not a failure: a communicator that does not block answers with it.
inline void check(ncclResult_t status, const char* call) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  failed(call, std::string(ncclGetErrorString(status)) + ", " + ncclGetLastError(nullptr));
}

}  // namespace gputwin::cuda

#define GPUTWIN_CUDA(call) ::gputwin::cuda::check((call), #call)
