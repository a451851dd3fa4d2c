#include "sim/app/scenario_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <set>

#include "sim/app/suggestion.h"
#include "sim/core/spelling.h"

namespace gputwin {
namespace {

constexpr std::int64_t kMaxGpus = 4'000'000;

const Transformer& transformer(const Scenario& scenario) {
  return std::get<Transformer>(scenario.workload);
}

std::int64_t used_gpus(const Layout& l) {
  if (!l.stage_replicas.empty()) return l.ranks();
  return std::int64_t{l.tp} * l.cp * l.dp * l.pp;
}

/// The narrowest MLP that tp cuts; 0: tp cuts none.
std::int64_t cut_ffn(const Transformer& m) {
  const bool dense = !m.has_experts() || m.moe.dense_layers > 0 || m.moe.every > 1;
  return dense ? m.ffn : m.moe.shared_ffn;
}

bool tp_divides(const Transformer& m, std::int64_t tp) {
  return m.heads % tp == 0 && m.kv_heads % tp == 0 && cut_ffn(m) % tp == 0 &&
         m.moe.shared_ffn % tp == 0 && m.vocab % tp == 0;
}

/// tp divides heads, kv_heads, ffn and vocab; with sp also the sequence's tokens on a rank.
void check_tensor_parallel(const ScenarioDocument& d, const Scenario& s) {
  const Transformer& m = transformer(s);
  const std::int64_t tp = s.layout.tp;
  const auto legal = [&](std::int64_t t) {
    return tp_divides(m, t) && (!s.layout.sp || s.job.sequence % (t * s.layout.cp) == 0);
  };
  const auto advice = [&] {
    return number_advice(nearest_legal(tp, 1, m.kv_heads, legal), "set tp to 1");
  };
  const std::pair<const char*, std::int64_t> divided[] = {{"heads", m.heads},
                                                          {"kv_heads", m.kv_heads},
                                                          {"ffn", cut_ffn(m)},
                                                          {"moe.shared_ffn", m.moe.shared_ffn},
                                                          {"vocab", m.vocab}};
  for (const auto& [key, value] : divided) {
    if (value % tp == 0) continue;
    throw d.error("/layout/tp", fmt::format("does not divide {} ({})", key, value), advice());
  }
  const std::int64_t unit = tp * s.layout.cp;
  if (s.layout.sp && s.job.sequence % unit != 0) {
    const std::string at = d.blame({"/job/sequence", "/layout/tp"});
    const auto near = nearest_legal(s.job.sequence, 1, s.job.sequence + unit,
                                    [&](std::int64_t v) { return v % unit == 0; });
    const std::string what =
        s.layout.cp > 1 ? fmt::format("tp x cp ({})", unit) : fmt::format("tp ({})", tp);
    throw d.error(
        at, fmt::format("does not fit: with sp, {} divides sequence ({})", what, s.job.sequence),
        at == "/layout/tp" ? advice() : number_advice(near, "set sp to false"));
  }
}

/// 2 cp divides the sequence; what each exchange needs.
void check_context_parallel(const ScenarioDocument& d, const Scenario& s) {
  const Layout& l = s.layout;
  const std::int64_t cp = l.cp, sequence = s.job.sequence;
  if (cp == 1) return;
  const auto divides = [&](std::int64_t v) { return sequence % (2 * v) == 0; };
  if (!divides(cp)) {
    const std::string at = d.blame({"/job/sequence", "/layout/cp"});
    const auto near = at == "/layout/cp"
                          ? nearest_legal(cp, 1, 2 * cp, divides)
                          : nearest_legal(sequence, 1, sequence + 2 * cp,
                                          [&](std::int64_t v) { return v % (2 * cp) == 0; });
    throw d.error(at,
                  fmt::format("does not fit: 2 cp ({}) divides sequence ({})", 2 * cp, sequence),
                  number_advice(near, "set cp to 1"));
  }
  const std::int64_t kv_heads = transformer(s).kv_heads / l.tp;
  if (l.cp_comm == ContextComm::AllToAll && kv_heads % cp != 0) {
    throw d.error(d.blame({"/layout/cp_comm", "/layout/cp"}),
                  fmt::format("does not fit: all-to-all trades heads, and cp ({}) does not divide "
                              "kv_heads / tp ({})",
                              cp, kv_heads),
                  "set cp_comm to all-gather or ring");
  }
  if (l.cp_comm == ContextComm::Ring && !is_flash(s.job.attention)) {
    throw d.error(d.blame({"/layout/cp_comm", "/job/attention"}),
                  "does not fit: the ring needs an attention kernel that keeps its log-sum-exp",
                  "set attention to flash2, or cp_comm to all-gather");
  }
}

/// Which pipeline schedules go with which pp and vpp.
void check_schedule(const ScenarioDocument& d, const Layout& l) {
  const bool interleaved = l.schedule == Schedule::Interleaved;
  if (interleaved && l.pp < 2) {
    throw d.error(d.blame_default({"/layout/pp", "/layout/schedule"}),
                  "does not fit: schedule interleaved needs at least 2 stages",
                  "set pp to 2 or more, or schedule to none with vpp 1");
  }
  if (interleaved && l.vpp < 2) {
    throw d.error(d.blame_default({"/layout/vpp", "/layout/schedule"}),
                  "does not fit: schedule interleaved needs at least 2 chunks per stage",
                  "set vpp to 2 or more, or schedule to 1f1b");
  }
  const bool snake = placement(l.schedule) == Placement::Snake;
  if (!interleaved && !snake && l.vpp > 1) {
    throw d.error(
        d.blame_default({"/layout/vpp", "/layout/schedule"}),
        fmt::format("does not fit: schedule {} has one chunk per stage", to_string(l.schedule)),
        "set vpp to 1, or schedule to interleaved");
  }
  if (snake && (l.vpp % 2 != 0 || (l.schedule == Schedule::ZbV && l.vpp != 2))) {
    throw d.error(d.blame_default({"/layout/vpp", "/layout/schedule"}),
                  fmt::format("does not fit: schedule {} turns at both ends of the pipeline, so it "
                              "has {} chunks per stage",
                              to_string(l.schedule), l.schedule == Schedule::ZbV ? "2" : "2, 4, …"),
                  "set vpp to 2");
  }
  if (l.schedule == Schedule::None && l.pp > 1) {
    throw d.error(d.blame_default({"/layout/schedule", "/layout/pp"}),
                  fmt::format("does not fit: {} stages need a pipeline schedule", l.pp),
                  "set schedule to 1f1b (legal: gpipe, 1f1b, interleaved, …), or pp to 1");
  }
  if (l.schedule > Schedule::Interleaved && l.pp < 2) {
    throw d.error(
        d.blame_default({"/layout/pp", "/layout/schedule"}),
        fmt::format("does not fit: schedule {} needs at least 2 stages", to_string(l.schedule)),
        "set pp to 2 or more, or schedule to none");
  }
  if (splits_backward(l.schedule) && l.zero >= 2) {
    throw d.error(d.blame({"/layout/zero", "/layout/schedule"}),
                  fmt::format("is not supported yet with schedule {}", to_string(l.schedule)),
                  "set zero to 1 or 0");
  }
}

void check_given_stage_layers(const ScenarioDocument& d, const Scenario& s, std::int64_t chunks) {
  const std::vector<std::int32_t>& given = s.layout.stage_layers;
  const std::int64_t layers = transformer(s).layers;
  if (static_cast<std::int64_t>(given.size()) != chunks) {
    throw d.error(
        "/layout/stage_layers",
        fmt::format("has {} entries for pp x vpp = {} chunks", given.size(), chunks),
        fmt::format("write {} entries that sum to {}, or leave stage_layers out", chunks, layers));
  }
  for (std::size_t i = 1; i + 1 < given.size(); ++i) {
    if (given[i] > 0) continue;
    throw d.error(child_pointer("/layout/stage_layers", i),
                  "leaves a chunk in the middle of the model empty", "nearest legal value: 1");
  }
  const std::int64_t sum = std::accumulate(given.begin(), given.end(), std::int64_t{0});
  if (sum != layers) {
    throw d.error("/layout/stage_layers",
                  fmt::format("sums to {}, but the model has {} layers", sum, layers),
                  fmt::format("{} {} layers in some entries", sum < layers ? "add" : "remove",
                              std::abs(layers - sum)));
  }
}

/// A module that no layer of the model has.
void check_recompute_modules_of(const ScenarioDocument& d, const Layout& l, const Transformer& m) {
  const auto absent = [&](std::uint8_t module, const char* word, bool there, const char* what) {
    if ((l.recompute_modules & module) == 0 || there) return;
    throw d.error("/layout/recompute_modules",
                  fmt::format("names {}, but the model has no {}", word, what),
                  fmt::format("leave {} out", word));
  };
  bool dense = m.moe.shared_ffn > 0;
  for (std::int64_t layer = 0; layer < m.layers; ++layer) dense = dense || !m.has_experts(layer);
  absent(kRecomputeMlaUp, "mla_up_proj", m.has_mla(), "latent attention");
  absent(kRecomputeMoe, "moe", m.has_experts(), "experts");
  absent(kRecomputeMoeActivation, "moe_act", m.has_experts(), "experts");
  absent(kRecomputeMlp, "mlp", dense, "MLP but its experts (moe names those)");
}

/// Modules are repeated where nothing else is, and `ops` names all that it repeats.
void check_recompute_modules(const ScenarioDocument& d, const Layout& l, const Transformer& m) {
  if (l.recompute_modules == 0) return;
  if (l.recompute != Recompute::None) {
    throw d.error("/layout/recompute_modules",
                  fmt::format("has no meaning with recompute {}", to_string(l.recompute)),
                  "set it to [], or recompute to none");
  }
  if ((l.recompute_modules & kRecomputeOps) != 0 && l.recompute_modules != kRecomputeOps) {
    throw d.error("/layout/recompute_modules", "names ops beside others",
                  "name ops alone, or the others without it");
  }
  check_recompute_modules_of(d, l, m);
}

/// With recompute block one count of layers, or one per stage, none above a chunk of the stage.
void check_recompute_layers(const ScenarioDocument& d, const Layout& l,
                            const std::vector<std::int32_t>& per_chunk) {
  const std::string key = "/layout/recompute_layers";
  const std::vector<std::int32_t>& given = l.recompute_layers;
  const bool any = std::any_of(given.begin(), given.end(), [](std::int32_t n) { return n > 0; });
  if (l.recompute != Recompute::Block) {
    if (!any) return;
    throw d.error(key, fmt::format("has no meaning with recompute {}", to_string(l.recompute)),
                  "set it to 0, or recompute to block");
  }
  const std::int32_t most = *std::max_element(per_chunk.begin(), per_chunk.end());
  if (!any) {
    throw d.error(
        key, fmt::format("does not fit: recompute block takes 1 to {} layers of each chunk", most),
        "nearest legal value: 1");
  }
  if (given.size() > 1 && given.size() != static_cast<std::size_t>(l.pp)) {
    throw d.error(key, fmt::format("has {} entries for {} stages", given.size(), l.pp),
                  fmt::format("write one number, or {} of them", l.pp));
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    std::int32_t largest = 0;
    for (std::size_t c = 0; c < per_chunk.size(); ++c) {
      const bool of_stage = given.size() == 1 || c % static_cast<std::size_t>(l.pp) == i;
      if (of_stage) largest = std::max(largest, per_chunk[c]);
    }
    if (given[i] <= largest) continue;
    const std::string entry = child_pointer(key, i);
    throw d.error(d.has(entry) ? entry : key,
                  fmt::format("does not fit: a chunk has at most {} layers", largest),
                  fmt::format("nearest legal value: {}", largest));
  }
}

void check_stages(const ScenarioDocument& d, const Scenario& s) {
  const Layout& l = s.layout;
  const std::int64_t layers = transformer(s).layers, chunks = std::int64_t{l.pp} * l.vpp;
  if (!l.stage_layers.empty()) {
    check_given_stage_layers(d, s, chunks);
  } else if (chunks > layers) {
    const bool by_vpp = d.blame({"/layout/pp", "/layout/vpp"}) == "/layout/vpp";
    const std::int64_t most = std::max<std::int64_t>(1, layers / (by_vpp ? l.pp : l.vpp));
    throw d.error(by_vpp ? "/layout/vpp" : "/layout/pp",
                  fmt::format("makes {} chunks of {} layers", chunks, layers),
                  fmt::format("nearest legal value: {}", most));
  }
  check_recompute_layers(d, l, l.layers_per_chunk(layers));
  check_recompute_modules(d, l, transformer(s));
}

/// ep divides the experts and the ranks of a stage; what experts need of the rest.
void check_experts(const ScenarioDocument& d, const Scenario& s) {
  const Layout& l = s.layout;
  const Transformer& m = transformer(s);
  const std::int64_t ep = l.ep, ranks = std::int64_t{l.tp} * l.cp * l.dp;
  const std::vector<double>& load = s.job.expert_load;
  if (!m.has_experts()) {
    if (ep > 1) {
      throw d.error("/layout/ep", "has no meaning: the model has no experts",
                    "set ep to 1, or take a model with moe");
    }
    if (l.ep_comm != ExpertComm::Flat) {
      throw d.error("/layout/ep_comm", "has no meaning: the model has no experts",
                    "remove the key");
    }
    if (!load.empty()) {
      throw d.error("/job/expert_load", "has no meaning: the model has no experts",
                    "remove the key");
    }
    return;
  }
  const auto legal = [&](std::int64_t v) { return ranks % v == 0 && m.moe.experts % v == 0; };
  if (!legal(ep)) {
    const bool too_few = m.moe.experts % ep != 0;  // whatever the ranks are
    const std::string what = too_few ? fmt::format("the experts of a layer ({})", m.moe.experts)
                                     : fmt::format("tp x cp x dp ({})", ranks);
    throw d.error(too_few ? "/layout/ep" : d.blame_default({"/layout/ep", "/layout/dp"}),
                  fmt::format("does not fit: ep ({}) does not divide {}", ep, what),
                  number_advice(nearest_legal(ep, 1, ranks, legal), "set ep to 1"));
  }
  if (l.tp > 1 && !l.sp) {
    throw d.error(d.blame_default({"/layout/tp", "/layout/sp"}),
                  "does not fit: experts take each rank's own tokens, which tp without sp repeats",
                  "set sp to true, or tp to 1");
  }
  if (l.zero >= 2) {
    throw d.error("/layout/zero", "is not supported yet with experts", "nearest legal value: 1");
  }
  if (!load.empty() && static_cast<std::int64_t>(load.size()) != ep) {
    throw d.error("/job/expert_load", fmt::format("has {} entries for ep {}", load.size(), ep),
                  "write one factor per expert-parallel rank");
  }
  if (!load.empty() && ep == 1) {
    throw d.error("/job/expert_load", "has no meaning with ep 1", "remove the key");
  }
}

/// Latent and windowed attention: flash kernels, whole sequences.
void check_attention_form(const ScenarioDocument& d, const Scenario& s) {
  const Transformer& m = transformer(s);
  if (!m.has_mla() && m.window == 0) return;
  const char* what = m.has_mla() ? "latent attention" : "a sliding window";
  if (!is_flash(s.job.attention)) {
    throw d.error("/job/attention", fmt::format("does not fit: {} runs in flash kernels", what),
                  "nearest legal choice: flash2 (or flash3, cudnn)");
  }
  if (s.layout.cp > 1) {
    throw d.error("/layout/cp", fmt::format("is not supported yet with {}", what),
                  "nearest legal value: 1");
  }
}

/// hsdp_group goes with zero 2 and 3 and divides dp x cp.
void check_sharding(const ScenarioDocument& d, const Layout& l) {
  const std::int64_t group = l.hsdp_group, replicas = std::int64_t{l.dp} * l.cp;
  if (group == 0) return;
  if (l.zero < 2) {
    throw d.error(d.blame_default({"/layout/hsdp_group", "/layout/zero"}),
                  fmt::format("does not fit: zero {} shards no gradients to group", l.zero),
                  "set hsdp_group to 0, or zero to 3");
  }
  if (replicas % group == 0) return;
  const auto near =
      nearest_legal(group, 1, replicas, [&](std::int64_t g) { return replicas % g == 0; });
  throw d.error(
      d.blame({"/layout/hsdp_group", "/layout/dp"}),
      fmt::format("does not fit: hsdp_group ({}) does not divide dp x cp ({})", group, replicas),
      number_advice(near, "set hsdp_group to 0"));
}

void check_device_list(const ScenarioDocument& d, const Scenario& s, std::int64_t used) {
  const std::int64_t gpus = s.cluster.gpus();
  const std::vector<GpuId>& devices = s.layout.devices;
  if (devices.empty()) return;
  if (static_cast<std::int64_t>(devices.size()) != used) {
    throw d.error("/layout/devices",
                  fmt::format("has {} entries for {} ranks", devices.size(), used),
                  fmt::format("write {} GPUs, or leave devices out", used));
  }
  std::set<GpuId> seen;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::string at = child_pointer("/layout/devices", i);
    if (devices[i].value >= gpus) {
      throw d.error(at, fmt::format("is not among the {} GPUs", gpus),
                    fmt::format("write 0 to {}", gpus - 1));
    }
    if (!seen.insert(devices[i]).second) {
      throw d.error(at, "is already used by another rank", "name each GPU once");
    }
  }
}

void check_devices(const ScenarioDocument& d, const Scenario& s) {
  const std::int64_t used = used_gpus(s.layout), gpus = s.cluster.gpus();
  if (used > gpus) {
    const std::string at = d.blame({"/layout/dp", "/layout/pp", "/layout/tp", "/layout/cp"});
    const std::int64_t degree = at == "/layout/dp"   ? s.layout.dp
                                : at == "/layout/pp" ? s.layout.pp
                                : at == "/layout/cp" ? s.layout.cp
                                                     : s.layout.tp;
    const std::int64_t rest = used / degree;
    throw d.error(at, fmt::format("makes tp x cp x dp x pp = {} ranks on {} GPUs", used, gpus),
                  rest <= gpus ? fmt::format("nearest legal value: {}", gpus / rest)
                               : "lower tp, cp, dp or pp, or take a larger cluster");
  }
  check_device_list(d, s, used);
}

void check_batch(const ScenarioDocument& d, const Scenario& s) {
  const std::int64_t step = s.layout.dp * s.layout.micro_batch, batch = s.job.global_batch;
  const bool interleaved = s.layout.schedule == Schedule::Interleaved;
  const std::int64_t unit = interleaved ? step * s.layout.pp : step;
  if (batch % unit == 0) return;
  std::string what = fmt::format("dp x micro_batch ({})", step);
  if (batch % step == 0)
    what = fmt::format("dp x micro_batch x pp ({}), as interleaved needs,", unit);
  std::vector<std::string> suspects{"/job/global_batch", "/layout/micro_batch", "/layout/dp"};
  if (batch % step == 0) suspects.emplace_back("/layout/pp");
  const std::string at = d.blame(suspects);
  std::vector<std::int64_t> near;
  if (at == "/job/global_batch") {
    if (batch > unit) near.push_back(batch / unit * unit);
    near.push_back((batch / unit + 1) * unit);
  } else {
    const std::int64_t value = at == "/layout/dp"   ? s.layout.dp
                               : at == "/layout/pp" ? s.layout.pp
                                                    : s.layout.micro_batch;
    const std::int64_t others = unit / value;
    near = nearest_legal(value, 1, 2 * value,
                         [&](std::int64_t v) { return batch % (v * others) == 0; });
  }
  throw d.error(at, fmt::format("does not fit: {} does not divide global_batch ({})", what, batch),
                number_advice(near, "change global_batch"));
}

/// The recipes that a format of matrix-multiply inputs takes, the usual one first.
std::vector<Recipe> recipes_of(DType compute) {
  if (compute == DType::F8) {
    return {Recipe::Delayed, Recipe::Current, Recipe::Blockwise, Recipe::Rowwise,
            Recipe::Tensorwise};
  }
  return {usual_recipe(compute)};
}

void check_precision(const ScenarioDocument& d, const Precision& p) {
  const std::vector<Recipe> legal = recipes_of(p.compute);
  if (std::find(legal.begin(), legal.end(), p.recipe) == legal.end()) {
    throw d.error(d.blame({"/job/precision/recipe", "/job/precision/compute"}),
                  fmt::format("does not fit: recipe {} with compute {}", to_string(p.recipe),
                              to_string(p.compute)),
                  fmt::format("set recipe to {}", to_string(legal.front())));
  }
  if (bits(p.params) >= 16) return;
  if (p.compute != p.params) {
    throw d.error(d.blame({"/job/precision/params", "/job/precision/compute"}),
                  fmt::format("does not fit: params fp8 with compute {}", to_string(p.compute)),
                  "set params to bf16, or compute to fp8");
  }
  if (!p.master) {
    throw d.error(d.blame({"/job/precision/params", "/job/precision/master"}),
                  "does not fit: params fp8 are cast from a master copy",
                  "set params to bf16, or master to true");
  }
}

/// What a layer graph's layout cannot be; the lowering refuses the rest as infeasible.
void check_graph_layout(const ScenarioDocument& d, const Scenario& s) {
  const Layout& l = s.layout;
  const std::int64_t used = used_gpus(l), gpus = s.cluster.gpus();
  const std::pair<const char*, std::int64_t> whole[] = {
      {"/layout/tp", l.tp}, {"/layout/cp", l.cp}, {"/layout/ep", l.ep}};
  for (const auto& [key, degree] : whole) {
    if (degree > 1) {
      throw d.error(key, "does not fit: layer graphs are cut into stages and replicas only",
                    "set it to 1");
    }
  }
  if (l.recompute_modules != 0) {
    throw d.error("/layout/recompute_modules", "does not fit: layer graphs recompute whole stages",
                  "set it to [], or recompute to full or all-but-last");
  }
  if (!l.stage_replicas.empty() && static_cast<std::int32_t>(l.stage_replicas.size()) != l.pp) {
    throw d.error(d.blame_default({"/layout/stage_replicas", "/layout/pp"}),
                  fmt::format("does not fit: stage_replicas has {} entries for {} stages",
                              l.stage_replicas.size(), l.pp),
                  fmt::format("write {} entries", l.pp));
  }
  if (!l.stage_replicas.empty() && l.dp > 1) {
    throw d.error("/layout/dp", "does not fit: stage_replicas says the replicas", "set dp to 1");
  }
  if (used > gpus) {
    throw d.error(d.blame({"/layout/dp", "/layout/pp", "/layout/stage_replicas"}),
                  fmt::format("makes {} ranks on {} GPUs", used, gpus),
                  "fewer replicas or stages, or a larger cluster");
  }
  check_device_list(d, s, used);
  check_batch(d, s);
}

void check_node_type(const ScenarioDocument& d, const NodeType& type, const std::string& at,
                     bool networked) {
  const std::string intra = at + "/intra", bandwidth = intra + "/bandwidth_GBps";
  const bool nvlink = type.intra.kind != IntraKind::None && type.intra.kind != IntraKind::Pcie;
  if (type.intra.kind == IntraKind::None && type.gpus > 1) {
    throw d.error(d.has(intra) ? intra + "/kind" : intra,
                  fmt::format("leaves the {} GPUs of a node unconnected", type.gpus),
                  "nearest legal choice: pcie (or nvswitch, nvlink-mesh, nvlink-pairs)");
  }
  if (nvlink && !d.has(bandwidth)) {
    throw d.error(bandwidth, "is missing", "add the bandwidth of one GPU, each direction, in GBps");
  }
  if (!nvlink && d.has(bandwidth)) {
    throw d.error(bandwidth, fmt::format("has no meaning with kind {}", to_string(type.intra.kind)),
                  "remove the key, or write an NVLink kind such as nvswitch");
  }
  const std::int32_t domain = type.intra.domain_gpus;
  if (domain != 0 && (!nvlink || domain % type.gpus != 0)) {
    throw d.error(intra + "/domain_gpus",
                  nvlink ? fmt::format("is not a multiple of the {} GPUs of a node", type.gpus)
                         : "has no meaning without NVLink",
                  fmt::format("nearest legal value: {}",
                              nvlink ? std::max(1, domain / type.gpus) * type.gpus : 0));
  }
  if (networked && type.nics.per_node == 0) {
    throw d.error(at + "/nics", "is missing, but the cluster has more than one node",
                  "add { \"per_node\": ..., \"each_Gbps\": ... }");
  }
}

void check_fabric(const ScenarioDocument& d, const Cluster& c, std::int64_t nodes) {
  const std::string at = "/cluster/fabric";
  if (nodes > 1 && c.fabric.kind == FabricKind::None) {
    throw d.error(at + "/kind", fmt::format("leaves {} nodes unconnected", nodes),
                  "write infiniband, roce, ethernet, efa, slingshot or omni-path");
  }
  if (nodes > 1 && c.fabric.levels.empty()) {
    throw d.error(at + "/levels", "is missing, but the cluster has more than one node",
                  fmt::format("add [ {{ \"nodes_per_group\": {} }} ]", nodes));
  }
  for (std::size_t i = 0; i < c.fabric.levels.size(); ++i) {
    const std::string here = child_pointer(at + "/levels", i) + "/nodes_per_group";
    const std::int64_t group = c.fabric.levels[i].nodes_per_group;
    const std::int64_t below = i == 0 ? 1 : c.fabric.levels[i - 1].nodes_per_group;
    if (group % below != 0 || (i > 0 && group == below)) {
      throw d.error(
          here, fmt::format("is not a larger multiple of the level below ({})", below),
          fmt::format("nearest legal value: {}", std::max<std::int64_t>(2, group / below) * below));
    }
    if (i + 1 == c.fabric.levels.size() && group < nodes) {
      throw d.error(here, fmt::format("leaves nodes out: the last level holds all {} nodes", nodes),
                    fmt::format("nearest legal value: {}", (nodes + below - 1) / below * below));
    }
  }
}

}  // namespace

