#include "sim/trace/slice_kind.h"

#include <gtest/gtest.h>

#include <tuple>

namespace gputwin {
namespace {

// Names of kernels as profiles hold them. A word inside another is no evidence:
// a "lambda" is no LAMB.
TEST(SliceKindOfKernels, ReadsWholeWords) {
  const std::pair<const char*, SliceKind> kNames[] = {
      {"void at::native::vectorized_elementwise_kernel<4, "
       "at::native::mul_kernel(at::TensorIterator&)"
       "::{lambda()#1}>(int)",
       SliceKind::Pointwise},
      {"void at::native::unrolled_elementwise_kernel<{lambda(float)#1}, at::detail::Array<char*, "
       "2>>",
       SliceKind::Pointwise},
      {"void multi_tensor_apply_kernel<LAMBStage1Functor<float>>(int)", SliceKind::Optimizer},
      {"void multi_tensor_apply_kernel<AdamFunctor<float>>(int)", SliceKind::Optimizer},
      {"void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>",
       SliceKind::Optimizer},
      {"ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn", SliceKind::Gemm},
      {"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", SliceKind::Gemm},
      {"nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", SliceKind::Gemm},
      {"void pytorch_flash::flash_fwd_kernel<128>", SliceKind::Attention},
      {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL", SliceKind::OtherComm}};
  for (const auto& [name, kind] : kNames) {
    EXPECT_EQ(label(slice_kind(name, "kernel", "stream 7")), label(kind)) << name;
  }
}

// A range around work is none, whatever its name says: "Optimizer.step#SGD.step" lies over the
// kernels of a step, "nccl:all_reduce" over the collective that counts.
TEST(SliceKindOfRanges, IsNoWork) {
  for (const char* category :
       {"gpu_user_annotation", "user_annotation", "Trace", "cuda_profiler_range"}) {
    for (const char* name : {"Optimizer.step#SGD.step", "nccl:all_reduce", "## forward ##",
                             "flash_attention", "Memcpy HtoD", "sm80_gemm"}) {
      EXPECT_EQ(label(slice_kind(name, category, "stream 7")), "other") << category << ' ' << name;
    }
  }
}

// What a profiler records beside kernels, as PyTorch and CUPTI spell it now and did before.
TEST(SliceKindOfCategories, ToldApart) {
  const std::tuple<const char*, const char*, SliceKind> kSlices[] = {
      {"Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", SliceKind::Copy},
      {"Memset (Device)", "gpu_memset", SliceKind::Copy},
      {"Memcpy DtoD (Device -> Device)", "Memcpy", SliceKind::Copy},
      {"Memset (Device)", "Memset", SliceKind::Copy},
      {"Memset (Device)", "kernel", SliceKind::Copy},
      {"cudaLaunchKernel", "cuda_runtime", SliceKind::Host},
      {"cudaMemcpyAsync", "Runtime", SliceKind::Host},
      {"cuLaunchKernel", "cuda_driver", SliceKind::Host},
      {"aten::addmm", "Operator", SliceKind::Host},
      {"Activity Buffer Request", "overhead", SliceKind::Other},
      {"Stream Wait Event", "cuda_sync", SliceKind::Other},
      {"Context Sync", "cuda_sync", SliceKind::Other}};
  for (const auto& [name, category, kind] : kSlices) {
    EXPECT_EQ(label(slice_kind(name, category, "stream 7")), label(kind)) << category << name;
  }
}

}  // namespace
}  // namespace gputwin
