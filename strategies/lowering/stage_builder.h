// What every part of the lowering of one stage needs: sizes, weights, and how to add tensors and
// operations.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "strategies/lowering/parameters.h"
#include "strategies/lowering/sizes.h"
#include "strategies/lowering/stack_kernels.h"

namespace gputwin {

/// Slots and streams of one stage's program. An invalid slot means a communicator of one rank.
/// `shard`: the data-parallel ranks that share one copy of the sharded states; `replica`: those
/// that hold the same shard of different copies (hybrid sharding). Where chunks run both ways:
/// `copies`: the data-parallel ranks of both stages that hold the same chunks; `loss`: the two
/// stages that have the head.
struct StageWiring {
  SlotId tp{}, dp{}, shard{}, replica{}, model{}, embedding{}, next{}, previous{};
  SlotId copies{}, loss{};
  SlotId tp_next{}, tp_previous{};        // neighbours in the ring exchange of tensor parallelism
  SlotId ep{}, expert_dp{};               // the expert group, the ranks that hold the same experts
  SlotId ep_inner{}, ep_outer{};          // of that group in a node; one of each node
  SlotId cp{}, cp_next{}, cp_previous{};  // the last two: neighbours in the ring exchange
  std::uint8_t compute_stream = 0, tp_stream = 0, dp_stream = 0;
  std::uint8_t cp_stream = 0, cp_receive_stream = 0;  // collectives or sends; receives
  std::uint8_t ep_stream = 0;
  // Ring exchange: to the next rank, from the previous one, and the other way.
  std::uint8_t ring_send_stream = 0, ring_receive_stream = 0;
  std::uint8_t ring_send_back_stream = 0, ring_receive_back_stream = 0;
  std::uint8_t send_stream = 0, receive_stream = 0;  // to next, from previous: activations
  // to previous, from next: gradients, if all chunks run down the stages
  std::uint8_t gradient_send_stream = 0, gradient_receive_stream = 0;
};

/// NarrowCopies of a matrix [t, h] in the format of the layers' GEMMs (quantize.h): along the
/// features, and along the tokens, which is transposed where the format needs it.
struct NarrowCopies {
  View rows, cols;
  bool blocks = false;  // one per expert, each transposed on its own: the whole keeps its shape
};

/// Whose rows of a whole tensor a product takes: all, or those of a member of tp (op.h, note 20).
struct RingRows {
  bool one_member = false;
  std::uint32_t step = 0;
};

/// Adds operations to one segment after another.
class StageBuilder {
 public:
  StageBuilder(PlanBuilder& plan, const Transformer& model, const Layout& layout, const Job& job,
               const StackKernels& kernels, const Sizes& sizes, const StageWiring& wiring,
               const StageParameters& parameters)
      : model(model),
        layout(layout),
        job(job),
        kernels(kernels),
        sizes(sizes),
        wiring(wiring),
        parameters(parameters),
        plan_(plan) {}

  const Transformer& model;
  const Layout& layout;
  const Job& job;
  const StackKernels& kernels;
  const Sizes& sizes;
  const StageWiring& wiring;
  const StageParameters& parameters;
  /// The weights' copies, by layer.
  std::map<std::pair<std::int32_t, Role>, NarrowCopies> narrow_weights;
  /// Load table + 1 of the experts' kernels; 0: even.
  std::uint32_t expert_load = 0;

  /// Following operations go to `segment`.
  void into(Segment& segment) { segment_ = &segment; }
  /// Following operations carry this occurrence in their names.
  void number(std::int32_t occurrence) { occurrence_ = occurrence; }
  std::int32_t layer() const { return segment_->layer; }

  /// A framed tensor [rows, cols] named after the current layer; `activation`: kept for backward.
  View activation(const std::string& name, std::int64_t rows, std::int64_t cols, DType dtype);
  View activation(const std::string& name, std::int64_t rows, std::int64_t cols) {
    return activation(name, rows, cols, sizes.activation);
  }
  View temporary(const std::string& name, std::int64_t rows, std::int64_t cols, DType dtype);
  View temporary(const std::string& name, std::int64_t rows, std::int64_t cols) {
    return temporary(name, rows, cols, sizes.activation);
  }
  /// A tensor of the weights that stays from iteration to iteration.
  View lasting(const std::string& name, std::int64_t rows, std::int64_t cols, DType dtype);

  /// F32 gradients that live for one step of the optimizer.
  View step_gradients(std::int64_t elements);