namespace {

void check_expert_rules(const ScenarioDocument& d, const Transformer& m) {
  if (m.has_experts() && m.moe.top_k > m.moe.experts) {
    throw d.error(d.blame({"/model/moe/top_k", "/model/moe/experts"}),
                  fmt::format("does not fit: top_k ({}) of {} experts", m.moe.top_k, m.moe.experts),
                  fmt::format("nearest legal value: {}", m.moe.experts));
  }
  if (m.has_experts() && m.moe.dense_layers >= m.layers) {
    throw d.error("/model/moe/dense_layers",
                  fmt::format("leaves none of {} layers with experts", m.layers),
                  fmt::format("nearest legal value: {}", m.layers - 1));
  }
  if (m.has_mla() && m.positions != Positions::Rope) {
    throw d.error("/model/positions", "does not fit: latent attention rotates part of a head",
                  "set positions to rope");
  }
  if (m.has_mla() && m.mla.rope % 2 != 0) {
    throw d.error("/model/mla/rope", "is odd: pairs are rotated",
                  fmt::format("nearest legal value: {}", m.mla.rope + 1));
  }
  if (m.has_mla() && m.kv_heads != m.heads) {
    throw d.error("/model/kv_heads", "has no meaning with mla: every head has its own key",
                  "remove the key");
  }
  if (m.has_mla() && d.has("/model/head_dim")) {
    throw d.error("/model/head_dim", "has no meaning with mla: it is nope + rope",
                  "remove the key");
  }
  if (m.full_every > 0 && m.window == 0) {
    throw d.error("/model/full_every", "has no meaning without a window", "add window");
  }
}

}  // namespace

