#include "sim/app/passes_reader.h"

#include <set>
#include <string>

#include "sim/core/check.h"
#include "sim/core/codecs.h"
#include "strategies/offload/strategies.h"

namespace gputwin {
namespace {

ChunkOverlap read_overlap(const Json& json) {
  const std::string variant = json.value("variant", "search");
  const bool halves = variant == "merak" || variant == "domino";
  const std::string split = json.value("split", "samples");
  return {.max_chunks = json.value("max_chunks", halves ? 2 : 4),
          .named = true,
          .equal = variant != "search",
          .split = split == "sequence" ? ChunkSplit::Sequence
                   : split == "auto"   ? ChunkSplit::Auto
                                       : ChunkSplit::Samples};
}

Codec read_codec(const Json& compress, const char* key) {
  if (!compress.contains(key)) return {};
  const Json& json = compress[key];
  Codec codec = find_codec(json.at("codec").get<std::string>())->usual;
  codec.keep = json.value("keep", codec.keep);
  codec.bits = json.value("bits", codec.bits);
  codec.rank = json.value("rank", codec.rank);
  return codec;
}

Compression read_compression(const Json& json) {
  const Json reduced = json.value("dp_gradients", Json::object());
  return {.forward = read_codec(json, "activations"),
          .backward = read_codec(json, "gradients"),
          .sum = json.value("sum", "two-step") == "gather" ? CompressedSum::Gather
                                                           : CompressedSum::TwoStep,
          .reduced = read_codec(json, "dp_gradients"),
          .feedback = reduced.value("error_feedback", false),
          .sent = read_codec(json, "pp_activations"),
          .sent_back = read_codec(json, "pp_gradients"),
          .search = json.value("search", false),
          .max_error = json.value("max_error", 0.1)};
}

OffloadPlace read_place(const Json& offload, const char* key, OffloadPlace otherwise) {
  const std::string word = offload.value(key, "");
  if (word.empty()) return otherwise;
  return word == "gpu"    ? OffloadPlace::Gpu
         : word == "nvme" ? OffloadPlace::Nvme
                          : OffloadPlace::Cpu;
}

OffloadSpec read_offload(const Json& json) {
  const auto named = find_offload_strategy(json.value("strategy", "greedy"));
  GPUTWIN_CHECK(named.has_value(), "the schema knows the table's strategies");
  OffloadSpec spec = *named;
  if (json.contains("params")) spec.params_auto = json["params"] == "auto";
  spec.params = read_place(json, "params", spec.params);
  spec.gradients = read_place(json, "gradients", spec.gradients);
  spec.optimizer = read_place(json, "optimizer", spec.optimizer);
  spec.activations = read_place(json, "activations", spec.activations);
  spec.overlap_copies = json.value("overlap_copies", spec.overlap_copies);
  spec.optimizer_share = json.value("optimizer_share", spec.optimizer_share);
  if (json.contains("policy")) {
    spec.policy = json["policy"] == "greedy" ? OffloadPolicy::Greedy : OffloadPolicy::OnDemand;
  }
  spec.delayed_update = json.value("delayed_update", spec.delayed_update);
  if (json.contains("cast")) {
    const std::string cast = json["cast"].get<std::string>();
    spec.cast = cast == "auto"  ? OffloadCast::Cheaper
                : cast == "gpu" ? OffloadCast::Gpu
                                : OffloadCast::Host;
  }
  spec.window = json.value("window", spec.window);
  spec.slots = json.value("slots", spec.slots);
  spec.bucket_elements = json.value("bucket_elements", spec.bucket_elements);
  spec.reserve = json.value("reserve", spec.reserve);
  spec.enabled = spec.params != OffloadPlace::Gpu || spec.gradients != OffloadPlace::Gpu ||
                 spec.optimizer != OffloadPlace::Gpu || spec.activations != OffloadPlace::Gpu;
  return spec;
}

/// Of layer graphs gradients alone are coded.
void check_codecs_of_graphs(const ScenarioDocument& document, const Json& options,
                            const std::string& at) {
  const auto refuse = [&](const char* key, const char* why) {
    if (!options.contains(key) || options[key] == false) return;
    throw document.error(at + "/" + key, why, "remove the key; dp_gradients is coded");
  };
  for (const char* key : {"activations", "gradients"}) {
    refuse(key, "does not fit: layer graphs have no tensor-parallel collectives");
  }
  for (const char* key : {"pp_activations", "pp_gradients"}) {
    refuse(key, "is not built for layer graphs: their messages are sent whole");
  }
  refuse("search", "is not built for layer graphs: name the codec of dp_gradients");
}

bool reads(const Codec& codec, const std::string& key) {
  const bool sparse = codec.kind == CodecKind::TopkPwq || codec.kind == CodecKind::Topk;
  const bool pieces = codec.kind == CodecKind::TopkPwq || codec.kind == CodecKind::Pwq;
  return key == "keep" ? sparse : key == "bits" ? pieces : codec.kind == CodecKind::LowRank;
}

// A setting of another codec would be dropped, or change the payload of this one.
void check_codecs(const ScenarioDocument& document, const std::string& at, const Json& compress) {
  for (const auto& [tensor, json] : compress.items()) {
    if (!json.is_object()) continue;
    const std::string name = json.at("codec").get<std::string>();
    const Codec codec = find_codec(name)->usual;
    for (const char* key : {"keep", "bits", "rank"}) {
      if (!json.contains(key) || reads(codec, key)) continue;
      throw document.error(at + "/" + tensor + "/" + key, "is no setting of codec " + name,
                           "remove it, or take a codec that reads it (gputwin list codecs)");
    }
  }
}

// The one value below 0 stands for "as little as memory asks for".
void check_share(const ScenarioDocument& document, const std::string& at, double share) {
  if (share >= 0 || share == -1) return;
  throw document.error(at + "/optimizer_share", "is no share of the states",
                       "take 0 to 1, or -1 for as little as memory asks for");
}

}  // namespace

void read_passes(const ScenarioDocument& document, const Json& list, Scenario& scenario) {
  Layout& layout = scenario.layout;
  const bool graph = !std::holds_alternative<Transformer>(scenario.workload);
  std::set<std::string> seen;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& pass = list[i];
    const std::string entry = "/passes/" + std::to_string(i) + "/";
    for (const auto& [name, options] : pass.items()) {
      const std::string at = entry + name;
      if (!seen.insert(name).second) throw document.error(at, "stands twice", "remove one");
      if (graph && name == "overlap") {
        throw document.error(at, "does not fit: layer graphs have no tensor-parallel collectives",
                             "remove the entry");
      }
      if (graph && name == "compress") check_codecs_of_graphs(document, options, at);
    }
    if (pass.contains("overlap")) layout.chunk_overlap = read_overlap(pass["overlap"]);
    if (pass.contains("compress")) {
      check_codecs(document, entry + "compress", pass["compress"]);
      layout.compression = read_compression(pass["compress"]);
    }
    if (pass.contains("offload")) {
      layout.offload = read_offload(pass["offload"]);
      check_share(document, entry + "offload", layout.offload.optimizer_share);
    }
  }
}

}  // namespace gputwin