  /// A kernel on the compute stream. `op.dtype` and `op.out` default to the first read and write.
  void kernel(const std::string& name, Op op, std::vector<View> reads, std::vector<View> writes);
  void kernel_in(Phase phase, const std::string& name, Op op, std::vector<View> reads,
                 std::vector<View> writes);
  /// z = x + y on a stream of communication.
  void add_on(std::uint8_t stream, const std::string& name, const View& x, const View& y,
              const View& z);

  /// y = x w^T (+ bias): x [t, k], w [n, k], y [t, n].
  void linear(const std::string& name, const View& x, const View& w, const View& bias,
              const View& y, bool accumulate = false, RingRows of = {});
  /// dx = dy w; `transposed`: w is given as w^T [k, n].
  void linear_input_grad(const std::string& name, const View& dy, const View& w, const View& dx,
                         bool transposed = false, bool accumulate = false, RingRows of = {});
  /// dw += dy^T x; `transposed`: both are given transposed, [n, t] and [k, t].
  void linear_weight_grad(const std::string& name, const View& dy, const View& x, const View& dw,
                          bool transposed = false, RingRows of = {});

  /// The same three of the rank's experts: x, y and w are one block per expert below each other,
  /// and so are `bias` and its gradient `dbias`, if any.
  void grouped_linear(const std::string& name, const View& x, const View& w, const View& bias,
                      const View& y);
  void grouped_input_grad(const std::string& name, const View& dy, const View& w, const View& dx);
  void grouped_weight_grad(const std::string& name, const View& dy, const View& x, const View& dw,
                           const View& dbias);

  /// Collectives over tp, on the "tp" stream.
  void all_reduce(const std::string& name, const View& x, bool max = false);
  void all_gather(const std::string& name, const View& shard, const View& full);
  void reduce_scatter(const std::string& name, const View& full, const View& shard);
  /// A message to, or from, the rank in a peer slot.
  void send(std::uint8_t stream, SlotId peer, const std::string& name, const View& x);
  void receive(std::uint8_t stream, SlotId peer, const std::string& name, const View& x);
  void collective(std::uint8_t stream, SlotId slot, OpKind kind, const std::string& name,
                  const View& from, const View& to, bool max = false);
  /// shard = this rank's part of `full`.
  void own_shard(const std::string& name, const View& full, const View& shard);

  /// Kernels that one instruction over all experts of the rank stands for.
  std::uint16_t expert_launches() const {
    const std::int64_t n = kernels.launches_per_expert * sizes.local_experts;
    return static_cast<std::uint16_t>(std::clamp<std::int64_t>(n, 1, 0xffff));
  }

  bool tensor_parallel() const { return layout.tp > 1; }
  bool has(Role role) const { return parameters.has(role, layer()); }
  const Weight& weight(Role role) const { return weight(role, layer()); }
  /// Where the current phase finds it.
  const Weight& weight(Role role, std::int32_t of_layer) const {
    return parameters.at(role, of_layer, segment_->phase);
  }
  /// False for what the model lacks and for what is frozen.
  bool trains(Role role) const { return has(role) && weight(role).gradient.buffer.valid(); }

  /// Pieces along samples in which sequence parallelism gathers and scatters everywhere: with
  /// asynchronous tensor parallelism the largest divisor of the micro-batch up to tp, else 1. A
  /// token shard lists its part of each piece in order; a gathered tensor is in its usual order.
  std::int64_t token_pieces() const;
  /// Gathers or scatters in those pieces, one after the other.
  void gather_pieces(const std::string& name, const View& shard, const View& full);
  void scatter_pieces(const std::string& name, const View& full, const View& shard);

  /// All tokens of an input that is sharded over tp with sequence parallelism; `x` itself
  /// otherwise.
  View gathered(const std::string& name, const View& x);
  /// The sum over tp of a partial result: reduced in place, or scattered over tokens to a new
  /// tensor (an activation or a temporary).
  View reduced(const std::string& name, const View& partial);

 private:
  View framed(const std::string& name, std::int64_t rows, std::int64_t cols, DType dtype,
              MemoryClass memory);
  Buffer named(const std::string& name, std::int64_t rows, std::int64_t cols, DType dtype,
               MemoryClass memory) const;
  DType gemm_dtype(const View& x) const;
  Op product_op(const View& x, std::int64_t m, std::int64_t n, std::int64_t k, RingRows of) const;
  /// Calls `act` with the rows of each of those pieces, in a token shard and in the whole.
  template <class Act>
  void each_piece(const View& shard, const View& full, Act act);
  void add(Kind kind, std::uint8_t stream, Phase phase, const std::string& name, Op op,
           std::vector<View> reads, std::vector<View> writes);

  PlanBuilder& plan_;
  View dummy_weight_grad(const std::string& name, const View& dw);

