#include "hwmodels/memory/closed_forms.h"

#include <algorithm>

namespace gputwin {

double activation_bytes_per_layer(const Transformer& model, const ActivationShape& shape) {
  const double h = static_cast<double>(model.hidden);
  const double sb = static_cast<double>(shape.sequence * shape.micro_batch) / shape.cp;
  const double t = shape.tp;
  if (shape.recompute == Recompute::Full) return 2.0 * sb * h;
  // Two norm inputs and the two inputs of column-parallel layers (2 B each), two dropout masks (1
  // B): 10 h.
  const double whole = 10.0 * h;
  // Q and attention output per query head, K and V per key/value head; 8 h for plain attention.
  const double heads = 4.0 * static_cast<double>(model.query_width() + model.kv_width());
  // Inputs of the activation and of the second linear layer: 16 h for a 4 h wide GELU.
  const double mlp = 2.0 * static_cast<double>(model.fc1_width() + model.ffn);
  // Scores before and after softmax (2 B each) and the dropout mask (1 B).
  const bool scores_kept = !shape.flash && shape.recompute != Recompute::Selective;
  const double scores = scores_kept ? 5.0 * static_cast<double>(model.heads * shape.sequence) : 0.0;
  return sb * (whole / (shape.sequence_parallel ? t : 1.0) + (heads + mlp + scores) / t);
}

double state_bytes_per_parameter(std::int32_t zero, std::int32_t shards) {
  return zero >= 1 ? 6.0 + 12.0 / shards : 18.0;
}

double live_micro_batches(Schedule schedule, std::int32_t stage, std::int32_t stages,
                          std::int32_t chunks_per_stage, std::int32_t micro_batches) {
  const double m = micro_batches;
  switch (schedule) {
    case Schedule::None: return std::min(m, 1.0);
    case Schedule::Gpipe: return m;
    case Schedule::OneFOneB: return std::min(m, static_cast<double>(stages - stage));
    case Schedule::Interleaved: {
      const double v = chunks_per_stage;
      return std::min(m, (stages * (v - 1.0) + 2.0 * (stages - stage) - 1.0) / v);
    }
    case Schedule::ZbH1:
    case Schedule::Zb1p: return std::min(m, static_cast<double>(stages));
    case Schedule::ZbH2: return std::min(m, 2.0 * stages - 1.0);
    case Schedule::Zb2p: return std::min(m, 2.0 * stages);
    case Schedule::ZbV: return std::min(m, static_cast<double>(stages));
    case Schedule::Hanayo: return std::min(m, static_cast<double>(stages));
    case Schedule::DualPipe: return std::min(m, stages + 1.0);
    case Schedule::Chimera: return std::min(m, static_cast<double>(stages));
    case Schedule::PipedreamAsync:
    case Schedule::PipedreamStash: return std::min(m, static_cast<double>(stages - stage));
  }
  return m;
}

StateBytes state_bytes(const Precision& precision, std::int32_t zero, std::int32_t shards) {
  const auto bytes = [](DType d) { return bits(d) / 8.0; };
  const bool master = precision.master && bits(precision.params) < 32;
  StateBytes b;
  b.weights = bytes(precision.params) / (zero >= 3 ? shards : 1);
  b.gradients = bytes(precision.grads) / (zero >= 2 ? shards : 1);
  const double moments = precision.master ? 8.0 : 2.0 * bytes(precision.params);
  b.optimizer = (moments + (master ? 4.0 : 0.0)) / (zero >= 1 ? shards : 1);
  return b;
}

double logits_bytes(const Transformer& model, const ActivationShape& shape) {
  return 4.0 * static_cast<double>(shape.sequence * shape.micro_batch) / shape.cp *
         static_cast<double>(model.vocab) / shape.tp;
}

DeepSpeedEstimate deepspeed_estimate(std::int32_t zero, HostOffload offload, double parameters,
                                     double largest_layer, std::int32_t gpus_per_node,
                                     std::int32_t nodes, double buffer_factor) {
  const double p = parameters, gpus = static_cast<double>(gpus_per_node) * nodes;
  const double whole = 4.0 * p * gpus_per_node;  // F32 in every process of the node
  DeepSpeedEstimate e;
  if (zero == 2) {
    const bool offloaded = offload != HostOffload::None;
    e.gpu = offloaded ? 2.0 * p : 4.0 * p + 16.0 * p / gpus;
    e.host = (offloaded ? p * std::max(4.0 * gpus, 16.0) : whole) * buffer_factor;
    e.host_without_init = e.host;
    return e;
  }
  const double layer = 4.0 * largest_layer;
  switch (offload) {
    case HostOffload::None:
      e.gpu = layer + 18.0 * p / gpus;
      e.host = layer * gpus_per_node;
      break;
    case HostOffload::Optimizer:
      e.gpu = layer + 2.0 * p / gpus;
      e.host = 16.0 * p / nodes;
      break;
    case HostOffload::OptimizerAndParameters:
      e.gpu = layer;
      e.host = 18.0 * p / nodes;
      break;
  }
  e.host_without_init =
      (offload == HostOffload::None ? whole : std::max(whole, e.host)) * buffer_factor;
  e.host *= buffer_factor;
  return e;
}

}  // namespace gputwin
