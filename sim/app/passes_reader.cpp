#include "sim/app/passes_reader.h"

#include <set>
#include <string>

#include "sim/core/codecs.h"

namespace gputwin {
namespace {

ChunkOverlap read_overlap(const Json& json) {
  const std::string variant = json.value("variant", "search");
  const bool halves = variant == "merak" || variant == "domino";
  return {.max_chunks = json.value("max_chunks", halves ? 2 : 4), .equal = variant != "search"};
}

Codec read_codec(const Json& compress, const char* key) {
  if (!compress.contains(key)) return {};
  const Json& json = compress[key];
  Codec codec = find_codec(json.at("codec").get<std::string>())->usual;
  codec.keep = json.value("keep", codec.keep);
  codec.bits = json.value("bits", codec.bits);
  return codec;
}

Compression read_compression(const Json& json) {
  return {.forward = read_codec(json, "activations"),
          .backward = read_codec(json, "gradients"),
          .sum = json.value("sum", "two-step") == "gather" ? CompressedSum::Gather
                                                           : CompressedSum::TwoStep,
          .search = json.value("search", false),
          .max_error = json.value("max_error", 0.1)};
}

}  // namespace

void read_passes(const ScenarioDocument& document, const Json& list, Scenario& scenario) {
  Layout& layout = scenario.layout;
  const bool graph = !std::holds_alternative<Transformer>(scenario.workload);
  std::set<std::string> seen;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& pass = list[i];
    for (const auto& [name, options] : pass.items()) {
      const std::string at = "/passes/" + std::to_string(i) + "/" + name;
      if (!seen.insert(name).second) throw document.error(at, "stands twice", "remove one");
      if (graph && name != "offload") {
        throw document.error(at, "does not fit: layer graphs have no tensor-parallel collectives",
                             "remove the entry");
      }
    }
    if (pass.contains("overlap")) layout.chunk_overlap = read_overlap(pass["overlap"]);
    if (pass.contains("compress")) layout.compression = read_compression(pass["compress"]);
  }
}

}  // namespace gputwin
