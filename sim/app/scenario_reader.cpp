#include "sim/app/scenario_reader.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "sim/core/check.h"
#include "sim/core/spelling.h"

namespace gputwin {

extern const char* const kUsableLinksText;  // hwmodels/links/usable.json

namespace {

/// A constant of hwmodels/links/usable.json.
double usable(const std::string& group, const std::string& key) {
  static const Json table = Json::parse(kUsableLinksText);
  return table.at(group).at(key).at("value").get<double>();
}

/// Files write fp32 where plans write f32; every other word is core's.
template <class Enum>
Enum enumerator(const std::string& word) {
  const auto value = from_string<Enum>(word == "fp32" ? "f32" : word);
  GPUTWIN_CHECK(value.has_value(),
                "the schemas know no word that the core does not, such as " + word);
  return *value;
}

template <class Enum>
Enum read_word(const Json& object, const char* key, Enum otherwise) {
  const auto found = object.find(key);
  return found == object.end() ? otherwise : enumerator<Enum>(found->get<std::string>());
}

const Json& object_or_empty(const Json& object, const char* key) {
  static const Json empty = Json::object();
  const auto found = object.find(key);
  return found == object.end() ? empty : *found;
}

BytesPerSecond read_GBps(const Json& object, const char* key, double otherwise = 0.0) {
  return BytesPerSecond(object.value(key, otherwise) * 1e9);
}

/// Usable share of a network adapter whose file does not state it.
double nic_efficiency(FabricKind kind, double each_Gbps) {
  if (kind == FabricKind::None) return 1.0;
  if (kind != FabricKind::Ethernet) return usable(std::string(to_string(kind)), "efficiency");
  if (each_Gbps <= 10) return usable("ethernet", "efficiency_to_10_Gbps");
  return usable("ethernet", each_Gbps <= 25 ? "efficiency_to_25_Gbps" : "efficiency_above");
}

double pcie_efficiency(std::int32_t generation) {
  if (generation <= 3) return usable("pcie", "efficiency_generation_3");
  return usable("pcie", generation == 4 ? "efficiency_generation_4" : "efficiency_generation_5_up");
}

double nic_latency_us(FabricKind kind) {
  if (kind == FabricKind::None) return 0.0;
  return usable(std::string(to_string(kind)), "nic_latency_us");
}

NodeType read_node_type(const Json& type, FabricKind fabric) {
  NodeType node;
  node.device = type.at("device").get<std::string>();
  node.gpus = type.at("gpus").get<std::int32_t>();
  const Json& intra = object_or_empty(type, "intra");
  node.intra.kind = read_word(intra, "kind", IntraKind::None);
  node.intra.per_gpu = read_GBps(intra, "bandwidth_GBps");
  node.intra.efficiency = intra.value("efficiency", 1.0);
  node.intra.domain_gpus = intra.value("domain_gpus", 0);
  const Json& pcie = type.at("pcie");
  const double lane = pcie.at("bandwidth_GBps").get<double>();
  node.pcie.generation = pcie.value("generation", 4);
  node.pcie.per_gpu = read_GBps(pcie, "bandwidth_GBps");
  node.pcie.switch_uplink = read_GBps(pcie, "switch_uplink_GBps", lane);
  node.pcie.gpus_per_switch = pcie.value("gpus_per_switch", 1);
  node.pcie.efficiency = pcie.value("efficiency", pcie_efficiency(node.pcie.generation));
  const Json& host = type.at("host");
  node.host.sockets = host.value("sockets", 2);
  node.host.cores = host.at("cores").get<std::int32_t>();
  node.host.memory =
      Bytes(static_cast<std::int64_t>(host.at("memory_GiB").get<double>() * 1024 * 1024 * 1024));
  node.host.dram = read_GBps(host, "dram_GBps");
  const Json& nics = object_or_empty(type, "nics");
  node.nics.per_node = nics.value("per_node", 0);
  const double each_Gbps = nics.value("each_Gbps", 0.0);
  node.nics.each = BytesPerSecond(each_Gbps * 1e9 / 8);
  node.nics.efficiency = nics.value("efficiency", nic_efficiency(fabric, each_Gbps));
  const Json& nvme = object_or_empty(type, "nvme");
  node.nvme_read = read_GBps(nvme, "read_GBps");
  node.nvme_write = read_GBps(nvme, "write_GBps");
  return node;
}

/// "tp-cp-dp-pp" as dimensions, fastest first.
std::array<Dim, 4> read_rank_order(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, Dim>, 4> kDims{
      {{"tp", Dim::Tp}, {"cp", Dim::Cp}, {"dp", Dim::Dp}, {"pp", Dim::Pp}}};
  std::array<Dim, 4> order{};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::string_view word = std::string_view(text).substr(3 * i, 2);
    for (const auto& [name, dim] : kDims) {
      if (name == word) order[i] = dim;
    }
  }
  return order;
}

/// One number for all stages or one per stage; empty if all are 0 or none is given.
std::vector<std::int32_t> read_recompute_layers(const Json& layout) {
  const auto found = layout.find("recompute_layers");
  if (found == layout.end()) return {};
  std::vector<std::int32_t> layers;
  if (found->is_array()) {
    layers = found->get<std::vector<std::int32_t>>();
  } else {
    layers = {found->get<std::int32_t>()};
  }
  const bool none =
      std::all_of(layers.begin(), layers.end(), [](std::int32_t n) { return n == 0; });
  return none ? std::vector<std::int32_t>{} : layers;
}

std::uint8_t read_recompute_modules(const Json& layout) {
  constexpr std::array<std::pair<std::string_view, std::uint8_t>, 6> kModules{
      {{"mla_up_proj", kRecomputeMlaUp},
       {"moe_act", kRecomputeMoeActivation},
       {"norms", kRecomputeNorms},
       {"mlp", kRecomputeMlp},
       {"moe", kRecomputeMoe},
       {"ops", kRecomputeOps}}};
  std::uint8_t modules = 0;
  for (const Json& word : layout.value("recompute_modules", Json::array())) {
    for (const auto& [name, bit] : kModules) {
      if (word == name) modules |= bit;
    }
  }
  return modules;
}

Experts read_experts(const Json& json) {
  Experts e;
  if (!json.contains("experts")) return e;
  e.experts = json["experts"].get<std::int64_t>();
  e.top_k = json.at("top_k").get<std::int64_t>();
  e.ffn = json.at("ffn").get<std::int64_t>();
  e.shared_ffn = json.value("shared_ffn", std::int64_t{0});
  e.dense_layers = json.value("dense_layers", std::int64_t{0});
  e.every = json.value("every", std::int64_t{1});
  e.capacity_factor = json.value("capacity_factor", 0.0);
  e.bias = json.value("bias", false);
  return e;
}

Mla read_mla(const Json& json) {
  Mla m;
  if (!json.contains("kv_rank")) return m;
  m.q_rank = json.value("q_rank", std::int64_t{0});
  m.kv_rank = json["kv_rank"].get<std::int64_t>();
  m.nope = json.at("nope").get<std::int64_t>();
  m.rope = json.at("rope").get<std::int64_t>();
  m.value = json.at("value").get<std::int64_t>();
  return m;
}

Schedule default_schedule(const Layout& layout) {
  if (layout.vpp > 1) return Schedule::Interleaved;
  return layout.pp == 1 ? Schedule::None : Schedule::OneFOneB;
}

}  // namespace

