#include "validation/nn/gpt.h"

#include <cmath>
#include <random>

#include "sim/core/check.h"

namespace gputwin::nn {
namespace {

// Normal numbers by Box and Muller from a fixed generator: std::normal_distribution may differ
// between libraries.
class Normal {
 public:
  explicit Normal(std::uint64_t seed) : bits_(seed) {}

  float draw(double deviation) {
    const double u = (static_cast<double>(bits_() >> 11) + 1) * 0x1p-53;
    const double v = static_cast<double>(bits_() >> 11) * 0x1p-53;
    return static_cast<float>(deviation * std::sqrt(-2 * std::log(u)) *
                              std::cos(6.283185307179586 * v));
  }

 private:
  std::mt19937_64 bits_;
};

void add(const Floats& from, Floats& to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

// Draws the whole matrix [rows, columns x groups] and keeps the rank's share of each group's
// columns.
void fill_columns(Normal& normal, double deviation, std::int64_t rows, std::int64_t columns,
                  std::int64_t groups, std::int64_t rank, std::int64_t ranks, Floats& part) {
  const std::int64_t share = columns / ranks;
  std::size_t at = 0;
  for (std::int64_t i = 0; i < rows * groups * columns; ++i) {
    const float v = normal.draw(deviation);
    if (i % columns / share == rank) part[at++] = v;
  }
}

}  // namespace

std::int64_t parameter_count(const GptShape& s) {
  const std::int64_t h = s.hidden;
  return s.layers * (12 * h * h + 4 * h) + (2 * s.vocabulary + s.length + 2) * h;
}

Gpt::Gpt(const GptShape& s, std::int32_t rank, std::int32_t ranks, std::uint64_t seed)
    : shape_(s),
      ranks_(ranks),
      tokens_(s.vocabulary * s.hidden),
      positions_(s.length * s.hidden),
      gain_(s.hidden),
      shift_(s.hidden),
      head_(s.hidden * s.vocabulary),
      layers_(s.layers) {
  GPUTWIN_CHECK(s.heads % ranks == 0 && s.hidden % s.heads == 0, "heads are whole on every rank");
  const std::int64_t h = s.hidden;
  for (Layer& l : layers_) {
    for (Parameter* p : {&l.gain1, &l.shift1, &l.gain2, &l.shift2}) *p = Parameter(h);
    l.qkv = Parameter(3 * h * h / ranks);
    l.proj = Parameter(h * h / ranks);
    l.fc1 = Parameter(4 * h * h / ranks);
    l.fc2 = Parameter(4 * h * h / ranks);
  }
  fill(seed, rank);
}

void Gpt::fill(std::uint64_t seed, std::int32_t rank) {
  Normal normal(seed);
  const std::int64_t h = shape_.hidden;
  const double small = 0.02;
  const double out = small / std::sqrt(2.0 * static_cast<double>(shape_.layers));
  for (float& v : tokens_.value) v = normal.draw(small);
  for (float& v : positions_.value) v = normal.draw(small);
  for (float& v : head_.value) v = normal.draw(small);
  gain_.value.assign(h, 1.0F);
  for (Layer& l : layers_) {
    l.gain1.value.assign(h, 1.0F);
    l.gain2.value.assign(h, 1.0F);
    fill_columns(normal, small, h, h, 3, rank, ranks_, l.qkv.value);
    fill_columns(normal, out, 1, h * h, 1, rank, ranks_, l.proj.value);  // rows are contiguous
    fill_columns(normal, small, h, 4 * h, 1, rank, ranks_, l.fc1.value);
    fill_columns(normal, out, 1, 4 * h * h, 1, rank, ranks_, l.fc2.value);
  }
}

AttentionShape Gpt::attention_shape(std::int64_t rows) const {
  return {rows / shape_.length, shape_.length, shape_.heads / ranks_, shape_.hidden / shape_.heads};
}

void Gpt::forward_layer(std::size_t at, std::int64_t rows, const Exchange& sum) {
  Layer& l = layers_[at];
  const auto place = static_cast<std::int64_t>(2 * at);
  Floats branch;
  layer_norm(x_, l.gain1.value, l.shift1.value, l.norm1, l.normed1);
  linear(l.normed1, l.qkv.value, rows, l.qkv_out);
  attention(attention_shape(rows), l.qkv_out, l.weights, l.mixed);
  linear(l.mixed, l.proj.value, rows, branch);
  sum(Phase::Forward, place, rows, shape_.hidden, branch.data());
  add(branch, x_);
  layer_norm(x_, l.gain2.value, l.shift2.value, l.norm2, l.normed2);
  linear(l.normed2, l.fc1.value, rows, l.fc1_out);
  gelu(l.fc1_out, l.active);
  linear(l.active, l.fc2.value, rows, branch);
  sum(Phase::Forward, place + 1, rows, shape_.hidden, branch.data());
  add(branch, x_);
}

void Gpt::backward_layer(std::size_t at, std::int64_t rows, const Exchange& sum, Floats& dx) {
  Layer& l = layers_[at];
  const auto place = static_cast<std::int64_t>(2 * (layers_.size() - 1 - at));
  Floats dbranch, dinner, dnormed, dnorm;
  linear_backward(l.active, l.fc2.value, dx, rows, dbranch, l.fc2.grad);
  gelu_backward(l.fc1_out, dbranch, dinner);
  linear_backward(l.normed2, l.fc1.value, dinner, rows, dnormed, l.fc1.grad);
  sum(Phase::Backward, place, rows, shape_.hidden, dnormed.data());
  layer_norm_backward(l.norm2, l.gain2.value, dnormed, dnorm, l.gain2.grad, l.shift2.grad);
  add(dnorm, dx);
  linear_backward(l.mixed, l.proj.value, dx, rows, dbranch, l.proj.grad);
  attention_backward(attention_shape(rows), l.qkv_out, l.weights, dbranch, dinner);
  linear_backward(l.normed1, l.qkv.value, dinner, rows, dnormed, l.qkv.grad);
  sum(Phase::Backward, place + 1, rows, shape_.hidden, dnormed.data());
  layer_norm_backward(l.norm1, l.gain1.value, dnormed, dnorm, l.gain1.grad, l.shift1.grad);
  add(dnorm, dx);
}

void Gpt::embed_backward(const std::vector<std::int32_t>& tokens, const Floats& dx) {
  const std::int64_t h = shape_.hidden;
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    const std::int64_t position = static_cast<std::int64_t>(r) % shape_.length;
    for (std::int64_t i = 0; i < h; ++i) {
      tokens_.grad[tokens[r] * h + i] += dx[r * h + i];
      positions_.grad[position * h + i] += dx[r * h + i];
    }
  }
}

double Gpt::step(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                 const Exchange& sum, bool train) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  GPUTWIN_CHECK(rows % shape_.length == 0, "a batch is whole sequences");
  const std::int64_t h = shape_.hidden;
  x_.resize(rows * h);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < h; ++i) {
      x_[r * h + i] =
          tokens_.value[tokens[r] * h + i] + positions_.value[r % shape_.length * h + i];
    }
  }
  for (std::size_t l = 0; l < layers_.size(); ++l) forward_layer(l, rows, sum);
  Normalised norm;
  Floats normed, logits, dlogits, dnormed, dx;
  layer_norm(x_, gain_.value, shift_.value, norm, normed);
  linear(normed, head_.value, rows, logits);
  const double loss = cross_entropy(logits, targets, dlogits);
  if (!train) return loss;
  linear_backward(normed, head_.value, dlogits, rows, dnormed, head_.grad);
  layer_norm_backward(norm, gain_.value, dnormed, dx, gain_.grad, shift_.grad);
  for (std::size_t l = layers_.size(); l-- > 0;) backward_layer(l, rows, sum, dx);
  embed_backward(tokens, dx);
  return loss;
}

std::vector<Parameter*> Gpt::parameters() {
  std::vector<Parameter*> all{&tokens_, &positions_, &gain_, &shift_, &head_};
  for (Layer& l : layers_) {
    for (Parameter* p : {&l.gain1, &l.shift1, &l.qkv, &l.proj, &l.gain2, &l.shift2, &l.fc1, &l.fc2})
      all.push_back(p);
  }
  return all;
}

void Gpt::adam(double rate, std::int64_t step) {
  for (Parameter* p : parameters()) adam_step(*p, rate, step);
}

}  // namespace gputwin::nn