void check_model_rules(const ScenarioDocument& d, const Transformer& m) {
  check_expert_rules(d, m);
  if (!m.has_mla() && !d.has("/model/head_dim") && m.hidden % m.heads != 0) {
    const auto near =
        nearest_legal(m.heads, 1, m.hidden, [&](std::int64_t v) { return m.hidden % v == 0; });
    throw d.error(
        d.blame({"/model/heads", "/model/hidden"}),
        fmt::format("does not fit: heads ({}) do not divide hidden ({})", m.heads, m.hidden),
        number_advice(near, "add head_dim") + ", or add head_dim");
  }
  if (m.heads % m.kv_heads != 0) {
    const auto near =
        nearest_legal(m.kv_heads, 1, m.heads, [&](std::int64_t v) { return m.heads % v == 0; });
    throw d.error(
        d.blame({"/model/kv_heads", "/model/heads"}),
        fmt::format("does not fit: kv_heads ({}) do not divide heads ({})", m.kv_heads, m.heads),
        number_advice(near, "leave kv_heads out"));
  }
  const bool learned = m.positions == Positions::Learned;
  if (learned && m.max_positions == 0) {
    throw d.error(
        "/model/max_positions",
        d.has("/model/max_positions") ? "is too small for learned positions" : "is missing",
        "write the longest sequence, for example 2048");
  }
  if (!learned && m.max_positions != 0) {
    throw d.error("/model/max_positions", "has no meaning without learned positions",
                  "remove the key, or set positions to learned");
  }
}

