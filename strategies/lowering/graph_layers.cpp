#include "strategies/lowering/graph_layers.h"

#include <algorithm>
#include <set>

#include "sim/core/check.h"

namespace gputwin {
namespace {

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// Columns [first, first + count) of a matrix.
View part(View view, std::int64_t first, std::int64_t count) {
  view.offset += first;
  view.cols = count;
  return view;
}

bool contiguous(const View& view) { return view.rows <= 1 || view.ld == view.cols; }

}  // namespace

GraphLayers::GraphLayers(PlanBuilder& plan, const LayerGraph& graph, const Job& job,
                         const GraphWeights& weights, std::int32_t first, std::int32_t last,
                         std::int64_t samples, const std::string& prefix)
    : plan_(plan),
      graph_(graph),
      job_(job),
      weights_(weights),
      first_(first),
      last_(last),
      samples_(samples),
      prefix_(prefix),
      dtype_(graph_activation(job)),
      consumers_(graph.layers.size()) {
  for (std::size_t l = 0; l < graph.layers.size(); ++l) {
    for (const std::int32_t from : graph.layers[l].inputs) {
      consumers_[at(from)].push_back(static_cast<std::int32_t>(l));
    }
  }
  for (std::int32_t l = 0; l < last_; ++l) {
    if (consumers_[at(l)].empty()) continue;
    const std::int32_t furthest = consumers_[at(l)].back();
    if (l < first_ && furthest >= first_) received_.push_back(l);
    if (furthest >= last_) sent_.push_back(l);
  }
  for (const std::int32_t l : received_) {
    now_ = l;
    values_[l] = kept("received", layer(l).output);
  }
  for (const std::int32_t l : sent_) {
    now_ = l;
    arriving_[l] = gradient("arriving", layer(l).output);
  }
}

View GraphLayers::framed(const std::string& name, std::int64_t rows, std::int64_t cols, DType dtype,
                         MemoryClass memory) {
  const BufferId buffer = plan_.buffer({.name = prefix_ + layer(now_).name + "." + name,
                                        .bytes = Bytes(stored_bytes(dtype, rows * cols)),
                                        .memory = memory,
                                        .dtype = dtype,
                                        .framed = true});
  return {.buffer = buffer, .rows = rows, .cols = cols, .ld = cols, .dtype = dtype};
}

View GraphLayers::kept(const std::string& name, std::int64_t rows, std::int64_t cols, DType dtype) {
  return framed(name, rows, cols, dtype, MemoryClass::Activations);
}
View GraphLayers::kept(const std::string& name, const Extent& e) {
  return kept(name, rows(e), cols(e), dtype_);
}
View GraphLayers::passing(const std::string& name, std::int64_t rows, std::int64_t cols) {
  return framed(name, rows, cols, dtype_, MemoryClass::Temporary);
}
View GraphLayers::gradient(const std::string& name, const Extent& e) {
  return passing(name, rows(e), cols(e));
}

void GraphLayers::kernel(Phase phase, const char* suffix, Op op, Views reads, Views writes) {
  const bool product = op.kind == OpKind::Gemm || is_convolution(op.kind) ||
                       is_recurrent(op.kind) || is_attention_gemm(op.kind);
  op.dtype = product ? job_.precision.compute : reads.empty() ? writes[0].dtype : reads[0].dtype;
  op.out = writes[0].dtype;
  const NameId name =
      plan_.name({.phase = phase, .layer = layer(now_).unit, .op = layer(now_).name + suffix});
  const CallId call =
      plan_.call({.op = op, .reads = std::move(reads), .writes = std::move(writes)});
  ops_.push_back({.kind = Kind::Kernel, .stream = 0, .call = call, .name = name});
  if (phase == Phase::Forward && layer(now_).kind != LayerKind::Loss) repeated_[name] = now_;
}

View GraphLayers::in(std::int32_t which) const {
  const auto& inputs = layer(now_).inputs;
  return inputs.empty() ? input : values_.at(inputs[at(which)]);
}

Extent GraphLayers::in_extent(std::int32_t which) const {
  const auto& inputs = layer(now_).inputs;
  return inputs.empty() ? graph_.input : layer(inputs[at(which)]).output;
}

View GraphLayers::as_matrix(View view, std::int64_t width) const {
  if (view.cols == width) return view;
  GPUTWIN_CHECK(contiguous(view), "only whole tensors change their shape");
  view.rows = view.elements() / width;
  view.cols = view.ld = width;
  return view;
}

// The result of an activation or a sum.
View GraphLayers::fresh_or_in_place() {
  const auto& inputs = layer(now_).inputs;
  if (inputs.empty() || inputs[0] < first_ || consumers_[at(inputs[0])].size() != 1) {
    return kept("out", layer(now_).output);
  }
  switch (layer(inputs[0]).kind) {
    case LayerKind::Convolution:
    case LayerKind::Linear:
    case LayerKind::BatchNorm:
    case LayerKind::Add: return in();
    case LayerKind::LayerNorm:
    case LayerKind::Relu:
    case LayerKind::Gelu:
    case LayerKind::MaxPool:
    case LayerKind::AveragePool:
    case LayerKind::Concat:
    case LayerKind::Upsample:
    case LayerKind::Dropout:
    case LayerKind::Recurrent:
    case LayerKind::Embedding:
    case LayerKind::Attention:
    case LayerKind::Loss:
    case LayerKind::Stated: break;
  }
  return kept("out", layer(now_).output);
}

Op GraphLayers::convolution(OpKind kind) const {
  const GraphLayer& l = layer(now_);
  const Extent e = in_extent(0);
  const LayerWindow& w = l.window;
  Op op{.kind = kind,
        .dims = {samples_, e.channels, l.output.channels, e.height, e.width, w.groups}};
  op.filter = {w.height, w.width, w.stride_height, w.stride_width, w.pad_height, w.pad_width};
  return op;
}

std::vector<SegmentOp> GraphLayers::forward() {
  ops_.clear();
  for (std::int32_t l = first_; l < last_; ++l) forward_layer(l);
  return std::move(ops_);
}

void GraphLayers::forward_layer(std::int32_t l) {
  now_ = l;
  const GraphLayer& g = layer(l);
  const GraphWeight& w = weights_.of(l);
  const Extent& e = g.output;
  const std::int64_t r = rows(e), c = cols(e);
  View y;
  const auto with_bias = [&](View x) {
    Views reads{x, w.value};
    if (g.bias) reads.push_back(w.second);
    return reads;
  };
  switch (g.kind) {
    case LayerKind::Convolution:
      y = kept("out", e);
      kernel(Phase::Forward, "", convolution(OpKind::ConvForward), with_bias(in()), {y});
      break;
    case LayerKind::Linear: {
      const std::int64_t k = linear_width(graph_, g);
      const View x = as_matrix(in(), k);
      y = kept("out", e);
      kernel(Phase::Forward, "",
             {.kind = OpKind::Gemm, .trans_b = true, .dims = {x.rows, e.channels, k}}, with_bias(x),
             {as_matrix(y, e.channels)});
      break;
    }
    case LayerKind::BatchNorm:
    case LayerKind::LayerNorm: return forward_norm();
    case LayerKind::Relu:
    case LayerKind::Gelu: {
      const bool relu = g.kind == LayerKind::Relu;
      y = relu ? fresh_or_in_place() : kept("out", e);
      kernel(Phase::Forward, "",
             {.kind = OpKind::ActivationForward,
              .activation = relu ? Activation::Relu : Activation::Gelu,
              .dims = {r, c}},
             {in()}, {y});
      break;
    }
    case LayerKind::MaxPool: {
      y = kept("out", e);
      const View places = saved_[{l, "places"}] = kept("places", r, c, DType::I64);
      kernel(Phase::Forward, "", {.kind = OpKind::Opaque}, {in()}, {y, places});
      break;
    }
    case LayerKind::AveragePool:
    case LayerKind::Upsample:
      y = kept("out", e);
      kernel(Phase::Forward, "", {.kind = OpKind::Opaque}, {in()}, {y});
      break;
    case LayerKind::Add: return forward_sum();
    case LayerKind::Concat: return forward_concat();
    case LayerKind::Dropout: return forward_dropout();
    case LayerKind::Recurrent: return forward_recurrent();
    case LayerKind::Embedding:
      y = kept("out", e);
      kernel(Phase::Forward, "", {.kind = OpKind::EmbeddingForward, .dims = {r, c, g.vocab}},
             {in(), w.value}, {y});
      break;
    case LayerKind::Attention: return forward_attention();
    case LayerKind::Loss: return forward_loss();
    case LayerKind::Stated: return forward_stated();
  }
  values_[l] = y;
}

void GraphLayers::forward_norm() {
  const GraphLayer& g = layer(now_);
  const GraphWeight& w = weights_.of(now_);
  const Extent& e = g.output;
  const View y = kept("out", e);
  const std::int64_t t = samples_ * e.positions();
  const std::int64_t groups = g.kind == LayerKind::BatchNorm ? e.channels : t;
  const View stats = saved_[{now_, "stats"}] = kept("stats", groups, 2, DType::F32);
  kernel(Phase::Forward, "", {.kind = OpKind::NormForward, .dims = {t, e.channels}},
         {in(), w.value, w.second}, {y, stats});
  values_[now_] = y;
}

void GraphLayers::forward_dropout() {
  const GraphLayer& g = layer(now_);
  const Extent& e = g.output;
  const View y = values_[now_] = kept("out", e);
  const std::int64_t r = rows(e), c = cols(e);
  const View mask = saved_[{now_, "mask"}] = kept("mask", r, c, DType::U8);
  kernel(Phase::Forward, "",
         {.kind = OpKind::CastCopy, .dropout = static_cast<float>(g.dropout), .dims = {r * c}},
         {in()}, {y, mask});
}

void GraphLayers::forward_recurrent() {
  const GraphLayer& g = layer(now_);
  const Extent& e = g.output;
  const View y = values_[now_] = kept("out", e);
  const std::int64_t r = rows(e);
  const GraphWeight& w = weights_.of(now_);
  const View gates = saved_[{now_, "gates"}] = kept("gates", r, (g.gates + 1) * e.channels, dtype_);
  kernel(Phase::Forward, "",
         {.kind = OpKind::RnnForward,
          .dims = {samples_, e.height, in_extent(0).channels, e.channels, g.gates}},
         {in(), w.value}, {y, gates});
}

void GraphLayers::forward_stated() {
  const GraphLayer& g = layer(now_);
  const Extent& e = g.output;
  const View y = values_[now_] = kept("out", e);
  const GraphWeight& w = weights_.of(now_);
  Views reads;
  for (std::size_t i = 0; i < g.inputs.size(); ++i)
    reads.push_back(in(static_cast<std::int32_t>(i)));
  if (w.present()) reads.push_back(w.value);
  Op op{.kind = OpKind::Opaque};
  op.stated = std::max(g.forward_time * static_cast<double>(samples_), Seconds(1e-9));
  kernel(Phase::Forward, "", op, reads, {y});
}

void GraphLayers::forward_sum() {
  View sum = fresh_or_in_place();
  View left = in(0);
  for (std::size_t i = 1; i < layer(now_).inputs.size(); ++i) {
    kernel(Phase::Forward, "", {.kind = OpKind::Add, .dims = {sum.elements()}},
           {left, in(static_cast<std::int32_t>(i))}, {sum});
    left = sum;
  }
  values_[now_] = sum;
}

void GraphLayers::forward_concat() {
  const View y = kept("out", layer(now_).output);
  Views reads, writes;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < layer(now_).inputs.size(); ++i) {
    reads.push_back(in(static_cast<std::int32_t>(i)));
    writes.push_back(part(y, first, reads.back().cols));
    first += reads.back().cols;
  }
  kernel(Phase::Forward, "", {.kind = OpKind::CastCopy, .dims = {y.elements()}}, reads, writes);
  values_[now_] = y;
}

