#include "validation/runs/row_scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

// Thrown inside this file only.
struct Refusal {
  std::string reason;
};

// Missing and null are the same: not known.
const Json& at(const Json& object, const char* key) {
  static const Json nothing;
  if (!object.is_object()) return nothing;
  const auto found = object.find(key);
  return found == object.end() ? nothing : *found;
}

std::string word(const Json& object, const char* key, const std::string& otherwise = "") {
  const Json& value = at(object, key);
  return value.is_string() ? value.get<std::string>() : otherwise;
}

bool flag(const Json& object, const char* key, bool otherwise = false) {
  const Json& value = at(object, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

double number(const Json& object, const char* key, double otherwise = 0) {
  const Json& value = at(object, key);
  return value.is_number() ? value.get<double>() : otherwise;
}

std::int64_t count(const Json& object, const char* key, std::int64_t otherwise) {
  const Json& value = at(object, key);
  return value.is_number() ? value.get<std::int64_t>() : otherwise;
}

std::int64_t needed(const Json& object, const char* key, const char* what) {
  const Json& value = at(object, key);
  if (!value.is_number()) throw Refusal{std::string(what) + " is not known"};
  return value.get<std::int64_t>();
}

bool known(const Json& value) { return !value.is_null(); }

bool one_of(const std::string& text, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(), [&](const char* w) { return text == w; });
}

class RowTranslation {
 public:
  RowTranslation(const std::string& name, const Json& config)
      : name_(name),
        config_(config),
        model_(at(config, "model")),
        parallel_(at(config, "parallel")),
        stack_(word(config, "stack", "unknown")),
        tp_(count(parallel_, "tp", 1)) {
    for (const Json& note : at(config, "workload_note")) {
      if (note.is_string()) notes_.push_back(note.get<std::string>());
    }
  }

  Json scenario() const {
    refuse();
    Json out;
    out["schema"] = 1;
    out["name"] = name_;
    out["model"] = model();
    out["cluster"] = cluster();
    out["job"] = job();
    out["layout"] = layout();
    if (const Json passes = offload(); !passes.empty()) out["passes"] = passes;
    // The run took place, so it fitted; what memory we predict for it is scored apart.
    out["what_if"] = {{"unlimited_memory", true}};
    return out;
  }

 private:
  bool noted(const char* note) const {
    return std::find(notes_.begin(), notes_.end(), note) != notes_.end();
  }
  bool stack_is(const char* prefix) const { return stack_.starts_with(prefix); }
  void refuse() const {
    const auto no = [](bool unsupported, const std::string& what) {
      if (unsupported) throw Refusal{"not modelled yet: " + what};
    };
    const std::string kind = word(model_, "kind", "decoder");
    no(kind != "decoder" && !graph(), "models of kind " + kind);
    const std::string pattern = word(model_, "attention_pattern", "full");
    const bool windowed = pattern == "sliding-window" && known(at(model_, "window"));
    no(pattern != "full" && !windowed, pattern + " attention");
    no(count(parallel_, "etp", 1) > 1, "experts cut over tensor parallelism");
    no(count(parallel_, "ep", 1) > 1 && !has_experts(), "expert parallelism without experts");
    const Json& offload = at(config_, "offload");
    no(known(offload) && graph(), "offloading of layer graphs");
    if (known(offload)) needed(at(config_, "batch"), "micro", "the micro-batch");
    no(!at(config_, "device_id").is_string(), "mixed clusters");
    const std::string schedule = word(parallel_, "schedule", "none");
    const bool torchgpipe = graph() && schedule == "torchgpipe";
    const bool pipedream = graph() && schedule == "pipedream-async";
    no(!torchgpipe && !pipedream &&
           !one_of(schedule, {"none", "1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-1p",
                              "zb-2p", "zb-v"}),
       "schedule " + schedule);
    no(!graph() && word(parallel_, "stage_unit", "layer") != "layer", "stages of pieces");
    const std::string recompute = word(config_, "recompute", "none");
    const bool spares_last = graph() && recompute == "all-but-last-microbatch";
    no(!spares_last &&
           !one_of(recompute, {"none", "selective", "selective-op", "full", "block", "modules"}),
       "recompute " + recompute);
    if (word(parallel_, "stage_rule", "even") == "unknown" &&
        !at(parallel_, "stage_layers").is_array() && !has_recipe_stages()) {
      throw Refusal{"the layers of each stage are not known"};
    }
  }

  bool has_experts() const { return known(at(model_, "moe")); }
  bool has_recipe_stages() const { return stack_is("megatron-bridge"); }
  std::int64_t mtp_layers() const { return count(model_, "mtp_layers", 0); }
  // A layer of multi-token prediction is taken as one more layer before the head; its own pass
  // through the head is left out.
  std::int64_t layers() const {
    return needed(model_, "layers", "the number of layers") + mtp_layers();
  }

  // What scripts of these stacks use where a source does not say: Megatron-LM trained with dropout
  // 0.1 and biases until Megatron Core; Llama-like models (SwiGLU) and LLM Foundry have neither.
  bool gated() const { return one_of(word(model_, "activation"), {"swiglu", "geglu"}); }
  bool bias() const {
    if (gpt_oss()) return true;
    return !gated() && word(model_, "activation") != "sq-relu" && !stack_is("mosaic");
  }
  // Published with biases of attention and experts (attention_bias in its config.json;
  // add_bias_linear in Megatron Bridge's GPTOSSProvider), which rows do not state.
  bool gpt_oss() const { return word(model_, "name").starts_with("gpt-oss"); }
  double dropout() const {
    if (noted("dropout")) return 0.1;
    const bool early = stack_is("megatron-lm-20") || stack_is("oneflow") ||
                       stack_is("megatron-lm-1") || stack_is("deepspeed-zero3") ||
                       stack_is("deepspeedexamples") ||
                       stack_is("patrickstar");  // both train models with dropout by default
    return early && !gated() ? 0.1 : 0.0;
  }

  // CNNs, recurrent networks and encoders are layer graphs.
  bool graph() const { return one_of(word(model_, "kind", "decoder"), {"cnn", "rnn", "encoder"}); }

  // "resnet50-v1.5", "vgg-16": family and depth, and the numbers a row states.
  Json network() const {
    Json n;
    if (word(model_, "kind") == "encoder") {
      n["family"] = "bert";
      n["layers"] = needed(model_, "layers", "the number of layers");
      n["hidden"] = needed(model_, "hidden", "the hidden size");
      n["heads"] = needed(model_, "heads", "the number of heads");
      n["ffn"] = needed(model_, "ffn", "the width of the MLP");
      n["vocab"] = needed(model_, "vocab", "the vocabulary");
      // NVIDIA's PyTorch script of that time takes the logits of all positions, others gather the
      // masked ones first.
      if (stack_is("ngc-pytorch")) n["loss_positions"] = needed(model_, "seq", "the sequence");
      return n;
    }
    std::string name = word(model_, "name");
    if (name.ends_with("-v1.5")) name.resize(name.size() - 5);
    std::string family = name, digits;
    while (!family.empty() && family.back() >= '0' && family.back() <= '9') {
      digits.insert(digits.begin(), family.back());
      family.pop_back();
    }
    if (name != "inception-v3" && family.ends_with('-')) family.pop_back();
    if (name == "inception-v3") family = name, digits.clear();
    if (!one_of(family,
                {"vgg", "resnet", "alexnet", "inception-v3", "amoebanet-d", "unet", "gnmt"})) {
      throw Refusal{"the layers of " + name + " are not known"};
    }
    n["family"] = family;
    const char* key = family == "gnmt" ? "layers" : "depth";
    if (!digits.empty()) n[key] = std::stoll(digits);
    if (known(at(model_, "cnn_depth"))) n["depth"] = count(model_, "cnn_depth", 0);
    if (known(at(model_, "cnn_width"))) n["width"] = count(model_, "cnn_width", 0);
    if (known(at(model_, "image_size"))) n["image"] = count(model_, "image_size", 0);
    return n;
  }

  Json model() const {
    if (graph()) {
      return {{"name", word(model_, "name", "unnamed")},
              {"kind", "layer-graph"},
              {"network", network()}};
    }
    const std::int64_t heads = needed(model_, "heads", "the number of heads");
    const std::int64_t kv = count(model_, "kv_heads", heads);
    const std::int64_t hidden = needed(model_, "hidden", "the hidden size");
    const std::int64_t sequence = needed(model_, "seq", "the sequence length");
    std::int64_t vocab = needed(model_, "vocab", "the vocabulary");
    // Megatron pads the vocabulary to a multiple of 128 tp.
    if (vocab % tp_ != 0) vocab = (vocab + 128 * tp_ - 1) / (128 * tp_) * 128 * tp_;
    Json m;
    m["name"] = word(model_, "name", "unnamed");
    m["layers"] = layers();
    m["hidden"] = hidden;
    m["heads"] = heads;
    if (const Json& mla = at(model_, "mla"); known(mla)) {
      m["mla"] = {{"q_rank", count(mla, "q_lora", 0)},
                  {"kv_rank", needed(mla, "kv_lora", "the rank of latent keys")},
                  {"nope", needed(mla, "nope", "the head size of latent attention")},
                  {"rope", needed(mla, "rope", "the head size of latent attention")},
                  {"value", needed(mla, "v", "the head size of latent attention")}};
    } else {
      // Key and value heads are repeated where tensor parallelism has more ranks than there are
      // heads.
      m["kv_heads"] = kv < tp_ && tp_ % kv == 0 ? tp_ : kv;
      m["head_dim"] = count(model_, "head_dim", hidden / heads);
    }
    if (has_experts()) m["moe"] = experts();
    if (const Json& window = at(model_, "window"); known(window)) {
      m["window"] = needed(window, "size", "the size of the window");
      const double full = 1.0 - number(window, "layer_fraction", 1.0);
      if (full > 0) m["full_every"] = static_cast<std::int64_t>(1.0 / full + 0.5);
    }
    m["ffn"] = needed(model_, "ffn", "the width of the MLP");
    m["vocab"] = vocab;
    m["activation"] = word(model_, "activation", "gelu");
    m["positions"] = word(model_, "positions", "learned");
    if (m["positions"] == "learned") m["max_positions"] = sequence;
    m["norm"] = gated() ? "rmsnorm" : "layernorm";
    m["bias"] = bias();
    // Scripts of the zero-bubble fork untie them: a sum over the first and the last stage would
    // stop its pipeline.
    m["tied_embeddings"] =
        flag(model_, "tied_embeddings", true) && !stack_is("megatron-lm-2023-zero-bubble");
    if (dropout() > 0) m["dropout"] = dropout();
    return m;
  }

  Json experts() const {
    const Json& moe = at(model_, "moe");
    Json e;
    e["experts"] = needed(moe, "experts", "the number of experts");
    e["top_k"] = needed(moe, "topk", "the experts of a token");
    e["ffn"] = needed(moe, "ffn", "the width of an expert");
    e["shared_ffn"] = count(moe, "shared_ffn", 0);
    e["dense_layers"] = count(model_, "dense_layers", 0);
    e["every"] = count(moe, "every", 1);
    const bool padded = noted("token-drop") || noted("capacity-padded");
    e["capacity_factor"] = number(moe, "capacity_factor", padded ? 1.0 : 0.0);
    if (gpt_oss()) e["bias"] = true;
    return e;
  }

  // Jobs with experts are given so much of a large NVLink domain (a rack of 72) that no expert
  // group straddles two.
  std::int64_t used_domain(std::int64_t domain, std::int64_t node_size) const {
    const std::int64_t ep = count(parallel_, "ep", 1), used = domain / ep * ep;
    return domain > node_size && used >= node_size && used % node_size == 0 ? used : domain;
  }

  Json node_type() const {
    const Json& intra = at(config_, "intra");
    const std::int64_t node_size = needed(config_, "node_size", "the size of a node");
    const std::string kind = word(intra, "kind", "none");
    if (kind == "tpu-ici") throw Refusal{"not modelled yet: TPUs"};
    Json type;
    type["device"] = word(config_, "device_id");
    type["gpus"] = node_size;
    if (node_size > 1 || kind == "nvswitch") {
      type["intra"] = {{"kind", kind}};
      if (kind != "pcie" && kind != "none") {
        type["intra"]["bandwidth_GBps"] = number(intra, "GBps_per_device_per_direction");
        const std::int64_t domain =
            used_domain(count(intra, "domain_devices", node_size), node_size);
        if (kind == "nvswitch" && domain > node_size) type["intra"]["domain_gpus"] = domain;
      }
    }
    const std::int64_t generation = count(intra, "pcie_gen", 4);
    const double lane = generation <= 3 ? 15.75 : generation == 4 ? 31.5 : 63.0;
    type["pcie"] = {{"generation", generation},
                    {"bandwidth_GBps", lane},
                    {"switch_uplink_GBps", lane},
                    {"gpus_per_switch", node_size >= 4 ? 2 : 1},
                    {"efficiency", 0.8}};
    // No row states its host: 64 cores are taken, and with PCIe 5, which no DDR4 host has, two
    // sockets of 8 channels of DDR5-4800. The other rate is what the stacks of validation/curves
    // were fitted with.
    const double dram = generation <= 4 ? 200 : 614.4;
    type["host"] = {{"cores", 64}, {"memory_GiB", 1024}, {"dram_GBps", dram}};
    const Json& fabric = at(config_, "fabric");
    if (number(fabric, "nics_per_node") > 0) {
      type["nics"] = {{"per_node", count(fabric, "nics_per_node", 1)},
                      {"each_Gbps", number(fabric, "nic_Gbps")}};
    }
    return type;
  }

  Json cluster() const {
    const Json& fabric = at(config_, "fabric");
    const std::int64_t nodes = needed(config_, "nodes", "the number of nodes");
    std::string kind = word(fabric, "kind", nodes > 1 ? "" : "none");
    if (kind.empty()) throw Refusal{"the network between nodes is not known"};
    const bool nics = number(fabric, "nics_per_node") > 0 && number(fabric, "nic_Gbps") > 0;
    if (kind == "nvlink-domain") kind = nics ? "infiniband" : "none";
    if (nodes > 1 && kind != "none" && !nics) {
      throw Refusal{"the adapters between nodes are not known"};
    }
    Json f{{"kind", kind}};
    if (kind != "none") {
      f["rail_optimized"] = flag(fabric, "rail_optimized");
      f["levels"] = levels(fabric, nodes);
      if (number(fabric, "added_latency_us") > 0) {
        f["nic_latency_us"] = number(fabric, "added_latency_us");
      }
    }
    return {{"name", "as published"},
            {"groups", Json::array({{{"type", node_type()}, {"count", nodes}}})},
            {"fabric", f}};
  }

  // Full bisection but for a stated oversubscription.
  Json levels(const Json& fabric, std::int64_t nodes) const {
    const Json& over = at(fabric, "oversubscription");
    const std::int64_t node_size = count(config_, "node_size", 1);
    if (known(over)) {
      const std::int64_t above = std::max<std::int64_t>(1, count(over, "above_devices", 1));
      const std::int64_t leaf = std::max<std::int64_t>(1, above / node_size);
      if (leaf < nodes) {
        return Json::array(
            {{{"nodes_per_group", leaf}, {"oversubscription", number(over, "ratio", 1)}},
             {{"nodes_per_group", nodes}}});
      }
    }
    constexpr std::int64_t kLeaf = 32;  // nodes below one leaf group of a large fat tree
    if (nodes <= kLeaf) return Json::array({{{"nodes_per_group", nodes}}});
    const std::int64_t groups = (nodes + kLeaf - 1) / kLeaf;
    return Json::array({{{"nodes_per_group", kLeaf}}, {{"nodes_per_group", kLeaf * groups}}});
  }

  std::string attention() const {
    const std::string kernel = word(config_, "attention", "unknown");
    if (one_of(kernel, {"unfused", "flash1", "flash2", "flash3", "cudnn"})) return kernel;
    if (kernel == "flash4") return "cudnn";
    if (kernel == "xformers") return "flash1";
    if (kernel == "sdpa") return "flash2";
    return kernel == "ring-free" ? "flash2" : "unfused";
  }

  Json job() const {
    const Json& precision = at(config_, "precision");
    Json j;
    const bool images = word(model_, "kind") == "cnn";
    j["sequence"] = images ? 1 : needed(model_, "seq", "the sequence length");
    j["global_batch"] = needed(at(config_, "batch"), "global", "the global batch");
    Json& p = j["precision"];
    p["compute"] = word(precision, "compute", "bf16");
    p["params"] = word(precision, "params", "bf16");
    p["grads"] = word(precision, "grads", "fp32");
    if (known(at(precision, "recipe"))) p["recipe"] = word(precision, "recipe");
    if (word(precision, "master", "fp32") == "none" && p["params"] != "fp32") p["master"] = false;
    j["optimizer"] = word(config_, "optimizer", "adam");
    j["attention"] = attention();
    j["stack"] = stack_;
    // NeMo's default rank; its performance recipes adapt qkv alone.
    if (noted("lora")) {
      j["lora_rank"] = 32;
      j["lora_qkv_only"] = true;
    }
    if (noted("fused-cross-entropy")) j["fused_cross_entropy"] = true;
    if (word(at(config_, "execution"), "cuda_graphs") == "full") j["cuda_graph"] = true;
    return j;
  }

  std::string schedule(std::int64_t pp, std::int64_t vpp) const {
    const std::string stated = word(parallel_, "schedule", "none");
    if (pp == 1) return "none";
    if (stated == "torchgpipe") return "gpipe";
    if (stated == "pipedream-async") return "pipedream-stash";  // PipeDream itself, not 2BW
    return stated == "none" ? (vpp > 1 ? "interleaved" : "1f1b") : stated;
  }

  Json layout() const {
    const std::int64_t pp = count(parallel_, "pp", 1), vpp = count(parallel_, "vpp", 1);
    const Json& batch = at(config_, "batch");
    Json l;
    l["tp"] = tp_;
    // Megatron's experts need sequence parallelism beside tensor parallelism.
    l["sp"] = (flag(parallel_, "sp") || has_experts()) && tp_ > 1;
    l["pp"] = pp;
    if (pp > 1) l["vpp"] = vpp;
    l["dp"] = count(parallel_, "dp", 1);
    l["cp"] = count(parallel_, "cp", 1);
    l["ep"] = count(parallel_, "ep", 1);
    if (l["cp"] > 1 && noted("cp-all-to-all")) l["cp_comm"] = "all-to-all";
    l["zero"] = zero();
    if (known(at(parallel_, "hsdp_group"))) l["hsdp_group"] = count(parallel_, "hsdp_group", 0);
    l["schedule"] = schedule(pp, vpp);
    l["micro_batch"] =
        graph() ? needed(batch, "micro", "the micro-batch") : count(batch, "micro", 1);
    recompute(l);
    if (const Json layers = stage_layers(pp, vpp); !layers.is_null()) l["stage_layers"] = layers;
    const Json& overlap = at(config_, "overlap");
    if (known(at(overlap, "dp_reduce"))) l["overlap_grad_reduce"] = flag(overlap, "dp_reduce");
    if (known(at(overlap, "param_gather"))) {
      l["overlap_param_gather"] = flag(overlap, "param_gather");
    }
    if (known(at(overlap, "pp"))) l["overlap_p2p"] = flag(overlap, "pp");
    const std::string tp_overlap = word(overlap, "tp");
    if ((tp_overlap == "userbuffers" || tp_overlap == "async-tp") && l["sp"] == true) {
      l["tp_overlap"] = tp_overlap;
    }
    if (const Json devices = used_devices(); !devices.is_null()) l["devices"] = devices;
    return l;
  }

  // Chunks are PatrickStar's; fixed shares are DeepSpeed's, of the optimizer also Megatron's.
  Json offload() const {
    const Json& stated = at(config_, "offload");
    if (!known(stated)) return Json::array();
    if (word(stated, "mode") == "chunk-dynamic") {
      return Json::array({{{"offload", {{"strategy", "patrickstar"}}}}});
    }
    if (word(stated, "mode") == "l2l") {
      return Json::array({{{"offload", {{"strategy", "l2l"}}}}});
    }
    const double share = number(stated, "optimizer");
    const bool params = number(stated, "params") > 0, gradients = number(stated, "gradients") > 0;
    const bool activations = number(stated, "activations") > 0;
    if (share <= 0 && !params && !gradients && !activations) return Json::array();
    const std::string to = word(stated, "to", "cpu");
    Json o;
    const bool megatron = stack_is("megatron") && !stack_is("megatron-deepspeed");
    o["strategy"] = params                  ? "zero-infinity-cpu"
                    : megatron && share > 0 ? "megatron-hybrid"
                                            : "zero-offload";
    o["gradients"] = gradients ? "cpu" : "gpu";
    o["optimizer"] = share > 0 ? to : "gpu";
    if (share > 0) o["optimizer_share"] = share;
    if (activations) o["activations"] = "cpu";
    if (!overlaps_copies(stated)) o["overlap_copies"] = false;
    return Json::array({{{"offload", o}}});
  }

  // DeepSpeed's stages 1 and 2 copy gradients on the compute stream unless overlap_comm is set,
  // which it is not by default (deepspeed/runtime/zero/stage2.py of 2021, reduce_ipg_grads).
  bool overlaps_copies(const Json& stated) const {
    const bool deepspeed = stack_is("deepspeed") || stack_is("megatron-deepspeed");
    return flag(stated, "copy_overlap", !(deepspeed && zero() < 3));
  }

  // Megatron's distributed optimizer shards the states alone.
  std::int64_t zero() const {
    const std::int64_t stated = count(parallel_, "zero", 0);
    return stated == 0 && flag(config_, "distributed_optimizer") ? 1 : stated;
  }

  void recompute(Json& l) const {
    std::string mode = word(config_, "recompute", "none");
    if (mode == "all-but-last-microbatch") mode = "all-but-last";
    const bool by_operator = mode == "selective-op";
    l["recompute"] = mode == "modules" || by_operator ? "none" : mode;
    if (mode == "modules") recompute_modules(l);
    if (by_operator) l["recompute_modules"] = {"ops"};
    if (mode == "block") l["recompute_layers"] = at(config_, "recompute_layers");
  }

  void recompute_modules(Json& l) const {
    Json modules = Json::array();
    for (const Json& module : at(config_, "recompute_modules")) {
      const std::string name = module.is_string() ? module.get<std::string>() : "";
      if (name == "core_attn") l["recompute"] = "selective";
      if (name == "layernorm" || name == "rmsnorm") modules.push_back("norms");
      if (one_of(name, {"mla_up_proj", "moe_act", "mlp", "moe"})) modules.push_back(name);
    }
    if (l["recompute"] == "none") l["recompute_modules"] = modules;
  }

  // What Megatron Bridge's recipes do where a source does not print it: embedding and head count as
  // a layer each if that comes out even; else (the layouts written down for DeepSeek-V3 and Kimi)
  // all chunks are alike but the last, which has what is left with multi-token prediction and loss.
  Json recipe_stages(std::int64_t chunks) const {
    const std::int64_t model = count(model_, "layers", 0);
    std::vector<std::int64_t> list(static_cast<std::size_t>(chunks));
    if ((model + 2) % chunks == 0 && mtp_layers() == 0) {
      std::fill(list.begin(), list.end(), (model + 2) / chunks);
      --list.front();
      --list.back();
      return list;
    }
    const std::int64_t each = (model + chunks - 1) / chunks;
    std::fill(list.begin(), list.end(), each);
    list.back() = model - each * (chunks - 1);
    if (list.back() < 0) {
      list.front() += list.back();
      list.back() = 0;
    }
    if (list.front() < 0) return nullptr;
    list.back() += mtp_layers();
    return list;
  }

  // Layers by chunk; null: as even as possible.
  Json stage_layers(std::int64_t pp, std::int64_t vpp) const {
    const Json& stated = at(parallel_, "stage_layers");
    const std::int64_t chunks = pp * vpp;
    if (pp == 1) return nullptr;
    if (stated.is_array() && static_cast<std::int64_t>(stated.size()) == chunks) return stated;
    if (word(parallel_, "stage_rule") == "unknown" && has_recipe_stages()) {
      return recipe_stages(chunks);
    }
    const std::int64_t layers = count(model_, "layers", 0);
    if (word(parallel_, "stage_rule") != "embed-loss" || (layers + 2) % chunks != 0) return nullptr;
    // Embedding and head count as a layer each.
    Json list = std::vector<std::int64_t>(static_cast<std::size_t>(chunks), (layers + 2) / chunks);
    list.front() = list.front().get<std::int64_t>() - 1;
    list.back() = list.back().get<std::int64_t>() - 1;
    return list;
  }

  // GPUs of the ranks where nodes are not filled; null: rank r on GPU r.
  Json used_devices() const {
    const std::int64_t node_size = count(config_, "node_size", 1);
    const std::int64_t used = count(config_, "devices_per_node", node_size);
    if (used >= node_size) return nullptr;
    Json list = Json::array();
    for (std::int64_t r = 0; r < count(config_, "devices", 0); ++r) {
      list.push_back(r / used * node_size + r % used);
    }
    return list;
  }

  const std::string& name_;
  const Json& config_;
  const Json& model_;
  const Json& parallel_;
  std::string stack_;
  std::int64_t tp_;
  std::vector<std::string> notes_;
};

}  // namespace

std::variant<Json, Unsupported> row_scenario(const std::string& name, const Json& config) {
  try {
    return RowTranslation(name, config).scenario();
  } catch (const Refusal& refusal) {
    return Unsupported{refusal.reason};
  }
}

}  // namespace gputwin