Transformer read_transformer(const Json& model) {
  Transformer t;
  t.name = model.value("name", "unnamed");
  t.layers = model.at("layers").get<std::int64_t>();
  t.hidden = model.at("hidden").get<std::int64_t>();
  t.heads = model.at("heads").get<std::int64_t>();
  t.kv_heads = model.value("kv_heads", t.heads);
  t.head_dim = model.value("head_dim", t.hidden / t.heads);
  t.ffn = model.at("ffn").get<std::int64_t>();
  t.vocab = model.at("vocab").get<std::int64_t>();
  t.max_positions = model.value("max_positions", std::int64_t{0});
  t.activation = read_word(model, "activation", Activation::Gelu);
  t.positions = read_word(model, "positions", Positions::Learned);
  t.norm = read_word(model, "norm", Norm::LayerNorm);
  t.bias = model.value("bias", true);
  t.tied_embeddings = model.value("tied_embeddings", true);
  t.dropout = model.value("dropout", 0.0);
  t.moe = read_experts(object_or_empty(model, "moe"));
  t.mla = read_mla(object_or_empty(model, "mla"));
  if (t.has_mla()) t.head_dim = t.mla.nope + t.mla.rope;
  t.window = model.value("window", std::int64_t{0});
  t.full_every = model.value("full_every", std::int64_t{0});
  t.causal = model.value("kind", "decoder") != "encoder";
  return t;
}

Cluster read_cluster(const Json& cluster) {
  Cluster c;
  c.name = cluster.value("name", "unnamed");
  const Json& fabric = cluster.at("fabric");
  c.fabric.kind = read_word(fabric, "kind", FabricKind::None);
  for (const Json& group : cluster.at("groups")) {
    c.groups.push_back(
        {read_node_type(group.at("type"), c.fabric.kind), group.at("count").get<std::int32_t>()});
  }
  c.fabric.rail_optimized = fabric.value("rail_optimized", false);
  for (const Json& level : fabric.value("levels", Json::array())) {
    c.fabric.levels.push_back(
        {level.at("nodes_per_group").get<std::int32_t>(), level.value("oversubscription", 1.0)});
  }
  c.fabric.nic_latency = Seconds((fabric.value("nic_latency_us", nic_latency_us(c.fabric.kind)) +
                                  fabric.value("added_latency_us", 0.0)) *
                                 1e-6);
  c.fabric.switch_latency = Seconds(fabric.value("switch_latency_us", 0.0) * 1e-6);
  return c;
}