void GraphLayers::forward_attention() {
  const GraphLayer& g = layer(now_);
  const std::int64_t h = g.output.channels, s = g.output.height, a = g.heads;
  const View x = in(), y = kept("out", g.output);
  const View q = part(x, 0, h), k = part(x, h, h), v = part(x, 2 * h, h);
  Op op{.kind = OpKind::FlashForward, .causal = g.causal, .dims = {samples_, a, a, s, s, h / a}};
  if (is_flash(job_.attention)) {
    op.attention = job_.attention;
    op.dropout = static_cast<float>(g.dropout);
    const View l = saved_[{now_, "log_sum"}] = kept("log_sum", samples_ * a * s, 1, DType::F32);
    op.dropout = 0;
    kernel(Phase::Forward, "", op, {q, k, v}, {y, l});
  } else {
    const std::int64_t r = samples_ * a * s;
    const View scores = passing("scores", r, s);
    op.kind = OpKind::AttentionScores;
    kernel(Phase::Forward, ".scores", op, {q, k}, {scores});
    View probs = kept("probs", r, s, dtype_);
    saved_[{now_, "probs"}] = saved_[{now_, "used"}] = probs;
    Views writes{probs};
    Op softmax{.kind = OpKind::SoftmaxForward, .causal = g.causal, .dims = {samples_, a, s, s}};
    if (g.dropout > 0) {
      softmax.dropout = static_cast<float>(g.dropout);
      saved_[{now_, "used"}] = kept("dropped", r, s, dtype_);
      saved_[{now_, "mask"}] = kept("mask", r, s, DType::U8);
      writes.push_back(saved_[{now_, "used"}]);
      writes.push_back(saved_[{now_, "mask"}]);
    }
    kernel(Phase::Forward, ".softmax", softmax, {scores}, writes);
    op.kind = OpKind::AttentionContext;
    kernel(Phase::Forward, ".context", op, {saved_[{now_, "used"}], v}, {y});
  }
  values_[now_] = y;
}

