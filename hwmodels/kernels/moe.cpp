#include "hwmodels/kernels/moe.h"

#include <algorithm>
#include <cmath>

namespace gputwin {

namespace {

constexpr double kLeastBlock = 16, kMostBlock = 128;  // rows of one expert that a tile holds
constexpr double kTileColumns = 128;

double real(std::int64_t v) { return static_cast<double>(v); }

// Share of all rows that the busiest rank gets, times the number of ranks, if the popularity of an
// expert is drawn from p(x) ~ x^-a between 1 and 0.8 tokens (the sampling of the benchmark's
// power-law rows): mean plus the expected maximum of `ranks` sums of `local` draws.
double busiest(const MoeShape& s, double ranks, double local) {
  if (s.skew <= 0 || ranks <= 1) return 1;
  const double a = s.skew, most = std::max(2.0, 0.8 * real(s.tokens));
  const double norm = (1 - a) / (std::pow(most, 1 - a) - 1);
  const double mean = norm * (std::pow(most, 2 - a) - 1) / (2 - a);
  const double square = norm * (std::pow(most, 3 - a) - 1) / (3 - a);
  const double deviation = std::sqrt(std::max(0.0, square - mean * mean) / local);
  const double expected = 1 + deviation / mean * std::sqrt(2 * std::log(ranks));
  // No draw is above `most`, no rank gets more than everything.
  return std::min({expected, most / mean, ranks});
}

}  // namespace

int moe_library(std::string_view kernel, std::string_view dtype) {
  struct Name {
    std::string_view kernel;
    int number;
  };
  constexpr std::array kNames{Name{"sglang_fused_moe_triton", 1},
                              Name{"moe_torch_flow_triton_fp8_block", 2},
                              Name{"moe_torch_flow_cutlass", 4},
                              Name{"moe_torch_flow_nongated", 5},
                              Name{"deepgemm", 6},
                              Name{"sglang_flashinfer_cutedsl_moe", 7},
                              Name{"moe_torch_flow_min_latency", 8}};
  for (const Name& name : kNames) {
    if (name.kernel == kernel) return 2 * name.number + (dtype == "fp8_block" ? 1 : 0);
  }
  return 0;
}

KernelEstimate estimate(const Device& device, const MoeShape& s) {
  const double ranks = real(s.expert_parallel);
  const double experts = std::max(1.0, real(s.experts) / ranks);
  const double even = real(s.tokens * s.top_k) / ranks;
  // A token goes to an expert once.
  const double rows = std::min(even * busiest(s, ranks, experts), real(s.tokens) * experts);
  const double active = experts * (1 - std::pow(1 - 1 / experts, std::max(1.0, rows)));
  const double each = std::max(1.0, rows / active);
  const double block = std::clamp(std::exp2(std::ceil(std::log2(each))), kLeastBlock, kMostBlock);
  const double padded = std::ceil(each / block) * block;
  const double inner = std::max(1.0, real(s.intermediate) / real(s.tensor_parallel));
  const double products = s.gated ? 3 : 2;
  const double tiles = active * padded / block * std::ceil((products - 1) * inner / kTileColumns);
  const double per_sm = tiles / device.sms;
  KernelEstimate e;
  e.compute_s = 2 * active * padded * real(s.hidden) * inner * products /
                device.dense_peak(s.dtype).value * std::max(1.0, std::ceil(per_sm) / per_sm / 4);
  const double weights = active * products * real(s.hidden) * inner * bits(s.dtype) / 8;
  const double activations =
      rows * (2 * real(s.hidden) + products * inner) * 2 + real(s.tokens) * real(s.hidden) * 4;
  e.memory_s = (weights + activations) / device.memory_bandwidth.value;
  for (const std::int64_t v : {s.tokens, s.hidden, s.intermediate, s.top_k, s.experts}) {
    e.push(real(v));
  }
  e.push(s.library);
  e.push(bits(s.dtype));
  e.push(s.skew);
  e.push(each);
  e.push(active);
  e.push(per_sm);
  e.push(std::ceil(per_sm) / per_sm);
  e.push(padded / each);
  e.push(weights);
  e.push(real(s.expert_parallel));
  e.push(rows);
  e.push(rows / even);
  return e;
}

Cost moe_cost(const Device& device, const MoeShape& shape) {
  const LibraryModel& model = device.library[static_cast<std::size_t>(LibraryKernel::Moe)];
  if (!model.known()) return {};
  return library_cost(model, estimate(device, shape),
                      "fused experts: (t0 + padded rows / rate | weights / BW) x correction",
                      "moe");
}

}  // namespace gputwin
