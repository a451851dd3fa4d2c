#include "hwmodels/flops.h"

#include <algorithm>
#include <vector>

namespace gputwin {

namespace {

// Forward FLOPs of one sample through one layer.
struct LayerFlops {
  double linear = 0.0, attention = 0.0;
};

LayerFlops layer_flops(const Transformer& model, std::int64_t index, double s,
                       FlopsConvention convention) {
  const double h = static_cast<double>(model.hidden);
  const double products = is_gated(model.activation) ? 3.0 : 2.0;
  double weights = static_cast<double>(model.attention_weights()) +
                   h * products * static_cast<double>(model.ffn_of(index));
  if (model.has_experts(index)) {
    // Of the experts a token goes through those it is sent to.
    weights += static_cast<double>(model.moe.top_k * model.expert_parameters()) +
               h * static_cast<double>(model.moe.experts);
  }
  const bool square = convention == FlopsConvention::Megatron || !model.causal;
  double pairs = square ? s * s : s * (s + 1.0) / 2.0;
  const double window = static_cast<double>(model.window_of(index));
  if (window > 0 && window < s) {
    pairs =
        convention == FlopsConvention::Megatron ? s * window : window * (s - (window - 1.0) / 2.0);
  }
  const auto widths = static_cast<double>(model.query_width() + model.context_width());
  return {2.0 * s * weights, 2.0 * pairs * widths};
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

// What `recompute_modules` repeats of one layer: the products that passes/recompute.cpp clones and
// whose results the backward pass reads (so not the second product of an MLP).
double module_flops(const Transformer& model, std::int64_t index, double s, const Job& job,
                    std::uint8_t modules) {
  const double h = static_cast<double>(model.hidden);
  const double gates = is_gated(model.activation) ? 2.0 : 1.0;
  const double ffn = static_cast<double>(model.ffn_of(index));
  double weights = 0;
  if ((modules & kRecomputeMlaUp) != 0 && model.has_mla()) {
    const Mla& a = model.mla;
    weights += static_cast<double>(model.query_width() * (a.q_rank > 0 ? a.q_rank : model.hidden) +
                                   model.heads * (a.nope + a.value) * a.kv_rank);
  }
  if ((modules & kRecomputeMlp) != 0) {
    weights += gates * h * ffn;
    const bool adapted = job.lora_rank > 0 && !job.lora_qkv_only;
    if (adapted) weights += job.lora_rank * (h + static_cast<double>(model.fc1_width()));
  }
  if ((modules & kRecomputeMoe) != 0 && model.has_experts(index)) {
    const Experts& moe = model.moe;
    weights +=
        static_cast<double>(moe.top_k * moe.ffn) * gates * h + static_cast<double>(moe.experts) * h;
  }
  if ((modules & kRecomputeOps) != 0 && gates > 1) weights += h * ffn;
  return 2.0 * s * weights;
}

// True for layers whose whole forward pass runs twice.
std::vector<bool> recomputed_layers(const Transformer& model, const Layout& layout) {
  const auto layers = static_cast<std::size_t>(model.layers);
  if (layout.recompute != Recompute::Block) {
    return std::vector<bool>(layers, layout.recompute == Recompute::Full);
  }
  std::vector<bool> again;
  const std::vector<std::int32_t> per_chunk = layout.layers_per_chunk(model.layers);
  for (std::size_t c = 0; c < per_chunk.size(); ++c) {
    const std::int32_t stage = layout.stage_of(static_cast<std::int32_t>(c));
    for (std::int32_t l = 0; l < per_chunk[c]; ++l) {
      again.push_back(l < layout.recomputed_layers(stage));
    }
  }
  return again;
}

}  // namespace

IterationFlops iteration_flops(const Transformer& model, const Job& job, const Layout& layout,
                               FlopsConvention convention) {
  const double s = static_cast<double>(job.sequence);
  const double samples = static_cast<double>(job.global_batch);
  const std::vector<bool> recomputed = recomputed_layers(model, layout);
  LayerFlops all_layers;
  double again = 0.0;
  for (std::int64_t l = 0; l < model.layers; ++l) {
    const LayerFlops layer = layer_flops(model, l, s, convention);
    all_layers.linear += layer.linear;
    all_layers.attention += layer.attention;
    if (recomputed.at(static_cast<std::size_t>(l))) {
      again += layer.linear + layer.attention + adapter_flops(model, s, job);
    } else if (layout.recompute == Recompute::None) {
      again += module_flops(model, l, s, job, layout.recompute_modules);
    }
  }
  if (layout.recompute == Recompute::Selective) again = all_layers.attention;
  const double layers = static_cast<double>(model.layers);
  const double head =
      2.0 * s * static_cast<double>(model.hidden) * static_cast<double>(model.vocab);
  const double adapters = layers * adapter_flops(model, s, job);
  const double forward = all_layers.linear + all_layers.attention + head + adapters;
  // Frozen weights have no gradients: their backward pass is the input's alone.
  const double frozen = job.lora_rank > 0 ? all_layers.linear + head : 0.0;
  const double all = 3.0 * forward - frozen;
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
             "(Narayanan et al., SC 2021); hardware FLOPs add what is recomputed";
    case FlopsConvention::Causal:
      return "3 x forward; linear layers, LM head and attention counted causally, s (s+1) / 2 "
             "pairs; "
             "hardware FLOPs add what is recomputed";
  }
  return "";
}

std::string_view graph_flops_text() {
  return "3 x forward; convolutions as direct products, attention over whole squares; Winograd's "
         "kernels multiply less, so that MFU may exceed 100 %; hardware FLOPs add what is "
         "recomputed";
}

}  // namespace gputwin