void GraphLayers::forward_loss() {
  const Extent e = in_extent(0);
  const std::int64_t t = samples_ * e.positions(), v = e.channels;
  const View logits = as_matrix(in(), v);
  const View max = saved_[{now_, "max"}] = kept("max", t, 1, DType::F32);
  const View sums = saved_[{now_, "sums"}] = kept("sums", t, 2, DType::F32);
  const auto all = static_cast<double>(job_.global_batch * e.positions());
  kernel(Phase::Forward, ".max", {.kind = OpKind::LogitsMax, .dims = {t, v}}, {logits}, {max});
  kernel(Phase::Forward, ".sum", {.kind = OpKind::LogitsSum, .dims = {t, v}},
         {logits, max, targets}, {sums});
  kernel(Phase::Forward, "",
         {.kind = OpKind::LossFromSums,
          .accumulate = true,
          .scale = static_cast<float>(1.0 / all),
          .dims = {t}},
         {max, sums}, {loss});
  values_[now_] = logits;
}

View GraphLayers::leaving(std::int32_t l) const { return gradients_.at(l); }

void GraphLayers::start_backward() {
  gradients_.clear();
  for (const auto& [l, view] : arriving_) gradients_[l] = view;
  if (last_ == static_cast<std::int32_t>(graph_.layers.size()) &&
      layer(last_ - 1).kind != LayerKind::Loss) {
    // Stated layers end in what they end in: its gradient is the layer's own output.
    gradients_[last_ - 1] = values_.at(last_ - 1);
  }
}

