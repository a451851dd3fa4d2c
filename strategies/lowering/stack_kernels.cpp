#include "strategies/lowering/stack_kernels.h"

#include <array>

namespace gputwin {
namespace {

// What calls one torch operator after another and checkpoints as torch does.
constexpr StackKernels torch_operators(std::string_view family, std::string_view description) {
  return {.family = family,
          .description = description,
          .fused_bias_activation = false,
          .fused_bias_dropout_add = false,
          .fused_softmax = false,
          .async_tensor_parallel = false,
          .recompute_stops_early = true,
          .optimizer_passes = false,
          .messages = Messages::Overlapped};
}

// Sources: the repositories' own code and change logs. Megatron-LM v1.1.5 to v2.4 for 2019 to 2021
// (fused kernels in megatron/fused_kernels and megatron/model/fused_*; scatter/gather in
// p2p_communication.py), v3.0 for 2022 (sequence parallelism and asynchronous tensor-parallel
// all-reduce in core/tensor_parallel), megatron/core for the rest; Grattafiori et al. 2024, section
// 3.3.2, for meta. Transformer Engine under Megatron Core: its LayerNormLinear fuses norm and cast,
// while Megatron's own bias_swiglu and bias_gelu write 16 bits. FSDP stacks: the model code they
// train (MPT in LLM Foundry for Composer, Hugging Face's for NeMo AutoModel, lit_gpt/model.py)
// calls one torch operator after another; torchtitan compiles each layer (torchtitan/parallelisms),
// which fuses what is pointwise. Zhang et al. 2022, section 3.4, for MiCS.
constexpr auto kStacks = std::to_array<StackKernels>({
    {.family = "megatron-lm-2019",
     .description = "Megatron-LM before fused pointwise kernels",
     .fused_bias_activation = false,
     .fused_bias_dropout_add = false,
     .fused_softmax = false,
     .async_tensor_parallel = false,
     .overlap_grad_reduce = false,
     .messages = Messages::Blocking},
    {.family = "megatron-lm-2020",
     .description = "Megatron-LM 2.0: fused bias-GeLU, bias-dropout-add and scale-mask-softmax",
     .async_tensor_parallel = false,
     .overlap_grad_reduce = false,
     .messages = Messages::Blocking},
    {.family = "megatron-lm-2021",
     .description =
         "Megatron-LM of the SC'21 paper: as 2020, with scatter/gather pipeline messages",
     .async_tensor_parallel = false,
     .overlap_grad_reduce = false,
     .scatter_gather_pipeline = true,
     .messages = Messages::Blocking},
    {.family = "megatron-lm-2022",
     .description =
         "Megatron-LM 3.0: sequence parallelism, asynchronous tensor-parallel collectives",
     .overlap_grad_reduce = false,
     .scatter_gather_pipeline = true,
     .messages = Messages::Blocking},
    {.family = "megatron-lm-2023",
     .description = "Megatron-LM of 2023: as Megatron Core, pipeline messages still awaited",
     .messages = Messages::Blocking},
    {.family = "megatron-core-2026",
     .description = "Megatron Core as SimuMax measured it: tensor parallelism not overlapped",
     .async_tensor_parallel = false,
     .dummy_weight_grads = true},
    {.family = "megatron-bridge-nemo-25.09",
     .description = "Megatron Bridge with a capacity: experts' products one by one",
     .dummy_weight_grads = true,
     .launches_per_expert = 5},
    {.family = "megatron-bridge-nemo-25",
     .description = "Megatron Bridge of 2025: experts' products one by one",
     .dummy_weight_grads = true,
     .launches_per_expert = 10},
    {.family = "megatron-bridge-nemo-26.02",
     .description = "Megatron Bridge of early 2026: experts' products one by one",
     .dummy_weight_grads = true,
     .launches_per_expert = 10},
    {.family = "megatron-bridge-2026",
     .description = "Megatron Bridge's examples of 2026, taken as those of 26.02",
     .dummy_weight_grads = true,
     .launches_per_expert = 10},
    {.family = "megatron",
     .description = "Megatron Core and what is built on it: overlapped gradient reduction",
     .dummy_weight_grads = true},
    {.family = "nemo", .description = "NeMo on Megatron Core", .dummy_weight_grads = true},
    {.family = "megatron-deepspeed",
     .description = "Megatron kernels under DeepSpeed: full pipeline messages, nothing overlapped",
     .async_tensor_parallel = false,
     .overlap_grad_reduce = false,
     .gradients_apart = true,
     .messages = Messages::Blocking},
    {.family = "deepspeed",
     .description = "DeepSpeed with Megatron kernels",
     .async_tensor_parallel = false,
     .messages = Messages::Blocking},
    {.family = "deepspeedexamples",
     .description = "DeepSpeed with the Megatron-LM of 2019 in its examples: unfused kernels",
     .fused_bias_activation = false,
     .fused_bias_dropout_add = false,
     .fused_softmax = false,
     .async_tensor_parallel = false,
     .messages = Messages::Blocking},
    {.family = "deepspeed-zero3",
     .description = "DeepSpeed ZeRO-3 with Megatron kernels: gathers and reductions overlapped",
     .async_tensor_parallel = false,
     .messages = Messages::Blocking},
    {.family = "meta",
     .description = "Meta's PyTorch stack of Llama 3: fused kernels, everything overlapped",
     .recompute_stops_early = true,
     .optimizer_passes = false,
     .messages = Messages::Overlapped},
    // Buckets: torch.nn.parallel.DistributedDataParallel, bucket_cap_mb = 25.
    {.family = "torch",
     .description = "Plain PyTorch with DistributedDataParallel or FSDP: unfused pointwise kernels",
     .fused_bias_activation = false,
     .fused_bias_dropout_add = false,
     .fused_softmax = false,
     .async_tensor_parallel = false,
     .fused_norm_quantize = false,
     .fused_bias_quantize = false,
     .recompute_stops_early = true,
     .optimizer_passes = false,
     .messages = Messages::Overlapped,
     .bucket_bytes = 25 << 20},
    torch_operators("mosaic-composer-fsdp",
                    "LLM Foundry's MPT under Composer and FSDP: torch operators, flash attention"),
    torch_operators("patrickstar",
                    "Hugging Face's BERT under PatrickStar: torch operators, chunks gathered"),
    torch_operators("nemo-automodel", "Hugging Face models under FSDP2: torch operators"),
    torch_operators("lit-gpt", "Lit-GPT under FSDP: torch operators"),
    {.family = "sagemaker-mics",
     .description = "MiCS: torch operators, copies of hybrid sharding summed once an iteration",
     .fused_bias_activation = false,
     .fused_bias_dropout_add = false,
     .fused_softmax = false,
     .async_tensor_parallel = false,
     .sums_copies_once = true},
    {.family = "torchtitan",
     .description = "torchtitan under FSDP2, layers compiled: pointwise kernels fused",
     .fused_residual_grad = true,
     .recompute_stops_early = true,
     .optimizer_passes = false,
     .messages = Messages::Overlapped},
    {.family = "generic",
     .description = "A well-fused stack: residual gradients added by the norm's backward kernel",
     .fused_residual_grad = true,
     .fused_activation_quantize = true,
     .optimizer_passes = false,
     .messages = Messages::Overlapped},
});

}  // namespace

std::span<const StackKernels> stack_kernels() { return kStacks; }

std::int64_t bucket_elements(const Layout& layout, const Job& job) {
  constexpr std::int64_t kMegatron = 40'000'000;
  if (layout.bucket_elements > 0) return layout.bucket_elements;
  const StackKernels* stack = find_stack(job.stack);
  if (stack == nullptr || stack->bucket_bytes == 0) return kMegatron;
  return stack->bucket_bytes * 8 / bits(job.precision.grads);
}

const StackKernels* find_stack(std::string_view stack) {
  const StackKernels* best = nullptr;
  for (const StackKernels& s : kStacks) {
    if (!stack.starts_with(s.family)) continue;
    if (best == nullptr || s.family.size() > best->family.size()) best = &s;
  }
  return best;
}

const StackKernels& nearest_stack(std::string_view stack, std::int32_t zero) {
  const StackKernels* known = find_stack(stack);
  return known != nullptr ? *known : *find_stack(zero >= 2 ? "torch" : "megatron");
}

}  // namespace gputwin
