#include "strategies/lowering/feasibility.h"

#include <numeric>

#include "sim/core/spelling.h"

namespace gputwin {
namespace {

using Refusal = std::optional<Infeasible>;

std::string text(std::int64_t n) { return std::to_string(n); }

Refusal no(std::string reason, std::string fix) {
  return Infeasible{.reason = std::move(reason), .fix = std::move(fix)};
}

Refusal not_lowered(const Transformer& model, const Layout& layout, const Job& job) {
  if (model.positions == Positions::Alibi && layout.cp > 1) {
    return no("not lowered yet: ALiBi with context parallelism", "set layout.cp to 1");
  }
  if (!model.causal && (model.has_mla() || model.window > 0)) {
    return no("not lowered yet: encoders with latent or windowed attention",
              "leave model.mla and model.window out");
  }
  if (!model.causal && layout.cp > 1) {
    return no("not lowered yet: encoders with context parallelism", "set layout.cp to 1");
  }
  if (bits(job.precision.params) < 16 &&
      (job.precision.params != job.precision.compute || !job.precision.master)) {
    return no("8-bit weights need 8-bit products and a master copy",
              "set job.precision.params to bf16");
  }
  if (bits(job.precision.params) < 16 && layout.zero >= 2) {
    return no("not lowered yet: 8-bit weights with ZeRO 2 or 3",
              "set job.precision.params to bf16, or layout.zero to 1");
  }
  if (job.lora_rank > 0 && layout.zero >= 2) {
    return no("not lowered yet: adapters with ZeRO 2 or 3", "set layout.zero to 1");
  }
  if (!layout.stage_replicas.empty() || layout.recompute == Recompute::AllButLast) {
    return no("replicas by stage and recompute all-but-last are for layer graphs",
              "leave layout.stage_replicas out, and set layout.recompute to full");
  }
  return {};
}

Refusal experts(const Transformer& m, const Layout& layout, const Job& job) {
  const std::int64_t ranks = std::int64_t{layout.tp} * layout.cp * layout.dp, ep = layout.ep;
  if (!m.has_experts()) {
    if (ep > 1) return no("expert parallelism needs a model with experts", "set layout.ep to 1");
    if (!job.expert_load.empty()) {
      return no("a load of experts needs a model with experts", "leave job.expert_load out");
    }
    return {};
  }
  if (ep < 1 || ranks % ep != 0) {
    return no("ep " + text(ep) + " does not divide tp x cp x dp (" + text(ranks) + ")",
              "use a divisor of " + text(ranks));
  }
  if (m.moe.experts % ep != 0) {
    return no("ep " + text(ep) + " does not divide the experts (" + text(m.moe.experts) + ")",
              "use a divisor of " + text(m.moe.experts));
  }
  if (const std::int64_t inner = layout.ep_inner; inner != 0) {
    if (inner < 2 || inner >= ep || ep % inner != 0) {
      return no("groups of " + text(inner) + " do not cut the ep (" + text(ep) + ") ranks",
                "set layout.ep_comm to flat");
    }
  }
  if (m.moe.shared_ffn % layout.tp != 0) {
    return no("tp " + text(layout.tp) + " does not divide the width of the shared experts (" +
                  text(m.moe.shared_ffn) + ")",
              "use a divisor of " + text(m.moe.shared_ffn));
  }
  if (layout.tp > 1 && !layout.sp) {
    return no("experts with tensor parallelism need each rank's own tokens",
              "set layout.sp to true, or layout.tp to 1");
  }
  if (layout.zero >= 2) {
    return no("not lowered yet: experts with ZeRO 2 or 3", "set layout.zero to 1");
  }
  if (placement(layout.schedule) == Placement::TwoWay) {
    return no("not lowered yet: experts with two copies of the model in one pipeline",
              "set layout.schedule to 1f1b");
  }
  if (job.lora_rank > 0) return no("not lowered yet: adapters with experts", "set lora_rank to 0");
  if (!job.expert_load.empty() &&
      (ep == 1 || static_cast<std::int64_t>(job.expert_load.size()) != ep)) {
    return no("job.expert_load has " + text(static_cast<std::int64_t>(job.expert_load.size())) +
                  " entries for ep " + text(ep),
              "write one factor per expert-parallel rank");
  }
  return {};
}

Refusal attention_form(const Transformer& m, const Layout& layout, const Job& job) {
  if (m.has_mla() && layout.cp > 1) {
    return no("not lowered yet: multi-head latent attention with context parallelism",
              "set layout.cp to 1");
  }
  if (m.has_mla() && job.lora_rank > 0) {
    return no("not lowered yet: adapters with multi-head latent attention", "set lora_rank to 0");
  }
  if ((m.has_mla() || m.window > 0) && !is_flash(job.attention)) {
    return no("latent and windowed attention run in flash kernels alone",
              "set job.attention to flash2, or another kernel of the device");
  }
  if (m.window > 0 && layout.cp > 1) {
    return no("not lowered yet: sliding windows with context parallelism", "set layout.cp to 1");
  }
  return {};
}

Refusal sharding(const Layout& layout) {
  if (layout.zero < 0 || layout.zero > 3) {
    return no("there is no ZeRO level " + text(layout.zero), "set layout.zero to 0, 1, 2 or 3");
  }
  const std::int64_t group = layout.hsdp_group, replicas = std::int64_t{layout.dp} * layout.cp;
  if (group == 0) return {};
  if (layout.zero < 2) {
    return no("hybrid sharding needs ZeRO 2 or 3", "set layout.zero to 3, or leave hsdp_group out");
  }
  if (group < 0 || replicas % group != 0) {
    return no("hsdp_group " + text(group) + " does not divide dp x cp (" + text(replicas) + ")",
              "use a divisor of " + text(replicas));
  }
  return {};
}

Refusal tensor(const Transformer& m, const Layout& layout, const Job& job) {
  const std::int64_t tp = layout.tp;
  const std::array<std::pair<const char*, std::int64_t>, 4> cut{
      {{"attention heads", m.heads},
       {"key/value heads", m.kv_heads},
       {"ffn width", m.has_experts() && m.moe.dense_layers == 0 && m.moe.every == 1 ? tp : m.ffn},
       {"vocabulary", m.vocab}}};
  for (const auto& [what, size] : cut) {
    if (size % tp != 0) {
      return no("tp " + text(tp) + " does not divide the " + what + " (" + text(size) + ")",
                "use a divisor of " + text(size));
    }
  }
  if (layout.sp && tp == 1)
    return no("sequence parallelism needs tp > 1", "set layout.sp to false");
  if (layout.sp && job.sequence / layout.cp % tp != 0) {
    return no("tp " + text(tp) + " does not divide the tokens of a sequence (" +
                  text(job.sequence / layout.cp) + ")",
              "set layout.sp to false");
  }
  if (m.positions == Positions::Learned && m.max_positions < job.sequence) {
    return no("sequence " + text(job.sequence) + " is longer than the position table (" +
                  text(m.max_positions) + ")",
              "use at most " + text(m.max_positions));
  }
  return {};
}

Refusal context(const Transformer& m, const Layout& layout, const Job& job) {
  const std::int64_t cp = layout.cp;
  if (cp == 1) return {};
  if (job.sequence % (2 * cp) != 0) {
    return no("cp " + text(cp) + " cuts a sequence into " + text(2 * cp) +
                  " chunks, which does not divide it (" + text(job.sequence) + ")",
              "use a multiple of " + text(2 * cp) + " as job.sequence, or lower layout.cp");
  }
  if (layout.cp_comm == ContextComm::Ring && !is_flash(job.attention)) {
    return no(
        "the ring exchange joins parts of attention by their log-sum-exp, which unfused "
        "attention does not keep",
        "set layout.cp_comm to all-gather, or job.attention to flash2");
  }
  const std::int64_t kv_heads = m.kv_heads / layout.tp;
  if (layout.cp_comm == ContextComm::AllToAll && kv_heads % cp != 0) {
    return no(
        "the all-to-all exchange trades heads for tokens: cp " + text(cp) +
            " does not divide the " + text(kv_heads) + " key/value heads of a tensor-parallel rank",
        "set layout.cp_comm to all-gather or ring, or layout.cp to a divisor of " + text(kv_heads));
  }
  return {};
}

// Chunks per stage, and micro-batches, that a schedule needs.
Refusal schedule_shape(const Layout& layout, std::int64_t micro_batches) {
  const Schedule s = layout.schedule;
  const std::string name(to_string(s));
  const bool snake = placement(s) == Placement::Snake;
  if (s == Schedule::None && layout.pp > 1) {
    return no("pp " + text(layout.pp) + " needs a schedule", "set layout.schedule to 1f1b");
  }
  if (s > Schedule::Interleaved && layout.pp == 1) {
    return no("schedule " + name + " needs at least 2 stages", "set layout.schedule to none");
  }
  const bool chunked = s == Schedule::Interleaved || snake;
  if (layout.vpp > 1 && (!chunked || layout.pp == 1)) {
    return no("vpp " + text(layout.vpp) + " needs the interleaved schedule and pp > 1",
              "set layout.schedule to interleaved, or layout.vpp to 1");
  }
  if (s == Schedule::ZbV && layout.vpp != 2) {
    return no("schedule zb-v has 2 chunks per stage, not " + text(layout.vpp),
              "set layout.vpp to 2");
  }
  if (s == Schedule::Hanayo && layout.vpp % 2 != 0) {
    return no(
        "schedule hanayo has 2 chunks per stage and wave: vpp " + text(layout.vpp) + " is odd",
        "set layout.vpp to 2 (one wave) or 4 (two)");
  }
  if (s == Schedule::Interleaved && layout.vpp > 1 && micro_batches % layout.pp != 0) {
    return no("the interleaved schedule needs micro-batches (" + text(micro_batches) +
                  ") that are a multiple of pp (" + text(layout.pp) + ")",
              "change job.global_batch or layout.micro_batch");
  }
  if (s == Schedule::PipedreamAsync && micro_batches < layout.pp) {
    return no("schedule " + name + " needs as many micro-batches as stages, " + text(layout.pp) +
                  ", not " + text(micro_batches),
              "raise job.global_batch or lower layout.micro_batch");
  }
  if (placement(s) != Placement::TwoWay) return {};
  const std::int64_t least = s == Schedule::DualPipe ? 2 * std::int64_t{layout.pp} : 2;
  if (layout.pp % 2 != 0) {
    return no("schedule " + name + " needs an even number of stages, not " + text(layout.pp),
              "use an even layout.pp");
  }
  if (micro_batches % 2 != 0 || micro_batches < least) {
    return no("schedule " + name + " needs an even number of micro-batches, at least " +
                  text(least) + ", not " + text(micro_batches),
              "change job.global_batch or layout.micro_batch");
  }
  return {};
}

// What the later schedules are not lowered with.
Refusal schedule_lowered(const Layout& layout) {
  const Schedule s = layout.schedule;
  const auto missing = [](const std::string& what, std::string fix) {
    return no("not lowered yet: " + what, std::move(fix));
  };
  if (s == Schedule::PipedreamStash) {
    return missing("a step after every micro-batch of a Transformer",
                   "set layout.schedule to pipedream-async");
  }
  if (s == Schedule::PipedreamAsync && layout.zero >= 2) {
    return missing("ZeRO 2 or 3 with two versions of the weights", "set layout.zero to 1 or 0");
  }
  if (splits_backward(s) && layout.zero >= 2) {
    return missing("ZeRO 2 or 3 with a split backward pass", "set layout.zero to 1 or 0");
  }
  if (placement(s) == Placement::TwoWay && layout.zero > 0) {
    return missing("ZeRO with schedules that run both ways", "set layout.zero to 0");
  }
  return {};
}

Refusal pipeline(const Transformer& m, const Layout& layout, std::int64_t micro_batches) {
  if (auto r = schedule_shape(layout, micro_batches)) return r;
  if (auto r = schedule_lowered(layout)) return r;
  const auto layers = layout.layers_per_chunk(m.layers);
  if (static_cast<std::int32_t>(layers.size()) != layout.chunks() ||
      std::accumulate(layers.begin(), layers.end(), std::int64_t{0}) != m.layers) {
    return no("stage_layers must list " + text(layout.chunks()) + " chunks with " + text(m.layers) +
                  " layers in all",
              "leave layout.stage_layers out");
  }
  // The first chunk has the embedding and the last the head, so these two may have no layer.
  for (std::size_t c = 1; c + 1 < layers.size(); ++c) {
    if (layers[c] < 1) {
      return no(
          text(layout.chunks()) + " pipeline chunks are too many for " + text(m.layers) + " layers",
          "lower layout.pp or layout.vpp");
    }
  }
  return {};
}

// A layer takes about 170 instructions of 16 bytes per micro-batch (forward, recomputation,
// backward, synchronisation and memory of an unfused attention layer), and a step of the ring
// exchange about 50 more; loops are unrolled.
Refusal plan_size(const Transformer& m, const Layout& layout, std::int64_t micro_batches) {
  constexpr double kPerLayer = 170, kPerStep = 50, kMost = 4e8;  // 6.4 GB
  const double steps = layout.cp > 1 && layout.cp_comm == ContextComm::Ring ? layout.cp : 0;
  const double instructions = (kPerLayer + kPerStep * steps) * static_cast<double>(m.layers) *
                              static_cast<double>(micro_batches);
  if (instructions <= kMost) return {};
  return no("the plan would have about " + text(static_cast<std::int64_t>(instructions / 1e6)) +
                " million instructions (" + text(micro_batches) + " micro-batches of " +
                text(m.layers) + " layers), more than the " +
                text(static_cast<std::int64_t>(kMost / 1e6)) + " million that are built",
            "lower job.global_batch, or raise layout.micro_batch or layout.dp");
}

}  // namespace

std::optional<Infeasible> refusal(const Transformer& model, const Cluster& cluster,
                                  const Layout& layout, const Job& job) {
  for (const std::int64_t d :
       {std::int64_t{layout.tp}, std::int64_t{layout.pp}, std::int64_t{layout.vpp},
        std::int64_t{layout.dp}, std::int64_t{layout.cp}, layout.micro_batch}) {
    if (d < 1) return no("a degree of the layout is below 1", "use 1 or more");
  }
  if (auto r = not_lowered(model, layout, job)) return r;
  if (layout.ranks() > cluster.gpus()) {
    return no("the layout needs " + text(layout.ranks()) + " GPUs, the cluster has " +
                  text(cluster.gpus()),
              "lower layout.dp, or use a larger cluster");
  }
  const std::int64_t step = layout.micro_batch * layout.dp;
  if (job.global_batch < step || job.global_batch % step != 0) {
    return no("micro_batch x dp (" + text(step) + ") does not divide the global batch (" +
                  text(job.global_batch) + ")",
              "use a multiple of " + text(step));
  }
  if (!layout.devices.empty() &&
      layout.devices.size() != static_cast<std::size_t>(layout.ranks())) {
    return no("layout.devices must name one GPU per rank", "leave layout.devices out");
  }
  if (auto r = sharding(layout)) return r;
  if (auto r = tensor(model, layout, job)) return r;
  if (auto r = experts(model, layout, job)) return r;
  if (auto r = attention_form(model, layout, job)) return r;
  if (auto r = context(model, layout, job)) return r;
  if (auto r = plan_size(model, layout, job.global_batch / step)) return r;
  return pipeline(model, layout, job.global_batch / step);
}

}  // namespace gputwin