void GraphLayers::add_gradient(std::int32_t to, const View& gradient_view) {
  const auto found = gradients_.find(to);
  if (found == gradients_.end()) {
    gradients_[to] = gradient_view;
    return;
  }
  const View sum = gradient("grad_of_" + layer(to).name, layer(to).output);
  kernel(Phase::Backward, ".grad_sum", {.kind = OpKind::Add, .dims = {sum.elements()}},
         {found->second, gradient_view}, {sum});
  found->second = sum;
}

void GraphLayers::give(std::int32_t which, const View& gradient_view) {
  add_gradient(layer(now_).inputs[at(which)], gradient_view);
}

void GraphLayers::backward_layer(std::int32_t l) {
  now_ = l;
  const GraphLayer& g = layer(l);
  if (g.kind == LayerKind::Loss) return backward_loss();
  const auto found = gradients_.find(l);
  if (found == gradients_.end()) return;  // nobody reads this layer
  const View dy = found->second;
  const Extent& e = g.output;
  const std::int64_t r = rows(e), c = cols(e);
  const auto pointwise = [&](Op op, Views reads) {
    if (!trains_input()) return;
    const View dx = gradient("grad_in", in_extent(0));
    kernel(Phase::Backward, "", op, std::move(reads), {dx});
    give(0, dx);
  };
  switch (g.kind) {
    case LayerKind::Convolution: return backward_convolution(dy);
    case LayerKind::Linear: return backward_linear(dy);
    case LayerKind::BatchNorm:
    case LayerKind::LayerNorm: return backward_norm(dy);
    case LayerKind::Relu:
      return pointwise(
          {.kind = OpKind::ActivationBackward, .activation = Activation::Relu, .dims = {r, c}},
          {dy, values_.at(l)});
    case LayerKind::Gelu:
      return pointwise(
          {.kind = OpKind::ActivationBackward, .activation = Activation::Gelu, .dims = {r, c}},
          {dy, in()});
    case LayerKind::MaxPool:
      return pointwise({.kind = OpKind::Opaque}, {dy, saved_.at({l, "places"})});
    case LayerKind::AveragePool:
    case LayerKind::Upsample: return pointwise({.kind = OpKind::Opaque}, {dy});
    case LayerKind::Add:
      for (std::size_t i = 0; i < g.inputs.size(); ++i) give(static_cast<std::int32_t>(i), dy);
      return;
    case LayerKind::Concat: return backward_concat(dy);
    case LayerKind::Dropout:
      return pointwise({.kind = OpKind::DropoutBackward,
                        .dropout = static_cast<float>(g.dropout),
                        .dims = {r, c}},
                       {dy, saved_.at({l, "mask"})});
    case LayerKind::Recurrent: return backward_recurrent(dy);
    case LayerKind::Embedding:
      kernel(Phase::WeightGrad, "",
             {.kind = OpKind::EmbeddingBackward, .accumulate = true, .dims = {r, c, g.vocab}},
             {in(), dy}, {weights_.of(l).gradient});
      return;
    case LayerKind::Attention: return backward_attention(dy);
    case LayerKind::Stated: return backward_stated(dy);
    case LayerKind::Loss: return;
  }
}

