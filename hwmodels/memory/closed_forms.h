// Closed forms of training memory: what a plan's buffers must add up to. Tests use them as an
// oracle, reports as an estimate; the simulator counts buffers instead.
//
// Source  activations: Korthikanti et al. 2022 (Reducing Activation Recomputation), Table 2, split
//         into its parts so that other MLP widths, gated MLPs and grouped-query attention are
//         covered; s, b, h, a, t as there. States: 2 B weight, 4 B gradient, 4 B master weight, 8 B
//         Adam moments = 18 B per parameter. Live micro-batches: Megatron-LM's schedules.
#pragma once

#include "sim/core/job.h"
#include "sim/core/layout.h"
#include "sim/core/units.h"
#include "sim/core/workload.h"

namespace gputwin {

/// What activations of one layer depend on. `sequence` is the whole sample, of which a rank holds
/// 1 / cp; exchanges of keys and values keep nothing more with a flash kernel (all-gather, ring).
struct ActivationShape {
  std::int64_t sequence = 0, micro_batch = 0;
  std::int32_t tp = 1;
  bool sequence_parallel = false;
  bool flash = false;  // no S, P and dropout mask of the scores in memory
  Recompute recompute = Recompute::None;
  std::int32_t cp = 1;
};

/// Bytes one layer keeps for the backward pass of one micro-batch on one rank, 2-byte activations.
///
/// Korthikanti (4h-wide MLP, a heads): none sbh(34 + 5as/h); tp sbh(10 + 24/t + 5as/(ht)); with
/// sequence parallelism sbh/t (34 + 5as/h); selective without the 5as/h term; full 2sbh. Block
/// counts as none here: it is a choice by layer.
double activation_bytes_per_layer(const Transformer& model, const ActivationShape& shape);

/// Bytes of weight, gradient and optimizer states per parameter held by a rank: 18, or 6 + 12 /
/// shards with a sharded optimizer.
double state_bytes_per_parameter(std::int32_t zero, std::int32_t shards);

/// Micro-batches (in units of whole stages) whose activations stage `stage` of `stages` holds at
/// the peak: GPipe M; 1F1B min(M, p - i); interleaved min(M, (p (v-1) + 2 (p-i) - 1) / v).
double live_micro_batches(Schedule schedule, std::int32_t stage, std::int32_t stages,
                          std::int32_t chunks_per_stage, std::int32_t micro_batches);

/// Bytes of weights, gradients and optimizer states (Adam: a master copy of weights below 32 bits
/// where the job has one, and two moments) per parameter that a rank holds; `zero` and `shards` cut
/// the states (1), the gradients (2) and the weights (3).
struct StateBytes {
  double weights = 0, gradients = 0, optimizer = 0;
  double total() const { return weights + gradients + optimizer; }
};
StateBytes state_bytes(const Precision& precision, std::int32_t zero, std::int32_t shards);

/// F32 logits of one micro-batch on one rank: 4 s b v / (t c).
double logits_bytes(const Transformer& model, const ActivationShape& shape);

/// What of the optimizer's states and of the parameters lies in host memory.
enum class HostOffload : std::uint8_t { None, Optimizer, OptimizerAndParameters };

struct DeepSpeedEstimate {
  double gpu = 0;                // bytes of model states per GPU
  double host = 0;               // bytes per node
  double host_without_init = 0;  // the same where the model is built whole in every process
                                 // (without zero.Init; ZeRO 3 only, else as `host`)
};

/// What DeepSpeed's estimators say of the model states of a job on nodes x gpus_per_node GPUs.
///
/// ZeRO 2: GPU 4 P + 16 P / GPUs; offloaded 2 P, host P max(4 GPUs, 16) f. ZeRO 3: GPU 4 L + 18 P /
/// GPUs; optimizer offloaded 4 L + 2 P / GPUs, host 16 P f / nodes; parameters too 4 L, host 18 P f
/// / nodes; without zero.Init at least 4 P gpus_per_node f. P parameters, L those of the largest
/// layer, f `buffer_factor`. `zero` is 2 or 3; ZeRO 2 keeps its parameters on the GPU.
/// Source  estimate_zero2_model_states_mem_needs (deepspeed/runtime/zero/stage_1_and_2.py) and
///         estimate_zero3_… (stage3.py), DeepSpeed 0.5.8 to 0.15, from knowledge of the code.
DeepSpeedEstimate deepspeed_estimate(std::int32_t zero, HostOffload offload, double parameters,
                                     double largest_layer, std::int32_t gpus_per_node,
                                     std::int32_t nodes, double buffer_factor);

}  // namespace gputwin
