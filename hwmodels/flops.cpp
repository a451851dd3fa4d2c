#include "hwmodels/flops.h"

#include <algorithm>

namespace gputwin {

namespace {

// Forward FLOPs of one sample through one layer.
struct LayerFlops {
  double linear = 0.0, attention = 0.0;
};

LayerFlops layer_flops(const Transformer& model, double s, FlopsConvention convention) {
  const double h = static_cast<double>(model.hidden);
  const double weights = h * static_cast<double>(model.qkv_width()) +
                         static_cast<double>(model.query_width()) * h +
                         h * static_cast<double>(model.fc1_width() + model.ffn);
  const double pairs = convention == FlopsConvention::Megatron ? s * s : s * (s + 1.0) / 2.0;
  return {2.0 * s * weights, 4.0 * pairs * static_cast<double>(model.query_width())};
}

// Low-rank adapters of one layer: thin products of rank r beside qkv, proj, fc1 and fc2.
double adapter_flops(const Transformer& model, double s, const Job& job) {
  const double h = static_cast<double>(model.hidden), rank = job.lora_rank;
  if (job.lora_qkv_only) return 2.0 * s * rank * (static_cast<double>(model.qkv_width()) + h);
  const double widths =
      static_cast<double>(model.qkv_width() + model.query_width() + model.fc1_width() + model.ffn) +
      4.0 * h;
  return 2.0 * s * rank * widths;
}

// Layers whose whole forward pass runs twice.
double fully_recomputed_layers(const Transformer& model, const Layout& layout) {
  switch (layout.recompute) {
    case Recompute::None:
    case Recompute::AllButLast:  // of layer graphs alone
    case Recompute::Selective: return 0.0;
    case Recompute::Full: return static_cast<double>(model.layers);
    case Recompute::Block: {
      double layers = 0.0;
      const std::vector<std::int32_t> per_chunk = layout.layers_per_chunk(model.layers);
      for (std::size_t c = 0; c < per_chunk.size(); ++c) {
        const std::int32_t stage = static_cast<std::int32_t>(c) % layout.pp;
        layers += std::min(per_chunk[c], layout.recomputed_layers(stage));
      }
      return layers;
    }
  }
  return 0.0;
}

}  // namespace

IterationFlops iteration_flops(const Transformer& model, const Job& job, const Layout& layout,
                               FlopsConvention convention) {
  const double s = static_cast<double>(job.sequence);
  const double samples = static_cast<double>(job.global_batch);
  const LayerFlops layer = layer_flops(model, s, convention);
  const double layers = static_cast<double>(model.layers);
  const double head =
      2.0 * s * static_cast<double>(model.hidden) * static_cast<double>(model.vocab);
  const double adapters = layers * adapter_flops(model, s, job);
  const double forward = layers * (layer.linear + layer.attention) + head + adapters;
  // Frozen weights have no gradients: their backward pass is the input's alone.
  const double frozen = job.lora_rank > 0 ? layers * layer.linear + head : 0.0;
  const double all = 3.0 * forward - frozen;
  double again = fully_recomputed_layers(model, layout) * (layer.linear + layer.attention);
  if (layout.recompute == Recompute::Selective) again = layers * layer.attention;
  return {Flops(samples * all), Flops(samples * (all + again))};
}

IterationFlops iteration_flops(const LayerGraph& graph, const Job& job, const Layout& layout) {
  const auto samples = static_cast<double>(job.global_batch);
  const double forward = graph.forward_flops().value * samples;
  const auto last = static_cast<double>(layout.micro_batch * layout.dp);
  double again = 0;
  if (layout.recompute == Recompute::Full) again = 1;
  if (layout.recompute == Recompute::AllButLast) again = 1 - last / samples;
  return {Flops(3 * forward), Flops((3 + again) * forward)};
}

std::string_view flops_convention_text(FlopsConvention convention) {
  switch (convention) {
    case FlopsConvention::Megatron:
      return "3 x forward; linear layers, LM head and attention over the full s x s square "
             "(Narayanan et al., SC 2021); hardware FLOPs add recomputed layers";
    case FlopsConvention::Causal:
      return "3 x forward; linear layers, LM head and attention counted causally, s (s+1) / 2 "
             "pairs; "
             "hardware FLOPs add recomputed layers";
  }
  return "";
}

}  // namespace gputwin
