#include "sim/app/scenario.h"

#include <fmt/format.h>

#include "sim/app/graph_reader.h"
#include "sim/app/passes_reader.h"
#include "sim/app/scenario_document.h"
#include "sim/app/scenario_files.h"
#include "sim/app/scenario_reader.h"
#include "sim/app/scenario_rules.h"
#include "sim/app/scenario_schema.h"
#include "sim/app/suggestion.h"
#include "sim/core/spelling.h"

namespace gputwin {
namespace fs = std::filesystem;

namespace {

/// A minimal scenario around a model or a cluster, so that one set of rules checks all files.
std::string scenario_text(const std::string& model, const std::string& cluster) {
  Json j{{"model", model}, {"cluster", cluster}, {"job", {{"sequence", 1}, {"global_batch", 1}}}};
  if (model.empty()) {
    j["model"] = {{"layers", 1}, {"hidden", 1},          {"heads", 1},         {"ffn", 1},
                  {"vocab", 1},  {"activation", "relu"}, {"positions", "rope"}};
  }
  if (cluster.empty()) {
    j["cluster"] = Json::parse(R"({"groups": [{"count": 1, "type": {"device": "any", "gpus": 1,
        "pcie": {"bandwidth_GBps": 1}, "host": {"cores": 1, "memory_GiB": 1, "dram_GBps": 1}}}],
        "fabric": {"kind": "none"}})");
  }
  return j.dump();
}

Scenario scenario_of(const ScenarioDocument& document) {
  Scenario s;
  const Json& root = document.root();
  s.name = root.value("name", "unnamed");
  const Json& model_json = root.at("model");
  if (model_schema(model_json) == SchemaKind::Graph) {
    s.workload =
        read_graph(document, model_json, root.at("job").at("sequence").get<std::int64_t>());
  } else {
    Transformer model = read_transformer(model_json);
    check_model_rules(document, model);
    s.workload = std::move(model);
  }
  s.cluster = read_cluster(root.at("cluster"));
  check_cluster_rules(document, s.cluster);
  s.job = read_job(root.at("job"));
  s.allocator = read_allocator(root.at("job"));
  check_job_rules(document, s);
  s.layout = read_layout(root.value("layout", Json::object()));
  read_passes(document, root.value("passes", Json::array()), s);
  check_layout_rules(document, s);
  s.what_if = read_what_if(root.value("what_if", Json::object()));
  check_what_if_rules(document, s);
  s.cluster.nic_faults = s.what_if.nics;
  s.resolved = root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return s;
}

/// 174615822336 as "174.6 B", 124e6 as "124.4 M".
std::string parameter_text(std::int64_t count) {
  const auto n = static_cast<double>(count);
  if (n >= 1e12) return fmt::format("{:.2f} T", n / 1e12);
  if (n >= 1e9) return fmt::format("{:.1f} B", n / 1e9);
  return fmt::format("{:.1f} M", n / 1e6);
}

std::string model_facts(const std::string& name, const DataDirs& dirs) {
  const Workload workload = load_model(name, dirs);
  if (const auto* graph = std::get_if<LayerGraph>(&workload)) {
    return fmt::format("{:>8} parameters, {} layers in {} units, {:.3g} GFLOP forward a sample",
                       parameter_text(graph->parameters()), graph->layers.size(), graph->units(),
                       graph->forward_flops().value / 1e9);
  }
  const auto& m = std::get<Transformer>(workload);
  std::string heads = fmt::format("{} heads", m.heads);
  if (m.kv_heads != m.heads) heads += fmt::format(" ({} kv)", m.kv_heads);
  return fmt::format("{:>8} parameters, {} layers, hidden {}, {}, vocabulary {}",
                     parameter_text(m.parameters()), m.layers, m.hidden, heads, m.vocab);
}

