// What one training iteration does, apart from how it is laid out over ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gputwin {

/// Element formats. The size of one element in bits is `bits(dtype)`.
enum class DType : std::uint8_t { F32, Tf32, F16, Bf16, F8, Mxf8, Nvf4, I64, I32, U8 };

constexpr int bits(DType d) {
  switch (d) {
    case DType::I64: return 64;
    case DType::F32:
    case DType::Tf32:
    case DType::I32: return 32;
    case DType::F16:
    case DType::Bf16: return 16;
    case DType::F8:
    case DType::Mxf8:
    case DType::U8: return 8;
    case DType::Nvf4: return 4;
  }
  return 0;
}

/// Bytes of `elements` in memory and on links, with the scale factors of hardware blocks: a byte
/// per 32 elements (MX) or per 16 (NVFP4). Source: OCP Microscaling 1.0, section 5; NVIDIA's NVFP4.
constexpr std::int64_t stored_bytes(DType d, std::int64_t elements) {
  const std::int64_t block = d == DType::Mxf8 ? 32 : d == DType::Nvf4 ? 16 : 0;
  const std::int64_t scales = block > 0 ? (elements + block - 1) / block : 0;
  return (elements * bits(d) + 7) / 8 + scales;
}

enum class Optimizer : std::uint8_t { Adam, AdamW, Sgd, Lamb };
enum class AttentionKernel : std::uint8_t { Unfused, Flash1, Flash2, Flash3, Cudnn };

constexpr bool is_flash(AttentionKernel a) { return a != AttentionKernel::Unfused; }

/// How 8- and 4-bit operands are scaled: per tensor with the maximum of earlier iterations or of
/// this one, per block, in hardware blocks of 32 (MX) or 16 (NVFP4), per row, per tensor (torch).
enum class Recipe : std::uint8_t {
  None,
  Delayed,
  Current,
  Blockwise,
  Mx,
  Nvfp4,
  Rowwise,
  Tensorwise
};

/// The recipe of a format below 16 bits where none is named: Transformer Engine's own choice.
constexpr Recipe usual_recipe(DType compute) {
  switch (compute) {
    case DType::F8: return Recipe::Delayed;
    case DType::Mxf8: return Recipe::Mx;
    case DType::Nvf4: return Recipe::Nvfp4;
    case DType::F32:
    case DType::Tf32:
    case DType::F16:
    case DType::Bf16:
    case DType::I64:
    case DType::I32:
    case DType::U8: break;
  }
  return Recipe::None;
}

struct Precision {
  DType compute = DType::Bf16;   // matrix-multiply inputs
  DType params = DType::Bf16;    // weights as used in forward and backward
  DType grads = DType::F32;      // gradients as accumulated and reduced
  Recipe recipe = Recipe::None;  // with a compute format below 16 bits
  bool master = true;            // the optimizer keeps an F32 copy of 16-bit weights
  bool operator==(const Precision&) const = default;
};

struct Job {
  std::int64_t sequence = 0;      // tokens per sample
  std::int64_t global_batch = 0;  // samples per iteration over all ranks
  Precision precision{};
  Optimizer optimizer = Optimizer::Adam;
  AttentionKernel attention = AttentionKernel::Flash2;
  std::int32_t lora_rank = 0;        // > 0: only adapters of this rank are trained
  bool lora_qkv_only = false;        // adapters beside qkv alone, else beside every linear layer
  bool fused_cross_entropy = false;  // loss and its gradient without F32 copies of the logits
  bool cuda_graph = false;           // the whole iteration is launched as one graph
  /// Load of each expert-parallel rank over the mean: factors on the time of its experts' kernels;
  /// empty: even.
  std::vector<double> expert_load{};
  std::string stack =
      "megatron-core";  // software stack family: kernel list, fusions, overlap habits
  bool operator==(const Job&) const = default;
};

}  // namespace gputwin