void check_cluster_rules(const ScenarioDocument& d, const Cluster& c) {
  std::int64_t nodes = 0, gpus = 0;
  for (std::size_t i = 0; i < c.groups.size(); ++i) {
    nodes += c.groups[i].count;
    gpus += std::int64_t{c.groups[i].count} * c.groups[i].type.gpus;
    if (gpus <= kMaxGpus) continue;
    const std::string at = child_pointer("/cluster/groups", i);
    throw d.error(d.blame({at + "/count", at + "/type/gpus"}),
                  fmt::format("makes more than {} GPUs", kMaxGpus), "lower count or gpus");
  }
  for (std::size_t i = 0; i < c.groups.size(); ++i) {
    const std::string at = child_pointer("/cluster/groups", i) + "/type";
    check_node_type(d, c.groups[i].type, at, nodes > 1);
  }
  check_fabric(d, c, nodes);
  if (!c.fabric.levels.empty() && c.fabric.levels.back().oversubscription != 1.0) {
    const std::string last = child_pointer("/cluster/fabric/levels", c.fabric.levels.size() - 1);
    throw d.error(last + "/oversubscription", "has no effect: the last level has no uplinks",
                  "set it to 1, or add a level above that holds all nodes");
  }
}

void check_job_rules(const ScenarioDocument& d, const Scenario& s) {
  check_precision(d, s.job.precision);
  const auto divisions =
      static_cast<std::uint32_t>(s.allocator.roundup_power2_divisions.value_or(0));
  if (divisions != 0 && !std::has_single_bit(divisions)) {
    throw d.error("/job/allocator/roundup_power2_divisions", "is no power of two",
                  fmt::format("nearest legal value: {}", std::bit_floor(divisions)));
  }
  const auto* model = std::get_if<Transformer>(&s.workload);
  if (model == nullptr) return;
  const Transformer& m = *model;
  if (m.positions == Positions::Learned && s.job.sequence > m.max_positions) {
    const bool by_model = d.blame({"/job/sequence", "/model/max_positions"}) != "/job/sequence";
    throw d.error(
        by_model ? "/model/max_positions" : "/job/sequence",
        fmt::format("does not fit: a sequence of {} needs {} learned positions, not {}",
                    s.job.sequence, s.job.sequence, m.max_positions),
        fmt::format("nearest legal value: {}", by_model ? s.job.sequence : m.max_positions));
  }
}

