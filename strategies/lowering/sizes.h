// Local sizes of one rank, worked out once from the model, the layout and the job.
#pragma once

#include <cmath>
#include <cstdint>

#include "sim/core/job.h"
#include "sim/core/layout.h"
#include "sim/core/workload.h"

namespace gputwin {

/// Counts of elements on one rank. "Local" means after division by tp.
struct Sizes {
  std::int64_t sequences = 0;     // of a micro-batch
  std::int64_t sequence = 0;      // tokens of one on this rank: 1/cp of it
  std::int64_t positions = 0;     // tokens of one whole sequence
  std::int64_t tokens = 0;        // of a micro-batch on this rank
  std::int64_t shard_tokens = 0;  // tokens / tp with sequence parallelism, else tokens
  std::int64_t hidden = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;         // local
  std::int64_t query_width = 0, kv_width = 0, qkv_width = 0;  // local
  std::int64_t context_width = 0;                             // local
  std::int64_t ffn = 0, fc1_width = 0;                        // local
  std::int64_t vocab = 0;                                     // local
  std::int64_t adapter = 0;                                   // rank of low-rank adapters; 0: none
  bool adapters_on_qkv_only = false;
  std::int64_t experts = 0, local_experts = 0;  // of the layer, on one rank of the expert group
  std::int64_t expert_capacity = 0;             // rows that one rank sends to one expert, padded
  std::int64_t expert_rows = 0;                 // rows that one rank sends, and that it receives
  DType activation = DType::Bf16;               // of stored activations
  DType gemm = DType::Bf16;                     // of the layers' matrix multiplies
};

inline Sizes local_sizes(const Transformer& m, const Layout& layout, const Job& job) {
  const std::int64_t tp = layout.tp;
  Sizes s;
  s.sequences = layout.micro_batch;
  s.positions = job.sequence;
  s.sequence = job.sequence / layout.cp;
  s.tokens = s.sequences * s.sequence;
  s.shard_tokens = layout.sp ? s.tokens / tp : s.tokens;
  s.hidden = m.hidden;
  s.heads = m.heads / tp;
  s.kv_heads = m.kv_heads / tp;
  s.head_dim = m.head_dim;
  s.query_width = m.query_width() / tp;
  s.kv_width = m.kv_width() / tp;
  s.qkv_width = m.qkv_width() / tp;
  s.ffn = m.ffn / tp;
  s.fc1_width = m.fc1_width() / tp;
  s.context_width = m.context_width() / tp;
  s.vocab = m.vocab / tp;
  if (m.has_experts()) {
    s.experts = m.moe.experts;
    s.local_experts = m.moe.experts / layout.ep;
    const double factor = m.moe.capacity_factor > 0 ? m.moe.capacity_factor : 1.0;
    const double even =
        static_cast<double>(s.shard_tokens * m.moe.top_k) / static_cast<double>(m.moe.experts);
    s.expert_capacity = static_cast<std::int64_t>(std::ceil(factor * even - 1e-9));
    s.expert_rows = s.experts * s.expert_capacity;
  }
  s.adapter = job.lora_rank;
  s.adapters_on_qkv_only = job.lora_qkv_only;
  s.gemm = job.precision.compute;
  // Formats below 16 bits are for matrix multiplies alone; TF32 is how F32 operands are multiplied.
  s.activation = bits(s.gemm) < 16 ? DType::Bf16 : s.gemm == DType::Tf32 ? DType::F32 : s.gemm;
  return s;
}

}  // namespace gputwin
