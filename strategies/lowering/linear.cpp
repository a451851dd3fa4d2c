#include "strategies/lowering/linear.h"

#include "strategies/lowering/adapters.h"
#include "strategies/lowering/quantize.h"
#include "strategies/lowering/ring.h"

namespace gputwin {
namespace {

// Pieces of a product beside its gather, by features or outputs. Asynchronous tensor parallelism
// has them only where a micro-batch of one sample has no pieces by samples.
std::int64_t chunks_of(const StageBuilder& b, std::int64_t width) {
  const bool sequence = b.layout.tp_overlap == TpOverlap::Userbuffers ||
                        (b.layout.tp_overlap == TpOverlap::AsyncTp && b.token_pieces() == 1);
  const bool cut = sequence && b.layout.sp && b.job.lora_rank == 0 && width % b.layout.tp == 0;
  return cut ? b.layout.tp : 1;
}

// Pieces of a product beside its sum.
std::int64_t sum_chunks(const StageBuilder& b, std::int64_t width) {
  constexpr std::int64_t kColumnHalves = 2;  // Domino cuts the weight's outputs in two
  if (b.layout.tp_overlap != TpOverlap::Columns) return chunks_of(b, width);
  const bool cut = b.tensor_parallel() && b.job.lora_rank == 0 && width % kColumnHalves == 0;
  return cut ? kColumnHalves : 1;
}

// Of an input gradient beside its sum: user buffers run that sum whole under other products.
std::int64_t grad_sum_chunks(const StageBuilder& b, std::int64_t width) {
  return b.layout.tp_overlap == TpOverlap::Userbuffers ? 1 : sum_chunks(b, width);
}

// Calls `act` with the chunk's number, its first index and its width.
template <class Act>
void each_chunk(StageBuilder& b, std::int64_t n, std::int64_t width, Act act) {
  for (std::int64_t i = 0; i < n; ++i) {
    b.number(static_cast<std::int32_t>(i));
    act(i, i * (width / n), width / n);
  }
  b.number(0);
}

// The rows of one piece by samples, of a token shard and of all tokens.
struct TokenRows {
  std::int64_t shard_first, shard_count, first, count;
  View of_shard(const View& v) const { return rows(v, shard_first, shard_count); }
  View of(const View& v) const { return rows(v, first, count); }
};

template <class Act>
void each_token_piece(StageBuilder& b, Act act) {
  const std::int64_t n = b.token_pieces();
  const std::int64_t shard = b.sizes.shard_tokens / n, all = b.sizes.tokens / n;
  for (std::int64_t i = 0; i < n; ++i) {
    b.number(static_cast<std::int32_t>(i));
    act(TokenRows{i * shard, shard, i * all, all});
  }
  b.number(0);
}

// y = x w^T (+ bias) of all tokens of x, which is returned whole.
View gathered_linear(StageBuilder& b, const std::string& name, const View& x, const View& w,
                     const View& bias, const View& y) {
  if (has_rings(b)) {
    ring_gather(b, name, x, [&](const View& held, RingRows of) {
      b.linear(name, held, w, bias, y, false, of);
    });
    return x;
  }
  if (b.token_pieces() > 1) {
    const View full = b.temporary(name + "_gathered", b.sizes.tokens, x.cols, x.dtype);
    each_token_piece(b, [&](const TokenRows& r) {
      b.all_gather(name + "_all_gather", r.of_shard(x), r.of(full));
      b.linear(name, r.of(full), w, bias, r.of(y));
    });
    return full;
  }
  if (chunks_of(b, x.cols) == 1) {
    const View full = b.gathered(name, x);
    b.linear(name, full, w, bias, y);
    return full;
  }
  const View full = b.temporary(name + "_gathered", b.sizes.tokens, x.cols, x.dtype);
  each_chunk(b, chunks_of(b, x.cols), x.cols,
             [&](std::int64_t i, std::int64_t first, std::int64_t width) {
               const View part = columns(full, first, width);
               b.all_gather(name + "_all_gather", columns(x, first, width), part);
               b.linear(name, part, columns(w, first, width), i == 0 ? bias : View{}, y, i > 0);
             });
  return full;
}

// Sums one piece of a partial result over tp: in place, or scattered to the same columns of
// `shard`.
void sum_piece(StageBuilder& b, const std::string& name, const View& part, const View& shard,
               std::int64_t first, std::int64_t width) {
  if (!b.layout.sp) return b.all_reduce(name + "_all_reduce", part);
  b.reduce_scatter(name + "_reduce_scatter", part, columns(shard, first, width));
}

// Where pieces of a partial result are summed.
View sum_of_pieces(StageBuilder& b, const std::string& name, const View& partial) {
  if (!b.layout.sp) return partial;
  return b.temporary(name + "_scattered", b.sizes.shard_tokens, partial.cols);
}

// The sum over tp of x w^T.
View reduced_linear(StageBuilder& b, const std::string& name, const View& x, const View& w) {
  if (has_rings(b)) {
    return ring_scatter(b, name, w.rows, [&](const View& part, RingRows of) {
      b.linear(name, x, w, {}, part, false, of);
    });
  }
  const View partial = b.temporary(name, x.rows, w.rows);
  if (b.token_pieces() > 1) {
    const View shard = b.temporary(name + "_scattered", b.sizes.shard_tokens, w.rows);
    each_token_piece(b, [&](const TokenRows& r) {
      b.linear(name, r.of(x), w, {}, r.of(partial));
      b.reduce_scatter(name + "_reduce_scatter", r.of(partial), r.of_shard(shard));
    });
    return shard;
  }
  const std::int64_t n = sum_chunks(b, w.rows);
  if (n == 1) {
    b.linear(name, x, w, {}, partial);
    return partial;
  }
  const View sum = sum_of_pieces(b, name, partial);
  each_chunk(b, n, w.rows, [&](std::int64_t, std::int64_t first, std::int64_t width) {
    const View part = columns(partial, first, width);
    b.linear(name, x, rows(w, first, width), {}, part);
    sum_piece(b, name, part, sum, first, width);
  });
  return sum;
}

// The sum over tp of dy w in pieces.
View reduced_input_grad(StageBuilder& b, const std::string& name, const View& dy, const View& w,
                        const View& partial, bool transposed) {
  if (b.token_pieces() > 1) {
    const View shard = b.temporary(name + "_scattered", b.sizes.shard_tokens, partial.cols);
    each_token_piece(b, [&](const TokenRows& r) {
      b.linear_input_grad(name, r.of(dy), w, r.of(partial), transposed);
      b.reduce_scatter(name + "_reduce_scatter", r.of(partial), r.of_shard(shard));
    });
    return shard;
  }
  const View sum = sum_of_pieces(b, name, partial);
  const std::int64_t n = grad_sum_chunks(b, partial.cols);
  each_chunk(b, n, partial.cols, [&](std::int64_t, std::int64_t first, std::int64_t width) {
    const View part = columns(partial, first, width);
    const View of_w = transposed ? rows(w, first, width) : columns(w, first, width);
    b.linear_input_grad(name, dy, of_w, part, transposed);
    sum_piece(b, name, part, sum, first, width);
  });
  return sum;
}

// dx = dy w of all tokens of dy, which is returned whole; `transposed`: w is w^T.
View gathered_input_grad(StageBuilder& b, const std::string& name, const View& dy, const View& w,
                         const View& dx, bool transposed) {
  if (b.token_pieces() > 1) {
    const View full = b.temporary(name + "_gathered", b.sizes.tokens, dy.cols, dy.dtype);
    each_token_piece(b, [&](const TokenRows& r) {
      b.all_gather(name + "_all_gather", r.of_shard(dy), r.of(full));
      b.linear_input_grad(name, r.of(full), w, r.of(dx), transposed);
    });
    return full;
  }
  if (chunks_of(b, dy.cols) == 1) {
    const View full = b.gathered(name, dy);
    b.linear_input_grad(name, full, w, dx, transposed);
    return full;
  }
  const View full = b.temporary(name + "_gathered", b.sizes.tokens, dy.cols, dy.dtype);
  each_chunk(b, chunks_of(b, dy.cols), dy.cols,
             [&](std::int64_t i, std::int64_t first, std::int64_t width) {
               const View part = columns(full, first, width);
               b.all_gather(name + "_all_gather", columns(dy, first, width), part);
               const View of_w = transposed ? columns(w, first, width) : rows(w, first, width);
               b.linear_input_grad(name, part, of_w, dx, transposed, i > 0);
             });
  return full;
}

// What the products of a backward pass read.
struct Operands {
  View dy, dy_cols;  // for the gradients of input and weight
  View w;            // transposed where the copies are
  bool transposed = false;
};

Operands wide_operands(StageBuilder& b, const LinearLayer& layer, const View& dy) {
  if (b.trains(layer.bias)) {
    b.kernel_in(Phase::WeightGrad, std::string(layer.name) + "_bias",
                {.kind = OpKind::BiasGrad, .accumulate = true, .dims = {dy.rows, dy.cols}}, {dy},
                {b.weight(layer.bias).gradient});
  }
  return {.dy = dy, .dy_cols = dy, .w = b.weight(layer.weight).value};
}

Operands narrow_operands(StageBuilder& b, const LinearLayer& layer, const View& dy) {
  const View bias = b.trains(layer.bias) ? b.weight(layer.bias).gradient : View{};
  const NarrowCopies copies = quantize(b, std::string(layer.name) + "_grad", dy,
                                       {.cols = b.trains(layer.weight), .bias_grad = bias});
  return {.dy = copies.rows,
          .dy_cols = copies.cols,
          .w = backward_weight(b, layer.weight),
          .transposed = transposes_copies(b)};
}

// The input of all tokens as the weight gradient reads it; `gathered` is all of what was kept.
View whole_input(StageBuilder& b, const std::string& name, const View& gathered) {
  if (gathers_wide(b)) return quantize(b, name + "_again", gathered, {.rows = false}).cols;
  const bool flipped = is_narrow(b) && b.layout.sp && transposes_copies(b);
  return flipped ? transposed_copy(b, name + "_input", gathered) : gathered;
}

}  // namespace

void column_parallel_forward(StageBuilder& b, const LinearLayer& layer, const View& x,
                             const View& bias, const View& y, LinearState& state) {
  state.input = x;
  if (!is_narrow(b)) {
    const View full = gathered_linear(b, layer.name, x, b.weight(layer.weight).value, bias, y);
    adapter_forward(b, layer, full, y, state);
    return;
  }
  if (gathers_wide(b)) {
    const View full = b.gathered(layer.name, x);
    const NarrowCopies copies =
        quantize(b, std::string(layer.name) + "_input", full, {.cols = false});
    b.linear(layer.name, copies.rows, forward_weight(b, layer.weight), bias, y);
    adapter_forward(b, layer, full, y, state);
    return;
  }
  const bool train = b.trains(layer.weight);
  const NarrowCopies copies = quantize(b, std::string(layer.name) + "_input", x,
                                       {.cols = train, .shard = b.layout.sp, .keep = train});
  state.copy = present(copies.cols) ? copies.cols : copies.rows;
  gathered_linear(b, layer.name, copies.rows, forward_weight(b, layer.weight), bias, y);
  if (!has_adapter(b, layer)) return;
  adapter_forward(b, layer, b.gathered(std::string(layer.name) + "_adapter", x), y, state);
}

View row_parallel_forward(StageBuilder& b, const LinearLayer& layer, const View& x,
                          LinearState& state) {
  const std::string name = layer.name;
  state.input = x;
  View w = b.weight(layer.weight).value, multiplied = x;
  if (is_narrow(b)) {
    const bool train = b.trains(layer.weight);
    const NarrowCopies copies = quantize(b, name + "_input", x, {.cols = train, .keep = train});
    state.copy = copies.cols;
    multiplied = copies.rows;
    w = forward_weight(b, layer.weight);
  }
  const View y = reduced_linear(b, name, multiplied, w);
  if (has_rings(b) || b.token_pieces() > 1 || sum_chunks(b, w.rows) > 1) return y;
  adapter_forward(b, layer, x, y, state);
  return b.reduced(name, y);
}

namespace {

// Both weight and input gradient in rings: shards of the input pass while the weight's gradient
// takes their rows, then the input gradient's sums travel.
View ring_column_backward(StageBuilder& b, const LinearLayer& layer, const View& dy,
                          const LinearState& state, bool to_input) {
  const std::string name = layer.name;
  const Operands o = wide_operands(b, layer, dy);
  if (b.trains(layer.weight)) {
    ring_gather(b, name + "_input", state.input, [&](const View& held, RingRows of) {
      b.linear_weight_grad(name, dy, held, b.weight(layer.weight).gradient, false, of);
    });
  }
  if (!to_input) return {};
  return ring_scatter(b, name + "_input_grad", state.input.cols,
                      [&](const View& part, RingRows of) {
                        b.linear_input_grad(name, dy, o.w, part, false, false, of);
                      });
}

// Shards of the gradient pass while both products take their rows.
View ring_row_backward(StageBuilder& b, const LinearLayer& layer, const View& dy,
                       const LinearState& state) {
  const std::string name = layer.name;
  const View dx = b.temporary(name + "_input_grad", b.sizes.tokens, state.input.cols);
  ring_gather(b, name + "_grad", dy, [&](const View& held, RingRows of) {
    b.linear_input_grad(name, held, b.weight(layer.weight).value, dx, false, false, of);
    if (!b.trains(layer.weight)) return;
    b.linear_weight_grad(name, held, state.input, b.weight(layer.weight).gradient, false, of);
  });
  return dx;
}

}  // namespace

View column_parallel_backward(StageBuilder& b, const LinearLayer& layer, const View& dy,
                              const LinearState& state, bool to_input) {
  if (has_rings(b)) return ring_column_backward(b, layer, dy, state, to_input);
  const std::string name = layer.name;
  const bool narrow = is_narrow(b), train = b.trains(layer.weight);
  const Operands o = narrow ? narrow_operands(b, layer, dy) : wide_operands(b, layer, dy);
  const AdapterGrads adapter = adapter_input_grads(b, layer, dy);
  // The gathered input was not kept: sequence parallelism gathers it again for the weight gradient.
  View kept;
  if (train || has_adapter(b, layer)) {
    const bool of_copy = narrow && train && !gathers_wide(b);
    kept = b.gathered(name + "_input", of_copy ? state.copy : state.input);
  }
  const auto weight_grads = [&] {
    if (train) {
      b.linear_weight_grad(name, o.dy_cols, whole_input(b, name, kept),
                           b.weight(layer.weight).gradient, o.transposed);
    }
    adapter_weight_grads(b, layer, adapter, kept, state);
  };
  const auto input_grad = [&] {
    const View partial = b.temporary(name + "_input_grad", dy.rows, state.input.cols);
    if (b.token_pieces() > 1 || grad_sum_chunks(b, partial.cols) > 1) {
      return reduced_input_grad(b, name, o.dy, o.w, partial, o.transposed);
    }
    b.linear_input_grad(name, o.dy, o.w, partial, o.transposed);
    add_adapter_input_grad(b, layer, adapter, partial);
    return b.reduced(name, partial);
  };
  View dx;
  if (b.kernels.async_tensor_parallel) {
    if (to_input) dx = input_grad();
    weight_grads();
    return dx;
  }
  // The weight gradient first: the collective then has nothing to hide under, as in these stacks.
  weight_grads();
  if (to_input) dx = input_grad();
  return dx;
}

View row_parallel_backward(StageBuilder& b, const LinearLayer& layer, const View& dy,
                           const LinearState& state) {
  if (has_rings(b)) return ring_row_backward(b, layer, dy, state);
  const std::string name = layer.name;
  const bool narrow = is_narrow(b), train = b.trains(layer.weight);
  const View dx = b.temporary(name + "_input_grad", b.sizes.tokens, state.input.cols);
  View full, cols;
  if (gathers_wide(b)) {
    const NarrowCopies copies = quantize(b, name + "_grad", b.gathered(name, dy), {.cols = train});
    full = copies.rows, cols = copies.cols;
    b.linear_input_grad(name, full, backward_weight(b, layer.weight), dx, transposes_copies(b));
  } else if (narrow) {
    const NarrowCopies copies =
        quantize(b, name + "_grad", dy, {.cols = train, .shard = b.layout.sp});
    full = gathered_input_grad(b, name, copies.rows, backward_weight(b, layer.weight), dx,
                               transposes_copies(b));
    cols = present(copies.cols) ? b.gathered(name + "_columns", copies.cols) : View{};
    if (train && !present(cols)) cols = transposed_copy(b, name + "_grad", full);
  } else {
    full = gathered_input_grad(b, name, dy, b.weight(layer.weight).value, dx, false);
    cols = full;
  }
  if (train) {
    b.linear_weight_grad(name, cols, narrow ? state.copy : state.input,
                         b.weight(layer.weight).gradient, narrow && transposes_copies(b));
  }
  if (!has_adapter(b, layer)) return dx;
  const View wide = narrow ? b.gathered(name + "_adapter", dy) : full;
  const AdapterGrads adapter = adapter_input_grads(b, layer, wide);
  add_adapter_input_grad(b, layer, adapter, dx);
  adapter_weight_grads(b, layer, adapter, state.input, state);
  return dx;
}

}  // namespace gputwin