void check_layout_rules(const ScenarioDocument& d, const Scenario& s) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::any_of(s.name.begin(), s.name.end(), is_control)) {
    throw d.error("/name", "holds control characters", "use printable characters");
  }
  if (s.layout.tp_overlap == TpOverlap::Columns && s.layout.sp) {
    throw d.error(d.blame({"/layout/tp_overlap", "/layout/sp"}),
                  "does not fit: sequence parallelism has no all-reduces to cut",
                  "set sp to false, or tp_overlap to userbuffers");
  }
  const bool needs_sp = s.layout.tp_overlap == TpOverlap::Userbuffers ||
                        s.layout.tp_overlap == TpOverlap::AsyncTp || is_ring(s.layout.tp_overlap);
  if (needs_sp && !s.layout.sp) {
    throw d.error(d.blame({"/layout/tp_overlap", "/layout/sp"}),
                  "does not fit: only sequence parallelism has collectives to cut",
                  "set sp to true, or tp_overlap to none");
  }
  check_schedule(d, s.layout);
  if (std::holds_alternative<LayerGraph>(s.workload)) return check_graph_layout(d, s);
  check_tensor_parallel(d, s);
  check_experts(d, s);
  check_attention_form(d, s);
  check_sharding(d, s.layout);
  check_context_parallel(d, s);
  check_devices(d, s);
  check_stages(d, s);
  check_batch(d, s);
}