Job read_job(const Json& json) {
  Job job;
  job.sequence = json.at("sequence").get<std::int64_t>();
  job.global_batch = json.at("global_batch").get<std::int64_t>();
  const Json& precision = object_or_empty(json, "precision");
  job.precision.compute = read_word(precision, "compute", DType::Bf16);
  job.precision.params = read_word(precision, "params", DType::Bf16);
  job.precision.grads = read_word(precision, "grads", DType::F32);
  job.precision.recipe = read_word(precision, "recipe", usual_recipe(job.precision.compute));
  job.precision.master = precision.value("master", true);
  job.lora_rank = json.value("lora_rank", 0);
  job.lora_qkv_only = json.value("lora_qkv_only", false);
  job.fused_cross_entropy = json.value("fused_cross_entropy", false);
  job.cuda_graph = json.value("cuda_graph", false);
  job.expert_load = json.value("expert_load", std::vector<double>{});
  job.optimizer = read_word(json, "optimizer", Optimizer::Adam);
  job.attention = read_word(json, "attention", AttentionKernel::Flash2);
  job.stack = json.value("stack", "megatron-core");
  return job;
}

AllocatorChoice read_allocator(const Json& job) {
  const Json& json = object_or_empty(job, "allocator");
  AllocatorChoice choice;
  if (json.contains("expandable_segments")) {
    choice.expandable_segments = json["expandable_segments"].get<bool>();
  }
  if (json.contains("max_split_size_MiB")) {
    choice.max_split_size = Bytes(json["max_split_size_MiB"].get<std::int64_t>() << 20);
  }
  if (json.contains("roundup_power2_divisions")) {
    choice.roundup_power2_divisions = json["roundup_power2_divisions"].get<std::int32_t>();
  }
  return choice;
}

Layout read_layout(const Json& json) {
  Layout l;
  l.tp = json.value("tp", 1);
  l.pp = json.value("pp", 1);
  l.vpp = json.value("vpp", 1);
  l.dp = json.value("dp", 1);
  l.cp = json.value("cp", 1);
  l.cp_comm = read_word(json, "cp_comm", ContextComm::AllGather);
  l.ep_comm = read_word(json, "ep_comm", ExpertComm::Flat);
  l.ep = json.value("ep", 1);
  l.sp = json.value("sp", false);
  l.tp_overlap = read_word(json, "tp_overlap", TpOverlap::None);
  l.zero = json.value("zero", 0);
  l.hsdp_group = json.value("hsdp_group", 0);
  l.schedule = read_word(json, "schedule", default_schedule(l));
  l.micro_batch = json.value("micro_batch", std::int64_t{1});
  l.recompute_layers = read_recompute_layers(json);
  const Recompute otherwise = l.recompute_layers.empty() ? Recompute::None : Recompute::Block;
  l.recompute = read_word(json, "recompute", otherwise);
  l.stage_layers = json.value("stage_layers", std::vector<std::int32_t>{});
  l.stage_replicas = json.value("stage_replicas", std::vector<std::int32_t>{});
  l.rank_order = read_rank_order(json.value("rank_order", "tp-cp-dp-pp"));
  for (const Json& gpu : json.value("devices", Json::array())) {
    l.devices.push_back(GpuId(gpu.get<std::uint32_t>()));
  }
  l.overlap_grad_reduce = json.value("overlap_grad_reduce", true);
  l.overlap_param_gather = json.value("overlap_param_gather", true);
  l.overlap_shared_experts = json.value("overlap_shared_experts", false);
  l.recompute_modules = read_recompute_modules(json);
  l.overlap_p2p = json.value("overlap_p2p", true);
  l.bucket_elements = json.value("bucket_elements", std::int64_t{0});
  l.single_queue = json.value("single_queue", false);
  return l;
}

WhatIf read_what_if(const Json& json) {
  WhatIf what_if;
  for (const Json& s : json.value("stragglers", Json::array())) {
    what_if.stragglers.push_back(
        {RankId(s.at("rank").get<std::uint32_t>()), s.at("slowdown").get<double>()});
  }
  for (const Json& n : json.value("nics", Json::array())) {
    what_if.nics.push_back({n.at("node").get<std::int32_t>(), n.at("nic").get<std::int32_t>(),
                            n.at("speed").get<double>()});
  }
  for (const Json& word : json.value("without", Json::array())) {
    const auto words = mechanism_words();
    const auto found = std::find(words.begin(), words.end(), word.get<std::string>());
    what_if.without.push_back(static_cast<Mechanism>(found - words.begin()));
  }
  const Json& times = object_or_empty(json, "times");
  for (std::size_t f = 0; f < kFactors; ++f) {
    what_if.times[f] = times.value(std::string(factor_keys()[f]), 1.0);
  }
  what_if.unlimited_memory = json.value("unlimited_memory", false);
  if (json.contains("jitter")) {
    what_if.jitter = Jitter{json["jitter"].at("sigma").get<double>(),
                            json["jitter"].value("seed", std::uint64_t{0})};
  }
  return what_if;
}

}  // namespace gputwin
