#include "hwmodels/kernels/pointwise.h"

#include <algorithm>
#include <array>

namespace gputwin {

namespace {

constexpr double kElementsPerCta = 1024;

struct Name {
  std::string_view name;
  int number;
};

template <std::size_t n>
int number_of(const std::array<Name, n>& names, std::string_view name, int absent) {
  for (const Name& known : names) {
    if (known.name == name) return known.number;
  }
  return absent;
}

}  // namespace

int pointwise_operation(std::string_view name) {
  // Alike ones have neighbouring numbers: one input, two inputs, dear functions, row by row.
  constexpr std::array kNames{Name{"relu", 1},
                              Name{"addu", 2},
                              Name{"mulu", 3},
                              Name{"divu", 4},
                              Name{"powu", 5},
                              Name{"tanh", 6},
                              Name{"gelu", 7},
                              Name{"add", 8},
                              Name{"mul", 9},
                              Name{"div", 10},
                              Name{"pow", 11},
                              Name{"mlp_act", 12},
                              Name{"attn_rope", 13},
                              Name{"emb", 14},
                              Name{"quantize", 15},
                              Name{"softmax", 20},
                              Name{"ln", 21},
                              Name{"input_layernorm", 22},
                              Name{"post_attention_layernorm", 23},
                              Name{"rms_norm fwd", 24},
                              Name{"layer_norm fwd", 25},
                              Name{"rms_norm bwd", 26},
                              Name{"layer_norm bwd", 27}};
  return number_of(kNames, name, -1);
}

int pointwise_library(std::string_view name) {
  constexpr std::array kNames{Name{"torch-2.1", 1},    Name{"sarathi", 2}, Name{"trtllm", 3},
                              Name{"vllm", 4},         Name{"cudnn", 5},   Name{"pytorch", 6},
                              Name{"torch_compile", 7}};
  return number_of(kNames, name, 0);
}

KernelEstimate estimate(const Device& device, const PointwiseShape& s) {
  KernelEstimate e;
  const auto rows = static_cast<double>(s.rows), columns = static_cast<double>(s.columns);
  e.memory_s = s.bytes / device.memory_bandwidth.value;
  e.push(rows);
  e.push(columns);
  e.push(rows * columns);
  e.push(s.operation);
  e.push(s.library);
  e.push(s.bits);
  e.push(s.bytes);
  e.push(s.bytes / static_cast<double>(std::max<std::int64_t>(1, device.l2.value)));
  e.push(columns * s.bits / 8);
  // Elements that one load can take: rows that are not aligned are read one by one.
  e.push(s.columns % 8 == 0 ? 8 : s.columns % 4 == 0 ? 4 : s.columns % 2 == 0 ? 2 : 1);
  e.push(rows * columns / kElementsPerCta / device.sms);
  e.push(static_cast<double>(device.architecture));
  return e;
}

Cost pointwise_cost(const Device& device, const PointwiseShape& shape) {
  const LibraryModel& model = device.library[static_cast<std::size_t>(shape.kind)];
  if (!model.known()) return {};
  return library_cost(model, estimate(device, shape), "(t0 + bytes / BW) x correction",
                      "memory_bound");
}

}  // namespace gputwin