namespace {

const NodeType& type_of_node(const Cluster& cluster, std::int32_t node) {
  std::int32_t first = 0;
  for (const NodeGroup& group : cluster.groups) {
    first += group.count;
    if (node < first) return group.type;
  }
  return cluster.groups.back().type;
}

void check_nic_faults(const ScenarioDocument& d, const Scenario& s) {
  std::set<std::pair<std::int32_t, std::int32_t>> seen;
  std::map<std::int32_t, std::int32_t> dead;  // by node
  const std::int32_t nodes = s.cluster.nodes();
  for (std::size_t i = 0; i < s.what_if.nics.size(); ++i) {
    const NicFault& fault = s.what_if.nics[i];
    const std::string at = child_pointer("/what_if/nics", i);
    if (fault.node >= nodes) {
      throw d.error(at + "/node", fmt::format("is not among the {} nodes", nodes),
                    fmt::format("nearest legal value: {}", nodes - 1));
    }
    const std::int32_t nics = type_of_node(s.cluster, fault.node).nics.per_node;
    if (nics == 0) {
      throw d.error(at + "/node", "is a node without network adapters", "leave this entry out");
    }
    if (fault.nic >= nics) {
      throw d.error(at + "/nic", fmt::format("is not among the {} adapters of its node", nics),
                    fmt::format("nearest legal value: {}", nics - 1));
    }
    if (!seen.insert({fault.node, fault.nic}).second) {
      throw d.error(at + "/nic", "already stands in an earlier entry", "name each adapter once");
    }
    if (fault.speed > 0 && fault.speed < 0.001) {
      throw d.error(at + "/speed", "is too little to simulate", "write 0, or at least 0.001");
    }
    if (fault.speed == 0 && ++dead[fault.node] == nics) {
      throw d.error(at + "/speed", fmt::format("leaves node {} without an adapter", fault.node),
                    "keep one alive: a cut-off node cannot take part in the job");
    }
  }
}

}  // namespace

void check_what_if_rules(const ScenarioDocument& d, const Scenario& s) {
  check_nic_faults(d, s);
  std::set<RankId> seen;
  const std::int64_t ranks = used_gpus(s.layout);
  for (std::size_t i = 0; i < s.what_if.stragglers.size(); ++i) {
    const RankId rank = s.what_if.stragglers[i].rank;
    const std::string at = child_pointer("/what_if/stragglers", i) + "/rank";
    if (rank.value >= ranks && d.blame_default({at, "/layout/dp"}) != at) {
      throw d.error("/layout/dp",
                    fmt::format("leaves {} ranks, but what_if names rank {}", ranks, rank.value),
                    "raise dp, or lower the rank");
    }
    if (rank.value >= ranks) {
      throw d.error(at, fmt::format("is not among the {} ranks", ranks),
                    fmt::format("nearest legal value: {}", ranks - 1));
    }
    if (!seen.insert(rank).second) {
      throw d.error(at, "already stands in an earlier entry", "name each rank once");
    }
  }
}

}  // namespace gputwin
