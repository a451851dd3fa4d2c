// Which kernels and habits a software stack has: the documented table behind every lowered kernel
// list.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "sim/core/job.h"
#include "sim/core/layout.h"

namespace gputwin {

/// Pipeline messages: the host waits for each, waits unless stages have several chunks, never
/// waits.
enum class Messages : std::uint8_t { Blocking, OverlappedIfInterleaved, Overlapped };

/// What one family of training software launches for a Transformer layer, apart from the GEMMs.
///
/// A stack name selects the family whose `family` is its longest prefix: "megatron-core-0.12" is
/// "megatron-core". The attention kernel is the job's own choice (Job::attention), not the stack's.
struct StackKernels {
  std::string_view family;
  std::string_view description;
  bool fused_bias_activation =
      true;  // bias of fc1 added by the activation kernel, else by the GEMM
  bool fused_bias_dropout_add = true;  // one kernel, else bias add, dropout and residual add apart
  bool fused_softmax = true;           // scale, mask and softmax in one kernel, else the mask apart
  bool fused_residual_grad =
      false;                // norm backward adds the residual's gradient, else an add kernel
  bool fp32_logits = true;  // logits are cast to F32 before the loss
  bool async_tensor_parallel =
      true;  // the input gradient's collective runs under the weight gradient
  bool overlap_grad_reduce = true;  // can reduce gradient buckets under the backward pass
  // With GEMMs of 8 or 4 bits (quantize.h):
  bool fused_norm_quantize = true;         // delayed scaling: the norm writes its output in 8 bits
  bool fused_activation_quantize = false;  // the same of the activation function
  bool fused_bias_quantize =
      true;  // delayed, MX: the gradient's copy kernel sums the bias gradient
  bool scatter_gather_pipeline =
      false;                           // a pipeline message is sent as 1/tp and gathered on arrival
  bool recompute_stops_early = false;  // torch's non-reentrant checkpoint: what follows the last
                                       // tensor backward needs is left out
  bool optimizer_passes = true;  // gradients unscaled (fp16) and clipped and weights copied from
                                 // their master in passes of their own, else inside the step
  bool gradients_apart = false;  // F32 gradients are summed from 16-bit ones of each micro-batch
  // A 16-bit tensor of the weight's size is handed to autograd in place of the gradient that the
  // kernel has already added to the F32 one (Transformer Engine's get_dummy_wgrad, one by shape and
  // kept; Megatron's LinearWithGradAccumulationAndAsyncCommunication for the head).
  bool dummy_weight_grads = false;
  // Kernels, or other steps of the host, for each expert of a grouped product or copy; 0: one
  // kernel for all of them.
  std::uint8_t launches_per_expert = 0;
  Messages messages = Messages::OverlappedIfInterleaved;
  // Gradients of a bucket, in bytes; 0: 40 million of them, as Megatron.
  std::int64_t bucket_bytes = 0;
  // Hybrid sharding: gradients are summed over the copies after the last micro-batch, not after
  // each.
  bool sums_copies_once = false;
};

/// All families, in a fixed order.
std::span<const StackKernels> stack_kernels();

/// The family of a stack name; null if there is none.
const StackKernels* find_stack(std::string_view stack);

/// Parameters of a gradient bucket: the layout's, or the stack's where that is 0.
std::int64_t bucket_elements(const Layout& layout, const Job& job);

/// The family of a stack name, or the nearest one: "torch" with sharded gradients (ZeRO 2 and 3,
/// which is FSDP there), else "megatron".
const StackKernels& nearest_stack(std::string_view stack, std::int32_t zero);

}  // namespace gputwin
