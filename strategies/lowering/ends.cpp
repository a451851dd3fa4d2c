// The two ends of the model: embeddings on the first stage; final norm, head and loss on the last.
#include "strategies/lowering/stage_builder.h"

namespace gputwin {
namespace {

float loss_scale(const StageBuilder& b) {
  return static_cast<float>(1.0 / static_cast<double>(b.job.global_batch * b.job.sequence));
}

// The rows of the position table that a sequence uses.
View used_positions(const StageBuilder& b, View table) {
  table.rows = b.sizes.positions;
  return table;
}

const Weight& head_weight(const StageBuilder& b) {
  if (b.has(Role::Head)) return b.weight(Role::Head);
  return b.weight(Role::WordEmbedding, kEmbeddingLayer);
}

}  // namespace

View embedding_forward(StageBuilder& b, EmbeddingState& state) {
  const Sizes& s = b.sizes;
  const bool learned = b.model.positions == Positions::Learned;
  View x = b.activation("word", s.tokens, s.hidden);
  b.kernel("word",
           {.kind = OpKind::EmbeddingForward,
            .slot = b.wiring.tp,
            .dims = {s.tokens, s.hidden, s.vocab}},
           {state.tokens, b.weight(Role::WordEmbedding).value}, {x});
  // Megatron scatters the sum over tp at once, but with learned positions only after adding them.
  if (b.layout.sp && !learned) {
    const View shard = b.activation("word_scattered", s.shard_tokens, s.hidden);
    b.scatter_pieces("word_reduce_scatter", x, shard);
    x = shard;
  } else if (b.tensor_parallel()) {
    b.all_reduce("word_all_reduce", x);
  }
  if (learned) {
    const View sum = b.activation("positioned", s.tokens, s.hidden);
    b.kernel("position",
             {.kind = OpKind::PositionAdd, .cp_slot = b.wiring.cp, .dims = {s.tokens, s.hidden}},
             {x, used_positions(b, b.weight(Role::PositionEmbedding).value)}, {sum});
    x = sum;
    if (b.layout.sp) {
      const View shard = b.activation("shard", s.shard_tokens, s.hidden);
      b.own_shard("shard", x, shard);
      x = shard;
    }
  }
  if (b.model.dropout > 0) {
    const View y = b.activation("dropped", x.rows, s.hidden);
    state.mask = b.activation("mask", x.rows, s.hidden, DType::U8);
    b.kernel("dropout",
             {.kind = OpKind::CastCopy,
              .dropout = static_cast<float>(b.model.dropout),
              .dims = {x.elements()}},
             {x}, {y, state.mask});
    x = y;
  }
  return x;
}

void embedding_backward(StageBuilder& b, const View& dy, const EmbeddingState& state) {
  const Sizes& s = b.sizes;
  if (!b.trains(Role::WordEmbedding)) return;
  const View dx = b.gathered("word", dropout_backward(b, "embedding", dy, state.mask));
  if (b.has(Role::PositionEmbedding)) {
    b.kernel_in(Phase::WeightGrad, "position",
                {.kind = OpKind::PositionGrad,
                 .accumulate = true,
                 .cp_slot = b.wiring.cp,
                 .dims = {s.tokens, s.hidden}},
                {dx}, {used_positions(b, b.weight(Role::PositionEmbedding).gradient)});
  }
  const View& gradient = b.weight(Role::WordEmbedding).gradient;
  const bool whole = b.parameters.level() < 2;
  // torch makes a dense gradient of the table, which is then added to the gradient of the
  // iteration.
  const View dense = whole ? b.temporary("word_grad", gradient.rows, gradient.cols) : gradient;
  if (whole) {
    b.kernel_in(Phase::WeightGrad, "word_zero", {.kind = OpKind::Zero, .dims = {dense.elements()}},
                {}, {dense});
  }
  b.kernel_in(Phase::WeightGrad, "word",
              {.kind = OpKind::EmbeddingBackward,
               .accumulate = true,
               .slot = b.wiring.tp,
               .dims = {s.tokens, s.hidden, s.vocab}},
              {state.tokens, dx}, {dense});
  if (whole) {
    b.kernel_in(Phase::WeightGrad, "word_add", {.kind = OpKind::Add, .dims = {dense.elements()}},
                {dense, gradient}, {gradient});
  }
}

void head_forward(StageBuilder& b, const View& x, HeadState& state) {
  const Sizes& s = b.sizes;
  state.input =
      norm_forward(b, "final_norm", Role::FinalGain, Role::FinalBias, x, state.norm, s.activation);
  View logits = b.activation("logits", s.tokens, s.vocab);
  b.linear("logits", b.gathered("logits", state.input), head_weight(b).value, {}, logits);
  if (b.kernels.fp32_logits && !b.job.fused_cross_entropy && s.activation != DType::F32) {
    const View wide = b.activation("logits_f32", s.tokens, s.vocab, DType::F32);
    b.kernel("logits_cast", {.kind = OpKind::CastCopy, .dims = {logits.elements()}}, {logits},
             {wide});
    logits = wide;
  }
  state.logits = logits;
  state.max = b.activation("logits_max", s.tokens, 1, DType::F32);
  state.sums = b.activation("logits_sums", s.tokens, 2, DType::F32);
  b.kernel("logits_max", {.kind = OpKind::LogitsMax, .dims = {s.tokens, s.vocab}}, {logits},
           {state.max});
  if (b.tensor_parallel()) b.all_reduce("logits_max_all_reduce", state.max, true);
  b.kernel("logits_sum",
           {.kind = OpKind::LogitsSum, .slot = b.wiring.tp, .dims = {s.tokens, s.vocab}},
           {logits, state.max, state.targets}, {state.sums});
  if (b.tensor_parallel()) b.all_reduce("logits_sum_all_reduce", state.sums);
  b.kernel("loss",
           {.kind = OpKind::LossFromSums,
            .accumulate = true,
            .scale = loss_scale(b),
            .dims = {s.tokens}},
           {state.max, state.sums}, {state.loss});
}

View head_backward(StageBuilder& b, const HeadState& state) {
  const Sizes& s = b.sizes;
  // In place: the logits are not needed again.
  View dlogits = state.logits;
  b.kernel("cross_entropy",
           {.kind = OpKind::CrossEntropyBackward,
            .scale = loss_scale(b),
            .slot = b.wiring.tp,
            .dims = {s.tokens, s.vocab}},
           {state.logits, state.max, state.sums, state.targets}, {dlogits});
  if (dlogits.dtype != s.activation) {
    const View narrow = b.temporary("logits_grad", s.tokens, s.vocab);
    b.kernel("logits_cast", {.kind = OpKind::CastCopy, .dims = {dlogits.elements()}}, {dlogits},
             {narrow});
    dlogits = narrow;
  }
  const Weight& w = head_weight(b);
  const bool train = present(w.gradient);
  const View full = train ? b.gathered("logits_input", state.input) : View{};
  const View partial = b.temporary("logits_input_grad", s.tokens, s.hidden);
  View dy;
  if (b.kernels.async_tensor_parallel) {
    b.linear_input_grad("logits", dlogits, w.value, partial);
    dy = b.reduced("logits", partial);
    if (train) b.linear_weight_grad("logits", dlogits, full, w.gradient);
  } else {
    if (train) b.linear_weight_grad("logits", dlogits, full, w.gradient);
    b.linear_input_grad("logits", dlogits, w.value, partial);
    dy = b.reduced("logits", partial);
  }
  return norm_backward(b, "final_norm", Role::FinalGain, Role::FinalBias, dy, state.norm, {});
}

}  // namespace gputwin
