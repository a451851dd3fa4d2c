#include "strategies/lowering/stage_builder.h"

namespace gputwin {

View columns(const View& matrix, std::int64_t first, std::int64_t count) {
  View v = matrix;
  v.offset += first;
  v.cols = count;
  return v;
}

View rows(const View& matrix, std::int64_t first, std::int64_t count) {
  View v = matrix;
  v.offset += first * matrix.ld;
  v.rows = count;
  return v;
}

View flat(const View& view) {
  View v = view;
  v.cols = view.elements();
  v.ld = v.cols;
  v.rows = 1;
  return v;
}

Buffer StageBuilder::named(const std::string& name, std::int64_t rows, std::int64_t cols,
                           DType dtype, MemoryClass memory) const {
  const std::string prefix = layer() == kEmbeddingLayer ? "embedding."
                             : layer() == kHeadLayer    ? "head."
                                                        : "layer" + std::to_string(layer()) + ".";
  return {.name = prefix + name,
          .bytes = Bytes(stored_bytes(dtype, rows * cols)),
          .memory = memory,
          .dtype = dtype};
}

View StageBuilder::framed(const std::string& name, std::int64_t rows, std::int64_t cols,
                          DType dtype, MemoryClass memory) {
  Buffer buffer = named(name, rows, cols, dtype, memory);
  buffer.framed = true;
  return {.buffer = plan_.buffer(std::move(buffer)),
          .rows = rows,
          .cols = cols,
          .ld = cols,
          .dtype = dtype};
}

View StageBuilder::lasting(const std::string& name, std::int64_t rows, std::int64_t cols,
                           DType dtype) {
  Buffer buffer = named(name, rows, cols, dtype, MemoryClass::Weights);
  buffer.persistent = true;
  return {.buffer = plan_.buffer(std::move(buffer)),
          .rows = rows,
          .cols = cols,
          .ld = cols,
          .dtype = dtype};
}

View StageBuilder::activation(const std::string& name, std::int64_t rows, std::int64_t cols,
                              DType dtype) {
  return framed(name, rows, cols, dtype, MemoryClass::Activations);
}

View StageBuilder::temporary(const std::string& name, std::int64_t rows, std::int64_t cols,
                             DType dtype) {
  return framed(name, rows, cols, dtype, MemoryClass::Temporary);
}

View StageBuilder::step_gradients(std::int64_t elements) {
  const BufferId buffer = plan_.buffer({.name = "step_gradients",
                                        .bytes = Bytes(elements * bits(DType::F32) / 8),
                                        .memory = MemoryClass::Gradients,
                                        .dtype = DType::F32});
  return flat(buffer, elements, DType::F32);
}

void StageBuilder::add(Kind kind, std::uint8_t stream, Phase phase, const std::string& name, Op op,
                       std::vector<View> reads, std::vector<View> writes) {
  const NameId id =
      plan_.name({.phase = phase, .layer = layer(), .op = name, .occurrence = occurrence_});
  const CallId call =
      plan_.call({.op = op, .reads = std::move(reads), .writes = std::move(writes)});
  segment_->ops.push_back({.kind = kind, .stream = stream, .call = call, .name = id});
}

void StageBuilder::kernel_in(Phase phase, const std::string& name, Op op, std::vector<View> reads,
                             std::vector<View> writes) {
  if (op.kind != OpKind::Gemm && op.kind != OpKind::GroupedGemm && !is_attention_gemm(op.kind)) {
    op.dtype = reads.empty() ? writes[0].dtype : reads[0].dtype;
  }
  op.out = writes[0].dtype;
  add(Kind::Kernel, wiring.compute_stream, phase, name, op, std::move(reads), std::move(writes));
}

void StageBuilder::kernel(const std::string& name, Op op, std::vector<View> reads,
                          std::vector<View> writes) {
  kernel_in(segment_->phase, name, op, std::move(reads), std::move(writes));
}

void StageBuilder::add_on(std::uint8_t stream, const std::string& name, const View& x,
                          const View& y, const View& z) {
  add(Kind::Kernel, stream, segment_->phase, name,
      {.kind = OpKind::Add, .dtype = x.dtype, .out = z.dtype, .dims = {z.elements()}}, {x, y}, {z});
}

// TF32 is how the layers' F32 operands are multiplied.
DType StageBuilder::gemm_dtype(const View& x) const {
  return x.dtype == sizes.activation && bits(sizes.gemm) >= 16 && layer() >= 0 ? sizes.gemm
                                                                               : x.dtype;
}

// A product over tokens, which may be those of one member alone.
Op StageBuilder::product_op(const View& x, std::int64_t m, std::int64_t n, std::int64_t k,
                            RingRows of) const {
  Op op{.kind = OpKind::Gemm, .dtype = gemm_dtype(x), .dims = {m, n, k}};
  if (of.one_member) {
    op.slot = wiring.tp;
    op.ring_step = of.step;
  }
  return op;
}

void StageBuilder::linear(const std::string& name, const View& x, const View& w, const View& bias,
                          const View& y, bool accumulate, RingRows of) {
  std::vector<View> reads{x, w};
  if (present(bias)) reads.push_back(bias);
  Op op = product_op(x, of.one_member ? sizes.shard_tokens : x.rows, w.rows, w.cols, of);
  op.trans_b = true;
  op.accumulate = accumulate;
  kernel(name, op, std::move(reads), {y});
}

void StageBuilder::linear_input_grad(const std::string& name, const View& dy, const View& w,
                                     const View& dx, bool transposed, bool accumulate,
                                     RingRows of) {
  Op op = product_op(dy, of.one_member ? sizes.shard_tokens : dy.rows, dx.cols, dy.cols, of);
  op.trans_b = transposed;
  op.accumulate = accumulate;
  kernel(name, op, {dy, w}, {dx});
}

void StageBuilder::linear_weight_grad(const std::string& name, const View& dy, const View& x,
                                      const View& dw, bool transposed, RingRows of) {
  std::vector<View> writes{dw};
  if (kernels.dummy_weight_grads && job.lora_rank == 0)
    writes.push_back(dummy_weight_grad(name, dw));
  const std::int64_t tokens = transposed ? x.cols : x.rows;
  Op op = product_op(x, dw.rows, dw.cols, of.one_member ? sizes.shard_tokens : tokens, of);
  op.trans_a = !transposed;
  op.trans_b = transposed;
  op.accumulate = true;
  kernel_in(Phase::WeightGrad, name, op, {dy, x}, std::move(writes));
}

void StageBuilder::grouped_linear(const std::string& name, const View& x, const View& w,
                                  const View& bias, const View& y) {
  const std::int64_t g = sizes.local_experts;
  std::vector<View> reads{x, w};
  if (present(bias)) reads.push_back(bias);
  kernel(name,
         {.kind = OpKind::GroupedGemm,
          .dtype = gemm_dtype(x),
          .trans_b = true,
          .launches = expert_launches(),
          .slot = expert_load > 0 ? wiring.ep : SlotId{},
          .load = expert_load,
          .dims = {g, x.rows / g, y.cols, x.cols}},
         std::move(reads), {y});
}

void StageBuilder::grouped_input_grad(const std::string& name, const View& dy, const View& w,
                                      const View& dx) {
  const std::int64_t g = sizes.local_experts;
  kernel(name,
         {.kind = OpKind::GroupedGemm,
          .dtype = gemm_dtype(dy),
          .launches = expert_launches(),
          .slot = expert_load > 0 ? wiring.ep : SlotId{},
          .load = expert_load,
          .dims = {g, dy.rows / g, dx.cols, dy.cols}},
         {dy, w}, {dx});
}

void StageBuilder::grouped_weight_grad(const std::string& name, const View& dy, const View& x,
                                       const View& dw, const View& dbias) {
  const std::int64_t g = sizes.local_experts;
  std::vector<View> writes{dw};
  if (present(dbias)) writes.push_back(dbias);
  kernel_in(Phase::WeightGrad, name,
            {.kind = OpKind::GroupedGemm,
             .dtype = gemm_dtype(x),
             .trans_a = true,
             .accumulate = true,
             .launches = expert_launches(),
             .slot = expert_load > 0 ? wiring.ep : SlotId{},
             .load = expert_load,
             .dims = {g, dw.rows / g, dw.cols, x.rows / g}},
            {dy, x}, std::move(writes));
}

// Layers share one that stays, by shape; that of the head lives for its kernel.
View StageBuilder::dummy_weight_grad(const std::string& name, const View& dw) {
  View p;
  if (layer() == kHeadLayer) {
    p = temporary(name + "_dummy_grad", dw.rows, dw.cols);
  } else if (const auto known = dummy_weight_grads_.find({dw.rows, dw.cols});
             known != dummy_weight_grads_.end()) {
    p = known->second;
  } else {
    p = lasting(name + "_dummy_grad", dw.rows, dw.cols, sizes.activation);
    dummy_weight_grads_[{dw.rows, dw.cols}] = p;
  }
  p.rows = p.cols = p.ld = 1;
  return p;
}

void StageBuilder::collective(std::uint8_t stream, SlotId slot, OpKind kind,
                              const std::string& name, const View& from, const View& to, bool max) {
  const std::int64_t n = std::max(from.elements(), to.elements());
  add(Kind::Collective, stream, segment_->phase, name,
      {.kind = kind,
       .dtype = from.dtype,
       .out = to.dtype,
       .reduce_max = max,
       .slot = slot,
       .dims = {n}},
      {from}, {to});
}

void StageBuilder::send(std::uint8_t stream, SlotId peer, const std::string& name, const View& x) {
  add(Kind::Send, stream, segment_->phase, name,
      {.kind = OpKind::SendTo,
       .dtype = x.dtype,
       .out = x.dtype,
       .slot = peer,
       .dims = {x.elements()}},
      {x}, {});
}

void StageBuilder::receive(std::uint8_t stream, SlotId peer, const std::string& name,
                           const View& x) {
  add(Kind::Recv, stream, segment_->phase, name,
      {.kind = OpKind::RecvFrom,
       .dtype = x.dtype,
       .out = x.dtype,
       .slot = peer,
       .dims = {x.elements()}},
      {}, {x});
}

void StageBuilder::all_reduce(const std::string& name, const View& x, bool max) {
  collective(wiring.tp_stream, wiring.tp, OpKind::AllReduce, name, x, x, max);
}

void StageBuilder::all_gather(const std::string& name, const View& shard, const View& full) {
  collective(wiring.tp_stream, wiring.tp, OpKind::AllGather, name, shard, full);
}

void StageBuilder::reduce_scatter(const std::string& name, const View& full, const View& shard) {
  collective(wiring.tp_stream, wiring.tp, OpKind::ReduceScatter, name, full, shard);
}

std::int64_t StageBuilder::token_pieces() const {
  if (layout.tp_overlap != TpOverlap::AsyncTp || !layout.sp || job.lora_rank > 0) return 1;
  std::int64_t pieces = std::min<std::int64_t>(layout.tp, sizes.sequences);
  while (sizes.sequences % pieces != 0) --pieces;
  return pieces;
}

template <class Act>
void StageBuilder::each_piece(const View& shard, const View& full, Act act) {
  const std::int64_t n = shard.rows == sizes.shard_tokens ? token_pieces() : 1;
  for (std::int64_t i = 0; i < n; ++i) {
    if (n > 1) number(static_cast<std::int32_t>(i));
    act(rows(shard, i * shard.rows / n, shard.rows / n),
        rows(full, i * full.rows / n, full.rows / n));
  }
  if (n > 1) number(0);
}

void StageBuilder::gather_pieces(const std::string& name, const View& shard, const View& full) {
  each_piece(shard, full, [&](const View& part, const View& all) { all_gather(name, part, all); });
}

void StageBuilder::scatter_pieces(const std::string& name, const View& full, const View& shard) {
  each_piece(shard, full,
             [&](const View& part, const View& all) { reduce_scatter(name, all, part); });
}

void StageBuilder::own_shard(const std::string& name, const View& full, const View& shard) {
  each_piece(shard, full, [&](const View& part, const View& all) {
    kernel(name, {.kind = OpKind::CastCopy, .slot = wiring.tp, .dims = {part.elements()}}, {all},
           {part});
  });
}

View StageBuilder::gathered(const std::string& name, const View& x) {
  if (!layout.sp) return x;
  const View full = temporary(name + "_gathered", sizes.tokens, x.cols, x.dtype);
  gather_pieces(name + "_all_gather", x, full);
  return full;
}

View StageBuilder::reduced(const std::string& name, const View& partial) {
  if (!tensor_parallel()) return partial;
  if (!layout.sp) {
    all_reduce(name + "_all_reduce", partial);
    return partial;
  }
  const View shard =
      temporary(name + "_scattered", sizes.shard_tokens, partial.cols, partial.dtype);
  scatter_pieces(name + "_reduce_scatter", partial, shard);
  return shard;
}

}  // namespace gputwin
