// Context parallelism: what the attention kernels of a rank read and write, and the exchanges
// around them. Everything else works on the rank's own tokens.
//
// With cp ranks each holds tokens of two of 2 cp chunks of every sequence, i and 2 cp - 1 - i, so
// that causal attention is the same work on all (op.h, note 8).
//  all-gather  keys and values of all ranks are gathered before the kernels and put in order of
//              position; a flash kernel's backward gathers them again, an unfused one's are kept.
//              Their gradients are put back in order of ranks and scattered.
//  all-to-all  heads are traded for tokens: a kernel sees whole sequences of 1 / cp of the heads.
//              The context goes the other way, and backward both go back.
//  ring        keys and values pass from rank to rank, a kernel per rank's part; parts of the
//              context are joined by their log-sum-exp. Backward their gradients pass along.
// Source  zig-zag chunks, ring and both other exchanges: Transformer Engine,
//         pytorch/attention/dot_product_attention/context_parallel.py; all-gather: Grattafiori et
//         al. 2024, section 3.3.2; all-to-all: Jacobs et al. 2023 (DeepSpeed-Ulysses).
#pragma once

#include "strategies/lowering/stage_builder.h"

namespace gputwin {

struct Qkv {
  View q, k, v;
};

/// Sizes of a call of an attention kernel.
struct KernelSizes {
  std::int64_t heads = 0, kv_heads = 0;
  std::int64_t queries = 0, keys = 0;  // of one sequence
  std::int64_t query_width = 0, kv_width = 0;
  SlotId cp_slot{};  // valid where queries are the rank's own tokens alone
};
KernelSizes kernel_sizes(const StageBuilder& b);

/// Column ranges of a fused tensor [tokens, q | k | v].
Qkv split(const View& qkv, std::int64_t query_width, std::int64_t kv_width);

/// True where keys and values pass around a ring: then ring_forward and ring_backward stand for the
/// kernels and the exchanges around them.
bool is_ring(const StageBuilder& b);
/// `flash`: a kernel over the rank's own keys. Fills `state.kernel_context`, `state.log_sum_exp`.
void ring_forward(StageBuilder& b, Op flash, const AttentionState& state);
void ring_backward(StageBuilder& b, Op flash, const View& dcontext, const AttentionState& state,
                   const View& dqkv);

/// The exchange before the forward kernels, of `state.qkv`.
Qkv kernel_inputs(StageBuilder& b, AttentionState& state);
/// The same operands for the backward kernels, gathered again where they were not kept.
Qkv kernel_inputs_again(StageBuilder& b, const AttentionState& state);
/// Where the forward kernels write; then the exchange after them, which fills `state.context`.
View kernel_context(StageBuilder& b);
void exchange_context(StageBuilder& b, AttentionState& state);
/// The gradient of the kernels' context.
View kernel_context_grad(StageBuilder& b, const View& dcontext);
/// Where the backward kernels write; `dqkv` is the gradient of the rank's own q, k, v.
struct KernelGrads {
  Qkv to;
  View whole;  // gradients of gathered k | v, or of the traded q | k | v; else none
};
KernelGrads kernel_grads(StageBuilder& b, const View& dqkv);
/// The exchange after the backward kernels, which completes `dqkv`.
void exchange_grads(StageBuilder& b, const KernelGrads& grads, const View& dqkv);

}  // namespace gputwin