void GraphLayers::backward_convolution(const View& dy) {
  const GraphWeight& w = weights_.of(now_);
  if (trains_input()) {
    const View dx = gradient("grad_in", in_extent(0));
    kernel(Phase::Backward, "", convolution(OpKind::ConvGradInput), {dy, w.value}, {dx});
    give(0, dx);
  }
  Op op = convolution(OpKind::ConvGradWeight);
  op.accumulate = true;
  Views writes{w.gradient};
  if (layer(now_).bias) writes.push_back(w.second_gradient);
  kernel(Phase::WeightGrad, "", op, {dy, in()}, writes);
}

void GraphLayers::backward_linear(const View& dy_view) {
  const GraphWeight& w = weights_.of(now_);
  const std::int64_t k = linear_width(graph_, layer(now_)), n = layer(now_).output.channels;
  const View x = as_matrix(in(), k), dy = as_matrix(dy_view, n);
  if (trains_input()) {
    const View dx = gradient("grad_in", in_extent(0));
    kernel(Phase::Backward, "", {.kind = OpKind::Gemm, .dims = {x.rows, k, n}}, {dy, w.value},
           {as_matrix(dx, k)});
    give(0, dx);
  }
  kernel(Phase::WeightGrad, "",
         {.kind = OpKind::Gemm, .trans_a = true, .accumulate = true, .dims = {n, k, x.rows}},
         {dy, x}, {w.gradient});
  if (!layer(now_).bias) return;
  kernel(Phase::WeightGrad, ".bias",
         {.kind = OpKind::BiasGrad, .accumulate = true, .dims = {dy.rows, n}}, {dy},
         {w.second_gradient});
}

