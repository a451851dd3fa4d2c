#include "hwmodels/kernels/exchange.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

namespace gputwin {

namespace {

constexpr double kPcieGen4 = 31.5e9;      // bytes/s per direction, 16 lanes
constexpr double kAdapter = 50e9;         // bytes/s of one GPU's adapter: 400 Gb/s, assumed
constexpr std::int32_t kGpusPerNode = 8;  // assumed where a row does not say
constexpr int kSuperchipGpus = 4;         // of a compute tray of GB200 and GB300 (NVL72)
constexpr double kScaleBlock = 128;       // elements that share one 4-byte scale in 8 bits

double real(std::int64_t v) { return static_cast<double>(v); }

double link_of(const Device& device) {
  return device.nvlink.nominal.value > 0 ? device.nvlink.nominal.value : kPcieGen4;
}

// Ranks of a group that spans `nodes` nodes.
double ranks_of(const Device& device, std::int32_t nodes) {
  const bool tray = device.name.starts_with("gb");
  return static_cast<double>(nodes) * (tray ? kSuperchipGpus : kGpusPerNode);
}

Cost cost_of(LibraryKernel kernel, const Device& device, const KernelEstimate& e,
             const char* equation, const char* op_class) {
  const LibraryModel& model = device.library[static_cast<std::size_t>(kernel)];
  return model.known() ? library_cost(model, e, equation, op_class) : Cost{};
}

}  // namespace

int exchange_framework(std::string_view name) {
  constexpr std::array<std::string_view, 3> kNames{"sglang", "vllm", "trtllm"};
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  return found == kNames.end() ? 0 : static_cast<int>(found - kNames.begin()) + 1;
}

double version_number(std::string_view version) {
  constexpr int kParts = 4;
  double number = 0;
  int parts = 0;
  for (std::size_t i = 0; i < version.size() && parts < kParts;) {
    if (std::isdigit(static_cast<unsigned char>(version[i])) == 0) {
      ++i;
      continue;
    }
    double part = 0;
    while (i < version.size() && std::isdigit(static_cast<unsigned char>(version[i])) != 0) {
      part = 10 * part + (version[i++] - '0');
    }
    number = 100 * number + std::min(part, 99.0);
    ++parts;
  }
  for (; parts < kParts; ++parts) number *= 100;
  return number;
}

LibraryKernel kernel_of(const AllReduceShape& s) {
  return s.eager ? LibraryKernel::AllReduceEager : LibraryKernel::AllReduceGraph;
}

LibraryKernel kernel_of(const ExpertExchangeShape& s) {
  return s.low_latency ? LibraryKernel::ExpertsLowLatency : LibraryKernel::ExpertsNormal;
}

KernelEstimate estimate(const Device& device, const AllReduceShape& s) {
  const double n = s.ranks;
  KernelEstimate e;
  e.memory_s = 2 * (n - 1) / n * s.bytes / link_of(device);
  e.compute_s = 2 * s.bytes / device.memory_bandwidth.value;
  e.push(s.bytes);
  e.push(n);
  e.push(s.framework);
  e.push(s.version);
  e.push(device.memory_bandwidth.value * 1e-9);
  e.push(static_cast<double>(device.architecture));
  return e;
}

KernelEstimate estimate(const Device& device, const ExpertExchangeShape& s) {
  const double ranks = ranks_of(device, s.nodes), top_k = real(s.top_k);
  // A token is sent once to each rank that holds one of its experts; low latency sends it once to
  // each expert.
  const double copies = s.low_latency ? top_k : ranks * (1 - std::pow(1 - 1 / ranks, top_k));
  const double token =
      s.combine ? 2 * real(s.hidden) : real(s.hidden) + 4 * std::ceil(real(s.hidden) / kScaleBlock);
  const double bytes = real(s.tokens) * copies * token;
  const double outside = s.nodes > 1 ? 1 - 1.0 / s.nodes : 0.0;
  const double inside = (1 - outside) * (1 - s.nodes / ranks);
  KernelEstimate e;
  e.memory_s = bytes * (inside / link_of(device) + outside / kAdapter);
  if (s.sms > 0) {
    e.compute_s = bytes / device.memory_bandwidth.value * device.sms / s.sms;
  }
  for (const double v : {real(s.tokens), real(s.hidden), top_k, real(s.experts)}) e.push(v);
  e.push(s.sms);
  e.push(s.nodes);
  e.push(ranks);
  e.push(s.combine ? 1 : 0);
  e.push(s.version);
  e.push(copies);
  e.push(bytes);
  e.push(static_cast<double>(device.architecture));
  return e;
}

Cost all_reduce_cost(const Device& device, const AllReduceShape& s) {
  return cost_of(kernel_of(s), device, estimate(device, s),
                 "all-reduce in a node: (t0 + 2 (n-1)/n S / link + memory) x correction",
                 "collective");
}

Cost expert_exchange_cost(const Device& device, const ExpertExchangeShape& s) {
  return cost_of(kernel_of(s), device, estimate(device, s),
                 "tokens to experts: (t0 + copies / link | through the SMs) x correction",
                 "collective");
}

}  // namespace gputwin
