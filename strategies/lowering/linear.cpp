#include "strategies/lowering/linear.h"

#include "strategies/lowering/adapters.h"
#include "strategies/lowering/quantize.h"

namespace gputwin {
namespace {

std::int64_t chunks_of(const StageBuilder& b, std::int64_t width) {
  const bool cut = b.layout.tp_overlap == TpOverlap::Userbuffers && b.layout.sp &&
                   b.job.lora_rank == 0 && width % b.layout.tp == 0;
  return cut ? b.layout.tp : 1;
}

// Calls `act` with the chunk's number, its first index and its width.
template <class Act>
void each_chunk(StageBuilder& b, std::int64_t width, Act act) {
  const std::int64_t n = chunks_of(b, width);
  for (std::int64_t i = 0; i < n; ++i) {
    b.number(static_cast<std::int32_t>(i));
    act(i, i * (width / n), width / n);
  }
  b.number(0);
}

// y = x w^T (+ bias) of all tokens of x, which is returned whole.
View gathered_linear(StageBuilder& b, const std::string& name, const View& x, const View& w,
                     const View& bias, const View& y) {
  if (chunks_of(b, x.cols) == 1) {
    const View full = b.gathered(name, x);
    b.linear(name, full, w, bias, y);
    return full;
  }
  const View full = b.temporary(name + "_gathered", b.sizes.tokens, x.cols, x.dtype);
  each_chunk(b, x.cols, [&](std::int64_t i, std::int64_t first, std::int64_t width) {
    const View part = columns(full, first, width);
    b.all_gather(name + "_all_gather", columns(x, first, width), part);
    b.linear(name, part, columns(w, first, width), i == 0 ? bias : View{}, y, i > 0);
  });
  return full;
}

// The sum over tp of x w^T.
View reduced_linear(StageBuilder& b, const std::string& name, const View& x, const View& w) {
  const View partial = b.temporary(name, x.rows, w.rows);
  if (chunks_of(b, w.rows) == 1) {
    b.linear(name, x, w, {}, partial);
    return partial;
  }
  const View shard = b.temporary(name + "_scattered", b.sizes.shard_tokens, w.rows);
  each_chunk(b, w.rows, [&](std::int64_t, std::int64_t first, std::int64_t width) {
    const View part = columns(partial, first, width);
    b.linear(name, x, rows(w, first, width), {}, part);
    b.reduce_scatter(name + "_reduce_scatter", part, columns(shard, first, width));
  });
  return shard;
}

// dx = dy w of all tokens of dy, which is returned whole; `transposed`: w is w^T.
View gathered_input_grad(StageBuilder& b, const std::string& name, const View& dy, const View& w,
                         const View& dx, bool transposed) {
  if (chunks_of(b, dy.cols) == 1) {
    const View full = b.gathered(name, dy);
    b.linear_input_grad(name, full, w, dx, transposed);
    return full;
  }
  const View full = b.temporary(name + "_gathered", b.sizes.tokens, dy.cols, dy.dtype);
  each_chunk(b, dy.cols, [&](std::int64_t i, std::int64_t first, std::int64_t width) {
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
  if (chunks_of(b, w.rows) > 1) return y;
  adapter_forward(b, layer, x, y, state);
  return b.reduced(name, y);
}

View column_parallel_backward(StageBuilder& b, const LinearLayer& layer, const View& dy,
                              const LinearState& state, bool to_input) {
  const std::string name = layer.name;
  const bool narrow = is_narrow(b), train = b.trains(layer.weight);
  const Operands o = narrow ? narrow_operands(b, layer, dy) : wide_operands(b, layer, dy);
  const AdapterGrads adapter = adapter_input_grads(b, layer, dy);
  // The gathered input was not kept: sequence parallelism gathers it again for the weight gradient.
  View kept;
  if (train || has_adapter(b, layer)) {
    kept = b.gathered(name + "_input", narrow && train ? state.copy : state.input);
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
  const std::string name = layer.name;
  const bool narrow = is_narrow(b), train = b.trains(layer.weight);
  const View dx = b.temporary(name + "_input_grad", b.sizes.tokens, state.input.cols);
  View full, cols;
  if (narrow) {
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