void GraphLayers::backward_norm(const View& dy) {
  const GraphWeight& w = weights_.of(now_);
  const Extent& e = layer(now_).output;
  const View dx = gradient("grad_in", in_extent(0));
  kernel(Phase::Backward, "",
         {.kind = OpKind::NormBackward,
          .accumulate = true,
          .dims = {samples_ * e.positions(), e.channels}},
         {dy, in(), w.value, saved_.at({now_, "stats"})}, {dx, w.gradient, w.second_gradient});
  if (trains_input()) give(0, dx);
}

void GraphLayers::backward_concat(const View& dy) {
  std::int64_t first = 0;
  for (std::size_t i = 0; i < layer(now_).inputs.size(); ++i) {
    const std::int64_t width = cols(in_extent(static_cast<std::int32_t>(i)));
    give(static_cast<std::int32_t>(i), part(dy, first, width));
    first += width;
  }
}

void GraphLayers::backward_recurrent(const View& dy) {
  const GraphLayer& g = layer(now_);
  const GraphWeight& w = weights_.of(now_);
  const View dx = gradient("grad_in", in_extent(0));
  const View dgates = passing("grad_gates", rows(g.output), g.gates * g.output.channels);
  Op op{.kind = OpKind::RnnGradInput,
        .dims = {samples_, g.output.height, in_extent(0).channels, g.output.channels, g.gates}};
  kernel(Phase::Backward, "", op, {dy, saved_.at({now_, "gates"}), w.value}, {dx, dgates});
  if (trains_input()) give(0, dx);
  op.kind = OpKind::RnnGradWeight;
  op.accumulate = true;
  kernel(Phase::WeightGrad, "", op, {dgates, in(), values_.at(now_)}, {w.gradient});
}

void GraphLayers::backward_attention(const View& dy) {
  const GraphLayer& g = layer(now_);
  const std::int64_t h = g.output.channels, s = g.output.height, a = g.heads;
  const View x = in(), dx = gradient("grad_in", in_extent(0));
  const View q = part(x, 0, h), k = part(x, h, h), v = part(x, 2 * h, h);
  const View dq = part(dx, 0, h), dk = part(dx, h, h), dv = part(dx, 2 * h, h);
  Op op{.kind = OpKind::FlashBackward, .causal = g.causal, .dims = {samples_, a, a, s, s, h / a}};
  if (is_flash(job_.attention)) {
    op.attention = job_.attention;
    kernel(Phase::Backward, "", op, {q, k, v, values_.at(now_), saved_.at({now_, "log_sum"}), dy},
           {dq, dk, dv});
  } else {
    const auto product = [&](OpKind kind, const char* name, Views reads, const View& to) {
      op.kind = kind;
      kernel(Phase::Backward, name, op, std::move(reads), {to});
    };
    const View dp = passing("grad_probs", samples_ * a * s, s);
    const View ds = passing("grad_scores", samples_ * a * s, s);
    product(OpKind::AttentionGradValue, ".value", {saved_.at({now_, "used"}), dy}, dv);
    product(OpKind::AttentionGradProbs, ".probs", {dy, v}, dp);
    Views reads{saved_.at({now_, "probs"}), dp};
    Op softmax{.kind = OpKind::SoftmaxBackward, .causal = g.causal, .dims = {samples_, a, s, s}};
    if (g.dropout > 0) {
      softmax.dropout = static_cast<float>(g.dropout);
      reads.push_back(saved_.at({now_, "mask"}));
    }
    kernel(Phase::Backward, ".softmax", softmax, reads, {ds});
    product(OpKind::AttentionGradQuery, ".query", {ds, k}, dq);
    product(OpKind::AttentionGradKey, ".key", {ds, q}, dk);
  }
  give(0, dx);
}

