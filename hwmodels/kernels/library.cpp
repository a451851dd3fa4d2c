#include "hwmodels/kernels/library.h"

#include <algorithm>

#include "sim/core/check.h"

namespace gputwin {

namespace {

constexpr double kLeastOverlap = 0.2;  // of the shorter of compute and memory, not hidden
// Without a correction nothing was fitted here; errors of rooflines are of this size.
constexpr double kLow = 0.6, kHigh = 1.7;

constexpr std::array kAttention{"batch",
                                "queries",
                                "keys",
                                "heads",
                                "kv_heads",
                                "head_size",
                                "value_size",
                                "window",
                                "heads_per_kv_head",
                                "library",
                                "bits",
                                "kv_bits",
                                "ctas_per_sm",
                                "waves_rounding",
                                "longest_row",
                                "batch_x_heads",
                                "kv_bytes",
                                "causal",
                                "variant",
                                "time_over_start",
                                "compute_over_memory"};
constexpr std::array kMoe{"tokens",
                          "hidden",
                          "intermediate",
                          "top_k",
                          "experts",
                          "library",
                          "bits",
                          "skew",
                          "tokens_per_expert",
                          "active_experts",
                          "tiles_per_sm",
                          "waves_rounding",
                          "padding",
                          "weight_bytes",
                          "expert_parallel",
                          "rows",
                          "rows_over_even",
                          "time_over_start",
                          "compute_over_memory"};
constexpr std::array kPointwise{
    "rows",        "columns",      "elements",        "operation",          "library",
    "bits",        "bytes",        "bytes_over_l2",   "row_bytes",          "vector_width",
    "ctas_per_sm", "architecture", "time_over_start", "compute_over_memory"};
constexpr std::array kConvolution{"batch",
                                  "channels",
                                  "filters",
                                  "width",
                                  "height",
                                  "filter",
                                  "stride",
                                  "phase",
                                  "bits",
                                  "m",
                                  "n",
                                  "k",
                                  "tiles_per_sm",
                                  "waves_rounding",
                                  "pixels",
                                  "architecture",
                                  "tile_waste",
                                  "rate",
                                  "padding",
                                  "filter_width",
                                  "time_over_start",
                                  "compute_over_memory"};
constexpr std::array kRnn{"hidden",
                          "batch",
                          "steps",
                          "gates",
                          "phase",
                          "bits",
                          "architecture",
                          "weight_bytes_over_l2",
                          "tiles_per_sm",
                          "waves_rounding",
                          "rate",
                          "time_over_start",
                          "compute_over_memory"};
constexpr std::array kAllReduce{"bytes",  "ranks",        "framework",       "version",
                                "device", "architecture", "time_over_start", "compute_over_memory"};
constexpr std::array kExperts{"tokens",
                              "hidden",
                              "top_k",
                              "experts",
                              "sms",
                              "nodes",
                              "ranks",
                              "combine",
                              "version",
                              "copies",
                              "bytes",
                              "architecture",
                              "time_over_start",
                              "compute_over_memory"};
constexpr std::array kPromptPass{"tokens",
                                 "prompt",
                                 "batch",
                                 "tensor_parallel",
                                 "hidden",
                                 "time_over_start",
                                 "compute_over_memory"};

}  // namespace

const char* to_string(LibraryKernel kernel) {
  switch (kernel) {
    case LibraryKernel::PrefillSglang: return "prefill_sglang";
    case LibraryKernel::PrefillVllm: return "prefill_vllm";
    case LibraryKernel::PrefillTrtLlm: return "prefill_trtllm";
    case LibraryKernel::DecodeSglang: return "decode_sglang";
    case LibraryKernel::DecodeVllm: return "decode_vllm";
    case LibraryKernel::DecodeTrtLlm: return "decode_trtllm";
    case LibraryKernel::AttentionForward: return "attention_forward";
    case LibraryKernel::AttentionBackward: return "attention_backward";
    case LibraryKernel::UnfusedForward: return "unfused_attention_forward";
    case LibraryKernel::UnfusedBackward: return "unfused_attention_backward";
    case LibraryKernel::Moe: return "moe";
    case LibraryKernel::Elementwise: return "elementwise";
    case LibraryKernel::Serving: return "serving";
    case LibraryKernel::Quantize: return "quantize";
    case LibraryKernel::Norm: return "norm";
    case LibraryKernel::Convolution: return "convolution";
    case LibraryKernel::Rnn: return "rnn";
    case LibraryKernel::AllReduceGraph: return "all_reduce_graph";
    case LibraryKernel::AllReduceEager: return "all_reduce_eager";
    case LibraryKernel::ExpertsLowLatency: return "experts_low_latency";
    case LibraryKernel::ExpertsNormal: return "experts_normal";
    case LibraryKernel::PromptPass: return "prompt_pass";
  }
  return "";
}

std::span<const char* const> features_of(LibraryKernel kernel) {
  switch (kernel) {
    case LibraryKernel::PrefillSglang:
    case LibraryKernel::PrefillVllm:
    case LibraryKernel::PrefillTrtLlm:
    case LibraryKernel::DecodeSglang:
    case LibraryKernel::DecodeVllm:
    case LibraryKernel::DecodeTrtLlm:
    case LibraryKernel::AttentionForward:
    case LibraryKernel::AttentionBackward:
    case LibraryKernel::UnfusedForward:
    case LibraryKernel::UnfusedBackward: return kAttention;
    case LibraryKernel::Moe: return kMoe;
    case LibraryKernel::Elementwise:
    case LibraryKernel::Serving:
    case LibraryKernel::Quantize:
    case LibraryKernel::Norm: return kPointwise;
    case LibraryKernel::Convolution: return kConvolution;
    case LibraryKernel::Rnn: return kRnn;
    case LibraryKernel::AllReduceGraph:
    case LibraryKernel::AllReduceEager: return kAllReduce;
    case LibraryKernel::ExpertsLowLatency:
    case LibraryKernel::ExpertsNormal: return kExperts;
    case LibraryKernel::PromptPass: return kPromptPass;
  }
  return {};
}

double physical_time(const LibraryModel& model, const KernelEstimate& estimate) {
  const double compute = estimate.compute_s / model.compute_efficiency;
  const double memory = estimate.memory_s / model.memory_efficiency;
  return model.start_up.value * estimate.starts + std::max(compute, memory) +
         kLeastOverlap * std::min(compute, memory);
}

std::array<float, KernelEstimate::kMostFeatures> features_with(const LibraryModel& model,
                                                               const KernelEstimate& estimate,
                                                               std::size_t& count) {
  auto features = estimate.features;
  count = estimate.count;
  const double start = std::max(model.start_up.value, 1e-7);
  features[count++] = static_cast<float>(physical_time(model, estimate) / start);
  features[count++] =
      static_cast<float>(estimate.compute_s / model.compute_efficiency /
                         std::max(estimate.memory_s / model.memory_efficiency, 1e-12));
  return features;
}

Cost library_cost(const LibraryModel& model, const KernelEstimate& estimate, const char* equation,
                  const char* op_class) {
  GPUTWIN_CHECK(model.known(), "only kinds with constants are priced");
  double factor = 1.0;
  const double physical = physical_time(model, estimate);
  Cost cost;
  cost.low = kLow, cost.high = kHigh;
  if (model.residual) {
    std::size_t count = 0;
    const auto features = features_with(model, estimate, count);
    factor = model.residual->factor({features.data(), count});
    const IntervalBand& band = model.residual->band(physical * factor);
    cost.low = band.low, cost.high = band.high;
  }
  cost.time = Seconds(physical * factor);
  cost.terms[static_cast<std::size_t>(Term::StartUp)] = model.start_up * (estimate.starts * factor);
  cost.terms[static_cast<std::size_t>(Term::Compute)] =
      Seconds(estimate.compute_s / model.compute_efficiency * factor);
  cost.terms[static_cast<std::size_t>(Term::Memory)] =
      Seconds(estimate.memory_s / model.memory_efficiency * factor);
  cost.extrapolated = !model.residual;
  cost.model = equation;
  cost.op_class = op_class;
  return cost;
}

}  // namespace gputwin
