#include "sim/trace/slice_kind.h"

#include <gtest/gtest.h>

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

// Ranges around others are no work, whatever work their name speaks of, on whatever track.
TEST(SliceKindOfRanges, IsNoWork) {
  for (const char* category : {"gpu_user_annotation", "user_annotation", "cuda_profiler_range"}) {
    for (const char* name : {"Optimizer.step#Adam.step", "nccl:all_reduce", "ampere_sgemm",
                             "Memcpy HtoD", "flash_attention"}) {
      EXPECT_EQ(label(slice_kind(name, category, "stream 7")), label(SliceKind::Other))
          << category << " " << name;
    }
  }
}

// Categories as CUPTI's own export spells them: what copies, calls or waits is no kernel.
TEST(SliceKindOfCupti, FollowsTheCategory) {
  const std::pair<const char*, SliceKind> kCategories[] = {
      {"kernel", SliceKind::Gemm},           {"concurrent_kernel", SliceKind::Gemm},
      {"memcpy", SliceKind::Copy},           {"memset", SliceKind::Copy},
      {"runtime", SliceKind::Host},          {"driver", SliceKind::Host},
      {"synchronization", SliceKind::Other}, {"overhead", SliceKind::Other}};
  for (const auto& [category, kind] : kCategories) {
    EXPECT_EQ(label(slice_kind("volta_sgemm_128x64", category, "stream 7")), label(kind))
        << category;
  }
}

}  // namespace
}  // namespace gputwin
