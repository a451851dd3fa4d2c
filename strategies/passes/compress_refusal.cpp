#include "strategies/passes/compress.h"

namespace gputwin {
namespace {

Infeasible no(std::string reason, std::string fix) {
  return {.reason = "the compress pass does not take " + std::move(reason), .fix = std::move(fix)};
}

bool is_low_rank(const Codec& codec) { return codec.kind == CodecKind::LowRank; }

}  // namespace

std::optional<Infeasible> compress_layers_refusal(const Transformer& model, const Layout& layout,
                                                  const Job& job) {
  const Compression& c = layout.compression;
  if (layout.tp < 2) return no("layers without tensor parallelism", "set layout.tp to 2 or more");
  if (layout.tp_overlap != TpOverlap::None) {
    return no("collectives in pieces", "set layout.tp_overlap to none");
  }
  if (model.has_experts()) return no("experts' exchanges", "use a model without experts");
  if (bits(job.precision.compute) != 16) {
    return no("operands that are not 16 bits wide", "set job.precision.compute to bf16");
  }
  if (is_low_rank(c.forward) || is_low_rank(c.backward)) {
    return no(
        "low rank on tensor-parallel sums: activations have no factor of an iteration before to "
        "start from",
        "choose topk_pwq, int8 or int4");
  }
  if (layout.micro_batch * job.sequence % layout.tp != 0) {
    return no("tokens that tp does not divide", "change layout.micro_batch");
  }
  if (layout.chunk_overlap.on() && job.sequence % layout.tp != 0) {
    return no("samples that tp does not divide, where the overlap pass cuts by samples",
              "set max_chunks of the pass overlap to 1, or change job.sequence");
  }
  return std::nullopt;
}

std::optional<Infeasible> compress_gradients_refusal(const Transformer& model,
                                                     const Layout& layout) {
  const Compression& c = layout.compression;
  if (std::int64_t{layout.dp} * layout.cp < 2) {
    return no("gradients that no other rank has a part of", "set layout.dp to 2 or more");
  }
  if (layout.zero >= 2) {
    return no("gradients that are reduced layer by layer (ZeRO 2 and 3)", "set layout.zero to 1");
  }
  if (placement(layout.schedule) == Placement::TwoWay) {
    return no("gradients of two copies of the model", "set layout.schedule to 1f1b");
  }
  if (layout.offload.enabled && layout.offload.gradients != OffloadPlace::Gpu) {
    return no("gradients that leave the GPU", "keep gradients on the GPU in the pass offload");
  }
  if (model.has_experts()) {
    return no("gradients of experts, which other ranks sum", "use a model without experts");
  }
  if (is_low_rank(c.reduced) && layout.zero == 1) {
    return no("low rank on shards of gradients: every rank would decode all of them",
              "set layout.zero to 0, or choose topk, int8 or int4");
  }
  return std::nullopt;
}

std::optional<Infeasible> compress_messages_refusal(const Layout& layout, const Job& job) {
  const Compression& c = layout.compression;
  if (layout.pp < 2) return no("messages of one stage", "set layout.pp to 2 or more");
  if (bits(job.precision.compute) > 16) {
    return no("messages that are not 16 bits wide", "set job.precision.compute to bf16");
  }
  if (is_low_rank(c.sent) || is_low_rank(c.sent_back)) {
    return no(
        "low rank on messages: activations have no factor of an iteration before to start from",
        "choose topk_pwq, int8 or int4");
  }
  return std::nullopt;
}

std::optional<Infeasible> compress_refusal(const Transformer& model, const Layout& layout,
                                           const Job& job) {
  const Compression& c = layout.compression;
  const auto layers = [&] { return compress_layers_refusal(model, layout, job); };
  const auto gradients = [&] { return compress_gradients_refusal(model, layout); };
  const auto messages = [&] { return compress_messages_refusal(layout, job); };
  if (c.search) {
    // A search takes what can be coded; there must be something.
    auto refused = layers();
    return refused && gradients() && messages() ? refused : std::nullopt;
  }
  if (c.on_layers()) {
    if (auto refused = layers()) return refused;
  }
  if (c.on_gradients()) {
    if (auto refused = gradients()) return refused;
  }
  return c.on_messages() ? messages() : std::nullopt;
}

}  // namespace gputwin