std::string cluster_facts(const std::string& name, const DataDirs& dirs) {
  const Cluster c = load_cluster(name, dirs);
  std::string text;
  for (const NodeGroup& g : c.groups) {
    text += fmt::format("{}{} x {} {}, {}", text.empty() ? "" : " + ", g.count, g.type.gpus,
                        g.type.device, to_string(g.type.intra.kind));
    if (g.type.intra.per_gpu.value > 0)
      text += fmt::format(" {:g} GB/s", g.type.intra.per_gpu.value / 1e9);
    if (g.type.nics.per_node > 0) {
      text +=
          fmt::format(", {} x {:g} Gb/s", g.type.nics.per_node, g.type.nics.each.value * 8 / 1e9);
    }
  }
  if (c.fabric.kind == FabricKind::None) return text;
  return text + fmt::format(" {}, {} level{}{}", to_string(c.fabric.kind), c.fabric.levels.size(),
                            c.fabric.levels.size() == 1 ? "" : "s",
                            c.fabric.rail_optimized ? ", rail-optimised" : "");
}

std::string run_facts(const std::string& name, const DataDirs& dirs) {
  const Scenario s = load_scenario(find_data_file(dirs, "runs", name), {}, dirs);
  const Layout& l = s.layout;
  return fmt::format("{} GPUs, sequence {}, batch {}, tp {} pp {} dp {}, {}, recompute {}",
                     l.ranks(), s.job.sequence, s.job.global_batch, l.tp, l.pp, l.dp,
                     to_string(l.schedule), to_string(l.recompute));
}

std::vector<Listing> list_folder(const DataDirs& dirs, const std::string& folder,
                                 std::string (*facts)(const std::string&, const DataDirs&)) {
  std::vector<Listing> list;
  for (const std::string& name : data_names(dirs, folder))
    list.push_back({name, facts(name, dirs)});
  return list;
}

}  // namespace

Scenario parse_scenario(const std::string& text, const std::string& file,
                        const std::vector<std::string>& sets, const DataDirs& data_dirs) {
  return scenario_of(ScenarioDocument(text, file, sets, data_dirs));
}

ScenarioSource find_scenario(const fs::path& path, const DataDirs& data_dirs) {
  fs::path file = path;
  std::error_code failed;
  if (!fs::exists(file, failed)) {
    file = find_data_file(data_dirs, "runs", path.string());
    if (file.empty()) {
      const std::vector<std::string> names = data_names(data_dirs, "runs");
      throw InputError(path.string(), "", "", "is neither a file nor the name of a shipped run",
                       names.empty()
                           ? "name a scenario file"
                           : "nearest shipped run: " + nearest_word(path.stem().string(), names));
    }
  }
  DataDirs dirs;
  const fs::path above = fs::absolute(file, failed).parent_path().parent_path();
  if (!above.empty()) dirs.push_back(above.lexically_proximate(fs::current_path(failed)));
  dirs.insert(dirs.end(), data_dirs.begin(), data_dirs.end());
  return {read_text_file(file), file.string(), std::move(dirs)};
}

Scenario load_scenario(const fs::path& path, const std::vector<std::string>& sets,
                       const DataDirs& data_dirs) {
  const ScenarioSource source = find_scenario(path, data_dirs);
  return parse_scenario(source.text, source.file, sets, source.dirs);
}

std::vector<Listing> list_models(const DataDirs& dirs) {
  return list_folder(dirs, "models", model_facts);
}

std::vector<Listing> list_clusters(const DataDirs& dirs) {
  return list_folder(dirs, "clusters", cluster_facts);
}

std::vector<Listing> list_runs(const DataDirs& dirs) {
  return list_folder(dirs, "runs", run_facts);
}

Workload load_model(const std::string& name, const DataDirs& dirs) {
  return parse_scenario(scenario_text(name, ""), "model " + name, {}, dirs).workload;
}

Cluster load_cluster(const std::string& name, const DataDirs& dirs) {
  return parse_scenario(scenario_text("", name), "cluster " + name, {}, dirs).cluster;
}

}  // namespace gputwin
