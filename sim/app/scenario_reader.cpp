#include "sim/app/scenario_reader.h"

#include <array>
#include <string>
#include <utility>

#include "sim/core/check.h"

namespace gputwin {
namespace {

template <class Enum>
using Spellings = std::pair<const char*, Enum>;

constexpr std::array kActivations{
    Spellings<Activation>{"gelu", Activation::Gelu}, Spellings<Activation>{"relu", Activation::Relu},
    Spellings<Activation>{"sq-relu", Activation::SqRelu},
    Spellings<Activation>{"swiglu", Activation::Swiglu},
    Spellings<Activation>{"geglu", Activation::Geglu}};
constexpr std::array kPositions{Spellings<Positions>{"learned", Positions::Learned},
                                Spellings<Positions>{"rope", Positions::Rope},
                                Spellings<Positions>{"alibi", Positions::Alibi}};
constexpr std::array kNorms{Spellings<Norm>{"layernorm", Norm::LayerNorm},
                            Spellings<Norm>{"rmsnorm", Norm::RmsNorm}};
constexpr std::array kIntra{Spellings<IntraKind>{"none", IntraKind::None},
                            Spellings<IntraKind>{"nvswitch", IntraKind::NvSwitch},
                            Spellings<IntraKind>{"nvlink-mesh", IntraKind::NvLinkMesh},
                            Spellings<IntraKind>{"nvlink-pairs", IntraKind::NvLinkPairs},
                            Spellings<IntraKind>{"pcie", IntraKind::Pcie}};
constexpr std::array kFabrics{
    Spellings<FabricKind>{"none", FabricKind::None},
    Spellings<FabricKind>{"infiniband", FabricKind::InfiniBand},
    Spellings<FabricKind>{"roce", FabricKind::Roce},
    Spellings<FabricKind>{"ethernet", FabricKind::Ethernet},
    Spellings<FabricKind>{"efa", FabricKind::Efa},
    Spellings<FabricKind>{"slingshot", FabricKind::Slingshot},
    Spellings<FabricKind>{"omni-path", FabricKind::OmniPath}};
constexpr std::array kFormats{Spellings<DType>{"bf16", DType::Bf16},
                              Spellings<DType>{"fp16", DType::F16},
                              Spellings<DType>{"tf32", DType::Tf32},
                              Spellings<DType>{"fp32", DType::F32}};
constexpr std::array kOptimizers{Spellings<Optimizer>{"adam", Optimizer::Adam},
                                 Spellings<Optimizer>{"adamw", Optimizer::AdamW},
                                 Spellings<Optimizer>{"sgd", Optimizer::Sgd}};
constexpr std::array kAttention{Spellings<AttentionKernel>{"unfused", AttentionKernel::Unfused},
                                Spellings<AttentionKernel>{"flash1", AttentionKernel::Flash1},
                                Spellings<AttentionKernel>{"flash2", AttentionKernel::Flash2},
                                Spellings<AttentionKernel>{"flash3", AttentionKernel::Flash3},
                                Spellings<AttentionKernel>{"cudnn", AttentionKernel::Cudnn}};
constexpr std::array kSchedules{Spellings<Schedule>{"none", Schedule::None},
                                Spellings<Schedule>{"gpipe", Schedule::Gpipe},
                                Spellings<Schedule>{"1f1b", Schedule::OneFOneB},
                                Spellings<Schedule>{"interleaved", Schedule::Interleaved}};
constexpr std::array kRecompute{Spellings<Recompute>{"none", Recompute::None},
                                Spellings<Recompute>{"selective", Recompute::Selective},
                                Spellings<Recompute>{"full", Recompute::Full},
                                Spellings<Recompute>{"block", Recompute::Block}};
constexpr std::array kDims{Spellings<Dim>{"tp", Dim::Tp}, Spellings<Dim>{"cp", Dim::Cp},
                           Spellings<Dim>{"dp", Dim::Dp}, Spellings<Dim>{"pp", Dim::Pp}};

template <class Table>
auto lookup(const Table& table, const std::string& word) {
  for (const auto& [spelling, value] : table) {
    if (word == spelling) return value;
  }
  GPUTWIN_CHECK(false, "the schema and the reader know the same words, such as " + word);
  return table.front().second;
}

template <class Table, class Enum>
const char* spell(const Table& table, Enum value) {
  for (const auto& [spelling, known] : table) {
    if (known == value) return spelling;
  }
  GPUTWIN_CHECK(false, "every value of an enum has a spelling");
  return "";
}

template <class Table, class Enum>
Enum read_word(const Json& object, const char* key, const Table& table, Enum otherwise) {
  const auto found = object.find(key);
  return found == object.end() ? otherwise : lookup(table, found->template get<std::string>());
}

const Json& object_or_empty(const Json& object, const char* key) {
  static const Json empty = Json::object();
  const auto found = object.find(key);
  return found == object.end() ? empty : *found;
}

BytesPerSecond read_GBps(const Json& object, const char* key, double otherwise = 0.0) {
  return BytesPerSecond(object.value(key, otherwise) * 1e9);
}

NodeType read_node_type(const Json& type) {
  NodeType node;
  node.device = type.at("device").get<std::string>();
  node.gpus = type.at("gpus").get<std::int32_t>();
  const Json& intra = object_or_empty(type, "intra");
  node.intra.kind = read_word(intra, "kind", kIntra, IntraKind::None);
  node.intra.per_gpu = read_GBps(intra, "bandwidth_GBps");
  node.intra.efficiency = intra.value("efficiency", 1.0);
  node.intra.domain_gpus = intra.value("domain_gpus", 0);
  const Json& pcie = type.at("pcie");
  const double lane = pcie.at("bandwidth_GBps").get<double>();
  node.pcie.generation = pcie.value("generation", 4);
  node.pcie.per_gpu = read_GBps(pcie, "bandwidth_GBps");
  node.pcie.switch_uplink = read_GBps(pcie, "switch_uplink_GBps", lane);
  node.pcie.gpus_per_switch = pcie.value("gpus_per_switch", 1);
  node.pcie.efficiency = pcie.value("efficiency", 1.0);
  const Json& host = type.at("host");
  node.host.sockets = host.value("sockets", 2);
  node.host.cores = host.at("cores").get<std::int32_t>();
  node.host.memory = Bytes(static_cast<std::int64_t>(host.at("memory_GiB").get<double>() * 1024 * 1024 * 1024));
  node.host.dram = read_GBps(host, "dram_GBps");
  const Json& nics = object_or_empty(type, "nics");
  node.nics.per_node = nics.value("per_node", 0);
  node.nics.each = BytesPerSecond(nics.value("each_Gbps", 0.0) * 1e9 / 8);
  node.nics.efficiency = nics.value("efficiency", 1.0);
  const Json& nvme = object_or_empty(type, "nvme");
  node.nvme_read = read_GBps(nvme, "read_GBps");
  node.nvme_write = read_GBps(nvme, "write_GBps");
  return node;
}

/// "tp-cp-dp-pp" as dimensions, fastest first.
std::array<Dim, 4> read_rank_order(const std::string& text) {
  std::array<Dim, 4> order{};
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = lookup(kDims, text.substr(3 * i, 2));
  return order;
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
  t.activation = read_word(model, "activation", kActivations, Activation::Gelu);
  t.positions = read_word(model, "positions", kPositions, Positions::Learned);
  t.norm = read_word(model, "norm", kNorms, Norm::LayerNorm);
  t.bias = model.value("bias", true);
  t.tied_embeddings = model.value("tied_embeddings", true);
  t.dropout = model.value("dropout", 0.0);
  return t;
}

Cluster read_cluster(const Json& cluster) {
  Cluster c;
  c.name = cluster.value("name", "unnamed");
  for (const Json& group : cluster.at("groups")) {
    c.groups.push_back({read_node_type(group.at("type")), group.at("count").get<std::int32_t>()});
  }
  const Json& fabric = cluster.at("fabric");
  c.fabric.kind = read_word(fabric, "kind", kFabrics, FabricKind::None);
  c.fabric.rail_optimized = fabric.value("rail_optimized", false);
  for (const Json& level : fabric.value("levels", Json::array())) {
    c.fabric.levels.push_back(
        {level.at("nodes_per_group").get<std::int32_t>(), level.value("oversubscription", 1.0)});
  }
  c.fabric.nic_latency = Seconds(fabric.value("nic_latency_us", 0.0) * 1e-6);
  c.fabric.switch_latency = Seconds(fabric.value("switch_latency_us", 0.0) * 1e-6);
  return c;
}

Job read_job(const Json& json) {
  Job job;
  job.sequence = json.at("sequence").get<std::int64_t>();
  job.global_batch = json.at("global_batch").get<std::int64_t>();
  const Json& precision = object_or_empty(json, "precision");
  job.precision.compute = read_word(precision, "compute", kFormats, DType::Bf16);
  job.precision.params = read_word(precision, "params", kFormats, DType::Bf16);
  job.precision.grads = read_word(precision, "grads", kFormats, DType::F32);
  job.optimizer = read_word(json, "optimizer", kOptimizers, Optimizer::Adam);
  job.attention = read_word(json, "attention", kAttention, AttentionKernel::Flash2);
  job.stack = json.value("stack", "megatron-core");
  return job;
}

Layout read_layout(const Json& json) {
  Layout l;
  l.tp = json.value("tp", 1);
  l.pp = json.value("pp", 1);
  l.vpp = json.value("vpp", 1);
  l.dp = json.value("dp", 1);
  l.cp = json.value("cp", 1);
  l.ep = json.value("ep", 1);
  l.sp = json.value("sp", false);
  l.zero = json.value("zero", 0);
  l.schedule = read_word(json, "schedule", kSchedules, default_schedule(l));
  l.micro_batch = json.value("micro_batch", std::int64_t{1});
  l.recompute_layers = json.value("recompute_layers", 0);
  const Recompute otherwise = l.recompute_layers > 0 ? Recompute::Block : Recompute::None;
  l.recompute = read_word(json, "recompute", kRecompute, otherwise);
  l.stage_layers = json.value("stage_layers", std::vector<std::int32_t>{});
  l.rank_order = read_rank_order(json.value("rank_order", "tp-cp-dp-pp"));
  for (const Json& gpu : json.value("devices", Json::array())) {
    l.devices.push_back(GpuId(gpu.get<std::uint32_t>()));
  }
  l.overlap_grad_reduce = json.value("overlap_grad_reduce", true);
  l.overlap_param_gather = json.value("overlap_param_gather", true);
  l.bucket_elements = json.value("bucket_elements", std::int64_t{40'000'000});
  return l;
}

WhatIf read_what_if(const Json& json) {
  WhatIf what_if;
  for (const Json& s : json.value("stragglers", Json::array())) {
    what_if.stragglers.push_back(
        {RankId(s.at("rank").get<std::uint32_t>()), s.at("slowdown").get<double>()});
  }
  if (json.contains("jitter")) {
    what_if.jitter = Jitter{json["jitter"].at("sigma").get<double>(),
                            json["jitter"].value("seed", std::uint64_t{0})};
  }
  return what_if;
}

const char* spelling(Schedule schedule) { return spell(kSchedules, schedule); }
const char* spelling(Recompute recompute) { return spell(kRecompute, recompute); }
const char* spelling(FabricKind kind) { return spell(kFabrics, kind); }
const char* spelling(IntraKind kind) { return spell(kIntra, kind); }

}  // namespace gputwin