void GraphLayers::backward_stated(const View& dy) {
  const GraphLayer& g = layer(now_);
  const GraphWeight& w = weights_.of(now_);
  Views reads{dy, values_.at(now_)}, writes;
  std::vector<View> inputs;
  for (std::size_t i = 0; i < g.inputs.size(); ++i) {
    reads.push_back(in(static_cast<std::int32_t>(i)));
    inputs.push_back(
        gradient("grad_in" + std::to_string(i), in_extent(static_cast<std::int32_t>(i))));
    writes.push_back(inputs.back());
  }
  if (w.present()) writes.push_back(w.gradient);
  if (writes.empty()) return;
  Op op{.kind = OpKind::Opaque};
  op.stated = std::max(g.backward_time * static_cast<double>(samples_), Seconds(1e-9));
  kernel(Phase::Backward, "", op, reads, writes);
  for (std::size_t i = 0; i < inputs.size(); ++i) give(static_cast<std::int32_t>(i), inputs[i]);
}

void GraphLayers::backward_loss() {
  const Extent e = in_extent(0);
  const std::int64_t t = samples_ * e.positions(), v = e.channels;
  const View logits = values_.at(now_);
  const auto all = static_cast<double>(job_.global_batch * e.positions());
  // In place: the logits are not needed again.
  kernel(Phase::Backward, "",
         {.kind = OpKind::CrossEntropyBackward,
          .scale = static_cast<float>(1.0 / all),
          .dims = {t, v}},
         {logits, saved_.at({now_, "max"}), saved_.at({now_, "sums"}), targets}, {logits});
  give(0, in());
}

std::vector<SegmentOp> GraphLayers::repeat(const std::vector<SegmentOp>& forward,
                                           std::vector<SegmentOp>& backward) {
  std::map<BufferId, BufferId> again;
  const auto renamed = [&](CallId id) {
    Call call = plan_.plan().calls[id.value];
    for (auto* views : {&call.reads, &call.writes}) {
      for (View& v : *views) {
        if (const auto found = again.find(v.buffer); found != again.end()) v.buffer = found->second;
      }
    }
    return plan_.call(std::move(call));
  };
  std::vector<SegmentOp> repeated;
  std::set<BufferId> of_loss;
  for (const SegmentOp& op : forward) {
    if (!repeated_.contains(op.name)) {
      const Call& call = plan_.plan().calls[op.call.value];
      for (const View& v : call.reads) of_loss.insert(v.buffer);
    }
  }
  for (const SegmentOp& op : forward) {
    if (!repeated_.contains(op.name)) continue;
    const Call call = plan_.plan().calls[op.call.value];
    for (const View& v : call.writes) {
      const Buffer buffer = plan_.plan().buffers[v.buffer.value];
      if (!buffer.framed || again.contains(v.buffer)) continue;
      Buffer copy = buffer;
      copy.name += ".again";
      again[v.buffer] = plan_.buffer(std::move(copy));
    }
    SegmentOp copy = op;
    copy.call = renamed(op.call);
    Name name = plan_.plan().names[op.name.value];
    name.phase = Phase::Recompute;
    copy.name = plan_.name(std::move(name));
    repeated.push_back(copy);
  }
  // The gradient of the logits lies where the first forward pass put them.
  for (const BufferId b : of_loss) again.erase(b);
  for (SegmentOp& op : backward) op.call = renamed(op.call);
  return repeated;
}

}  // namespace gputwin
