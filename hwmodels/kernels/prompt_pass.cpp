#include "hwmodels/kernels/prompt_pass.h"

#include <array>

namespace gputwin {

namespace {

constexpr double kPartsOfLayer = 4;

}  // namespace

PromptPassShape served_model(std::string_view name) {
  struct Known {
    std::string_view name;
    PromptPassShape shape;
  };
  // Touvron et al. 2023 (Llama 2), Workshop BigScience 2022 (BLOOM).
  const std::array known{
      Known{"llama2-7b", {32, 4096, 4096, 11008, 32000, true}},
      Known{"llama2-13b", {40, 5120, 5120, 13824, 32000, true}},
      Known{"llama2-70b", {80, 8192, 1024, 28672, 32000, true}},
      Known{"bloom-176b", {70, 14336, 14336, 4 * 14336, 250880, false}},
  };
  for (const Known& k : known) {
    if (k.name == name) return k.shape;
  }
  return {};
}

KernelEstimate estimate(const Device& device, const PromptPassShape& s) {
  const auto real = [](std::int64_t v) { return static_cast<double>(v); };
  const double tokens = real(s.batch) * real(s.prompt), h = real(s.hidden);
  const double layer =
      h * (2 * h + 2 * real(s.kv_width)) + (s.gated ? 3 : 2) * h * real(s.feed_forward);
  const double weights = real(s.layers) * layer + real(s.vocabulary) * h;
  const double attention = 2 * real(s.layers) * tokens * real(s.prompt) * h;  // the causal half
  const double flops =
      2 * real(s.layers) * layer * tokens + attention + 2 * real(s.vocabulary) * h * real(s.batch);
  const double n = s.tensor_parallel;
  const double reduced = n > 1 ? 2 * real(s.layers) * 2 * (n - 1) / n * tokens * h * 2 : 0.0;
  KernelEstimate e;
  e.compute_s = flops / n / device.dense_peak(DType::F16).value;
  e.memory_s = 2 * weights / n / device.memory_bandwidth.value;
  if (device.nvlink.nominal.value > 0) e.memory_s += reduced / device.nvlink.nominal.value;
  e.starts = kPartsOfLayer * real(s.layers);
  e.push(tokens);
  e.push(real(s.prompt));
  e.push(real(s.batch));
  e.push(n);
  e.push(h);
  return e;
}

Cost prompt_pass_cost(const Device& device, const PromptPassShape& s) {
  const LibraryModel& model = device.library[static_cast<std::size_t>(LibraryKernel::PromptPass)];
  if (s.layers == 0 || !model.known()) return {};
  return library_cost(model, estimate(device, s),
                      "prompt: (layers t0 + FLOPs / rate | weights / BW + all-reduce) x correction",
                      "whole model");
}

}  // namespace gputwin