  Segment* segment_ = nullptr;
  std::map<std::pair<std::int64_t, std::int64_t>, View> dummy_weight_grads_;  // by rows, columns
  std::int32_t occurrence_ = 0;
};

/// Columns, or rows, [first, first + count) of a matrix.
View columns(const View& matrix, std::int64_t first, std::int64_t count);
View rows(const View& matrix, std::int64_t first, std::int64_t count);
/// The same contiguous elements as one row.
View flat(const View& view);
inline View flat(BufferId buffer, std::int64_t elements, DType dtype) {
  return {.buffer = buffer, .rows = 1, .cols = elements, .ld = elements, .dtype = dtype};
}
inline bool present(const View& view) { return view.buffer.valid(); }

// One layer. Tokens are ordered [sequence of the micro-batch, position]; x, y and their gradients
// are [tokens, hidden], or [tokens / tp, hidden] with sequence parallelism.

struct NormState {
  View x, stats;
};
/// y = norm(x) in the format `out`; remembers what backward needs.
View norm_forward(StageBuilder& b, const std::string& name, Role gain, Role bias, const View& x,
                  NormState& state, DType out);
/// Gradient of x; `residual` is the gradient that reaches x past the norm, if any.
View norm_backward(StageBuilder& b, const std::string& name, Role gain, Role bias, const View& dy,
                   const NormState& state, const View& residual);

struct DropoutState {
  View mask;  // none where dropout is 0
};
/// y = dropout(x + bias) + residual.
View bias_dropout_add(StageBuilder& b, const std::string& name, Role bias, const View& x,
                      const View& residual, DropoutState& state);
/// Gradient of the input of a dropout: `dy` itself where there is none.
View dropout_backward(StageBuilder& b, const std::string& name, const View& dy, const View& mask);
/// Gradient of x; accumulates the gradient of the bias. The residual's gradient is `dy` itself.
View bias_dropout_backward(StageBuilder& b, const std::string& name, Role bias, const View& dy,
                           const DropoutState& state);

/// What backward needs of a linear layer (linear.h): its input, the token shard where sequence
/// parallelism gathers it; the copy of it for the weight gradient; the adapter's thin product.
struct LinearState {
  View input, copy, hidden;
};

struct AttentionState {
  LinearState to_qkv, to_proj;
  View qkv, probabilities, dropped, mask, log_sum_exp, context;
  // What the kernels read and write, where a context-parallel exchange lies between (context.h).
  View exchanged, kernel_context;
};
View attention_forward(StageBuilder& b, const View& x, AttentionState& state);
View attention_backward(StageBuilder& b, const View& dy, const AttentionState& state,
                        bool to_input);

struct MlpState {
  LinearState to_fc1, to_fc2;
  View fc1;
};
View mlp_forward(StageBuilder& b, const View& x, MlpState& state);
View mlp_backward(StageBuilder& b, const View& dy, const MlpState& state);

/// Multi-head latent attention (mla.cpp).
struct MlaState {
  LinearState to_q_down, to_q_up, to_kv_down, to_kv_up, to_proj;
  NormState q_norm, kv_norm;
  View q, k, v, context, log_sum_exp;
};
View mla_forward(StageBuilder& b, const View& x, MlaState& state);
View mla_backward(StageBuilder& b, const View& dy, const MlaState& state, bool to_input);

/// A mixture of experts with the shared ones (moe.cpp).
struct MoeState {
  View input, logits, weights, rows, fc1, activated;
  MlpState shared;
};
View moe_forward(StageBuilder& b, const View& x, MoeState& state);
View moe_backward(StageBuilder& b, const View& dy, const MoeState& state);

struct LayerState {
  NormState norm1, norm2;
  AttentionState attention;
  MlaState mla;
  DropoutState dropout1, dropout2;
  MlpState mlp;
  MoeState moe;
};
View layer_forward(StageBuilder& b, const View& x, LayerState& state);
/// Gradient of x; none where nothing below is trained (`to_input` false).
View layer_backward(StageBuilder& b, const View& dy, const LayerState& state, bool to_input);

struct EmbeddingState {
  View tokens, mask;
};
View embedding_forward(StageBuilder& b, EmbeddingState& state);
void embedding_backward(StageBuilder& b, const View& dy, const EmbeddingState& state);

struct HeadState {
  NormState norm;
  View input, logits, max, sums, targets, loss;
};
/// Final norm, logits, cross-entropy over the vocabulary shards; adds to the loss.
void head_forward(StageBuilder& b, const View& x, HeadState& state);
/// Gradient of the last layer's output.
View head_backward(StageBuilder& b, const HeadState& state);

}  // namespace gputwin
