#include "hwmodels/kernels/attention_shape.h"

#include <algorithm>
#include <cmath>

namespace gputwin {

namespace {

constexpr double kTile = 128;      // columns of a tile, and most of its rows
constexpr double kLeastRows = 16;  // of a tile: what one matrix instruction takes
constexpr double kPasses = 8;      // over the scores in memory, by attention that is not fused

// Tiles of one head, and of its longest row.
struct Tiles {
  double all = 0, longest = 0;
};

// Rows of a tile: short sequences get smaller ones.
double tile_rows(const AttentionShape& a) {
  double rows = kLeastRows;
  while (rows < kTile && rows < static_cast<double>(a.queries)) rows *= 2;
  return rows;
}

Tiles tiles_of(const AttentionShape& a) {
  const double rows = std::ceil(static_cast<double>(a.queries) / tile_rows(a));
  const double cols = std::ceil(static_cast<double>(a.keys) / kTile);
  if (!a.causal && a.window == 0) return {rows * cols, cols};
  const double before = std::max(0.0, cols - rows);
  // A row of tiles reaches back over the window at most, and the tile the diagonal is in.
  const double reach = a.window > 0 ? std::ceil(static_cast<double>(a.window) / kTile) + 1 : cols;
  double all = 0;
  if (reach >= cols) {
    all = rows * before + 0.5 * rows * (rows + 1);
  } else {
    // Rows that see less than the window: before + r for r = 1 .. short.
    const double few = std::clamp(reach - before, 0.0, rows);
    all = few * before + 0.5 * few * (few + 1) + (rows - few) * reach;
  }
  return {all, std::min(cols, reach)};
}

}  // namespace

int attention_library(std::string_view framework, std::string_view kernel) {
  struct Name {
    std::string_view framework, kernel;
    int number;
  };
  // Kernels that share code have neighbouring numbers.
  constexpr std::array kNames{Name{"sglang", "flash_attention", 1},
                              Name{"vllm", "vllm_flash_attn", 2},
                              Name{"", "pyt_flash_attention", 3},
                              Name{"", "pytorch_flash", 3},
                              Name{"", "flash_attention", 3},
                              Name{"sglang", "fa3", 4},
                              Name{"vllm", "vllm_flash_attn_fa3", 5},
                              Name{"vllm", "vllm_flash_attn_fa4", 6},
                              Name{"trtllm", "torch_flow", 7},
                              Name{"trtllm", "torch_flow_flashinfer", 8},
                              Name{"sglang", "trtllm_mha", 9},
                              Name{"", "cudnn", 10},
                              Name{"", "cudnn_fe", 11},
                              Name{"", "cudnn_fe_fp8", 11},
                              Name{"", "pyt_cudnn", 12},
                              Name{"te", "sdp", 13},
                              Name{"sglang", "triton", 14},
                              Name{"", "pyt_math", kUnfusedAttention}};
  for (const Name& name : kNames) {
    if (name.framework == framework && name.kernel == kernel) return name.number;
  }
  return 0;
}

LibraryKernel kernel_of(const AttentionShape& a) {
  const bool vllm = a.library == 2 || a.library == 5 || a.library == 6;
  const bool trtllm = a.library == 7 || a.library == 8;
  const bool unfused = a.library == kUnfusedAttention;
  switch (a.phase) {
    case AttentionShape::Phase::Prefill:
      return trtllm ? LibraryKernel::PrefillTrtLlm
             : vllm ? LibraryKernel::PrefillVllm
                    : LibraryKernel::PrefillSglang;
    case AttentionShape::Phase::Decode:
      return trtllm ? LibraryKernel::DecodeTrtLlm
             : vllm ? LibraryKernel::DecodeVllm
                    : LibraryKernel::DecodeSglang;
    case AttentionShape::Phase::Forward:
      return unfused ? LibraryKernel::UnfusedForward : LibraryKernel::AttentionForward;
    case AttentionShape::Phase::Backward:
      return unfused ? LibraryKernel::UnfusedBackward : LibraryKernel::AttentionBackward;
  }
  return LibraryKernel::AttentionForward;
}

KernelEstimate estimate(const Device& device, const AttentionShape& a) {
  const Tiles tiles = tiles_of(a);
  const bool backward = a.phase == AttentionShape::Phase::Backward;
  const bool decode = a.phase == AttentionShape::Phase::Decode;
  const auto real = [](std::int64_t v) { return static_cast<double>(v); };
  const double rate = device.dense_peak(a.dtype).value;
  const double head = real(a.head_size + a.value_size);
  const double tile_flops = (backward ? 5.0 : 2.0) * tile_rows(a) * kTile * head;
  const double heads = real(a.batch * a.heads);
  const double rows = std::ceil(real(a.queries) / tile_rows(a));
  // Heads that share keys are packed into one tile when there is one query.
  const double ctas = decode ? real(a.batch * a.kv_heads) : heads * rows;
  const double per_sm = ctas / device.sms;
  KernelEstimate e;
  const double all = decode ? ctas * tiles.all * tile_flops : heads * tiles.all * tile_flops;
  const double longest = decode ? 0 : tiles.longest * tile_flops * device.sms;
  e.compute_s = std::max(all, longest) / rate;
  const double kept =
      a.window > 0 ? std::min(real(a.keys), real(a.window + a.queries)) : real(a.keys);
  const double kv = real(a.batch * a.kv_heads) * kept * head * bits(a.kv_dtype) / 8;
  const double qo = heads * real(a.queries) * head * bits(a.dtype) / 8;
  const double scores = a.library == kUnfusedAttention
                            ? kPasses * heads * real(a.queries * a.keys) * bits(a.dtype) / 8
                            : 0.0;
  e.memory_s = (backward ? 2.0 : 1.0) * (kv + qo + scores) / device.memory_bandwidth.value;
  for (const std::int64_t v : {a.batch, a.queries, a.keys, a.heads, a.kv_heads, a.head_size,
                               a.value_size, a.window > 0 ? a.window : a.keys}) {
    e.push(real(v));
  }
  e.push(real(a.heads) / real(a.kv_heads));
  e.push(a.library);
  e.push(bits(a.dtype));
  e.push(bits(a.kv_dtype));
  e.push(per_sm);
  e.push(std::ceil(per_sm) / per_sm);
  e.push(longest / all);
  e.push(heads);
  e.push(kv);
  e.push(a.causal ? 1 : 0);
  e.push(a.variant);
  return e;
}

Cost attention_shape_cost(const Device& device, const AttentionShape& shape) {
  const LibraryModel& model = device.library[static_cast<std::size_t>(kernel_of(shape))];
  if (!model.known()) return {};
  return library_cost(model, estimate(device, shape),
                      "attention of a library: (t0 + tiles / rate | bytes / BW) x correction",
                      "attention");
}

}  // namespace gputwin
