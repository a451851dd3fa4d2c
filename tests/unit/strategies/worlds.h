// Small models, clusters and jobs for the tests of strategies, and counting over plans.
#pragma once

#include <functional>
#include <string>

#include "sim/core/cluster.h"
#include "sim/core/job.h"
#include "sim/core/layout.h"
#include "sim/core/plan.h"
#include "sim/core/workload.h"

namespace gputwin {

/// 4 layers, hidden 8, 4 heads of 2, ffn 32, vocabulary 16; GPT style: LayerNorm, biases, learned
/// positions.
Transformer tiny_gpt();
/// The same sizes in Llama style: RMSNorm, SwiGLU, rope, 2 key/value heads, no biases, separate
/// head.
Transformer tiny_llama();

/// `gpus` GPUs in one node.
Cluster one_node(std::int32_t gpus);

/// Sequences of 4 tokens, unfused attention, BF16 with F32 gradients, stack "megatron-core".
Job tiny_job(std::int64_t global_batch);

/// Plan of a layout that must be feasible.
Plan plan_of(const Transformer& model, const Layout& layout, const Job& job);

/// Instructions of a program's body that `match`.
std::int64_t count(const Plan& plan, std::uint32_t program,
                   const std::function<bool(const Instruction&)>& match);
/// Tasks with this phase, layer and op kind in micro-batch 0.
std::int64_t count_ops(const Plan& plan, Phase phase, std::int32_t layer, OpKind kind);

}  // namespace gputwin
