// Kernels of a library by shape: a roofline with few constants per device, and a learned
// correction.
//
//   t = (starts t0 + max(C, M) + min(C, M) / 5) x residual(features)
//   C = time of the FLOPs at the device's peak / compute efficiency, M = time of the bytes at its
//       memory bandwidth / memory efficiency
//
// What C, M and the features are stands with each kind: attention_shape.h, moe.h, convolution.h,
// rnn.h, pointwise.h, exchange.h,
// prompt_pass.h. t0 and the two efficiencies belong to a device, the correction to
// an architecture (or to all, where few devices were measured); both are fitted by gputwin
// calibrate on tables of measured times. Used where a library's own kernels are asked for; kernels
// of a training plan have their models in gemm.h, attention.h and memory_bound.h.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>

#include "hwmodels/kernels/residual.h"
#include "sim/core/cost.h"
#include "sim/core/units.h"

namespace gputwin {

enum class LibraryKernel : std::uint8_t {
  PrefillSglang,
  PrefillVllm,
  PrefillTrtLlm,
  DecodeSglang,
  DecodeVllm,
  DecodeTrtLlm,
  AttentionForward,
  AttentionBackward,
  UnfusedForward,
  UnfusedBackward,
  Moe,
  Elementwise,
  Serving,
  Quantize,
  Norm,
  Convolution,
  Rnn,
  AllReduceGraph,
  AllReduceEager,
  ExpertsLowLatency,
  ExpertsNormal,
  PromptPass
};
inline constexpr std::size_t kLibraryKernels = 22;

/// The word of data files: "attention_prefill", …
const char* to_string(LibraryKernel kernel);

/// Names of the features of a kind, in the order estimates give them.
std::span<const char* const> features_of(LibraryKernel kernel);

/// Constants of one kind on one device.
struct LibraryModel {
  Seconds start_up{};
  double compute_efficiency = 0;  // 0: the device has no constants for this kind
  double memory_efficiency = 0;
  std::shared_ptr<const Residual> residual;  // may be null

  bool known() const { return compute_efficiency > 0; }
};

/// What a shape asks of a device, before any constant.
struct KernelEstimate {
  static constexpr std::size_t kMostFeatures = 28;
  double compute_s = 0;  // its FLOPs at the dense peak of their format, as tiles lie on the SMs
  double memory_s = 0;   // its bytes at the memory bandwidth
  double starts = 1;     // start-ups: more for what runs step by step
  std::array<float, kMostFeatures> features{};
  std::size_t count = 0;

  void push(double feature) { features[count++] = static_cast<float>(feature); }
};

/// Start-up and roofline, without the correction.
double physical_time(const LibraryModel& model, const KernelEstimate& estimate);

/// The features of an estimate, and behind them what the physical model makes of it: time over
/// start-up, compute over memory.
std::array<float, KernelEstimate::kMostFeatures> features_with(const LibraryModel& model,
                                                               const KernelEstimate& estimate,
                                                               std::size_t& count);

Cost library_cost(const LibraryModel& model, const KernelEstimate& estimate, const char* equation,
                  const char* op_class);

}  // namespace gputwin
