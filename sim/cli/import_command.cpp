// gputwin import: hardware facts from files of other programs.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "hwmodels/import/import.h"
#include "sim/app/data_directory.h"
#include "sim/app/scenario.h"
#include "sim/app/scenario_files.h"
#include "sim/cli/commands.h"
#include "sim/core/error.h"
#include "sim/trace/atomic_file.h"

namespace gputwin::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kLargest = 64u << 20;  // bytes; real files are below 1 MiB

struct Options {
  std::string kind, file, out, device, nodes_of = "a100_128x8", system, collective;
  std::int32_t nodes = 0, ranks = 0;
  bool json = false;
};

std::string read_text(const fs::path& path) {
  if (!fs::is_regular_file(path)) {
    throw InputError(path.string(), "", "", "is no file", "name a file that exists");
  }
  if (fs::file_size(path) > kLargest) {
    throw InputError(path.string(), "", "", "is larger than 64 MiB", "give one log or topology");
  }
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (in.bad()) throw InputError(path.string(), "", "", "cannot be read", "check its permissions");
  return text;
}

// The name a cluster gets: that of the file it is written to, else of the one it came from.
std::string cluster_name(const Options& o) {
  return fs::path(o.out.empty() ? o.file : o.out).stem().string();
}

Imported import_node(const Options& o, NodeFacts facts) {
  const fs::path data = data_directory() / "hwmodels";
  std::string device = o.device;
  if (device.empty()) {
    device = implied_device(facts, load_pci_ids(data / "import" / "pci_ids.json"), facts.notes);
  }
  const std::vector<std::string> known = list_devices(data / "devices");
  if (device.empty()) {
    throw InputError(o.file, "", "", "does not name its GPUs",
                     "give --device, one of gputwin list devices");
  }
  if (!std::binary_search(known.begin(), known.end(), device)) {
    throw InputError("--device", "", device, "is not a known device",
                     "nearest: " + nearest_name(device, known));
  }
  const Device gpu = load_device(data / "devices" / (device + ".json"));
  return cluster_of_nodes(std::move(facts), gpu, nvlink_rate(gpu, data / "links" / "nvlink.json"),
                          std::max(1, o.nodes), cluster_name(o));
}

// Refuses a cluster that `run` and `collective` would refuse.
void check_cluster(const std::string& text, const std::string& file) {
  nlohmann::json scenario = nlohmann::json::parse(
      R"({"model": {"layers": 1, "hidden": 1, "heads": 1, "ffn": 1, "vocab": 1,
          "activation": "relu", "positions": "rope"}, "job": {"sequence": 1, "global_batch": 1}})");
  scenario["cluster"] = nlohmann::json::parse(text);
  parse_scenario(scenario.dump(), "cluster imported from " + file, {},
                 {data_directory() / "scenarios"});
}

Imported import_file(const Options& o) {
  const std::string text = read_text(o.file);
  if (o.kind == "nccl-tests") {
    const std::string system = o.system.empty() ? fs::path(o.file).stem().string() : o.system;
    return table_of_nccl_tests(o.file, text, {o.device, system, o.collective, o.ranks, o.nodes});
  }
  Imported out;
  if (o.kind == "slurm") {
    const DataDirs dirs{data_directory() / "scenarios"};
    load_cluster(o.nodes_of, dirs);  // names what is wrong with it
    out = cluster_of_slurm(o.file, text, read_text(find_data_file(dirs, "clusters", o.nodes_of)),
                           cluster_name(o));
  } else {
    out = import_node(o, o.kind == "nccl-xml" ? parse_nccl_topology(o.file, text)
                                              : parse_nvidia_smi_topo(o.file, text));
  }
  check_cluster(out.text, o.file);
  return out;
}

int import_and_write(const Options& o) {
  const Imported made = import_file(o);
  if (!o.out.empty()) write_file(o.out, made.text);
  if (o.json) {
    nlohmann::ordered_json report{{"kind", o.kind}, {"file", o.file}, {"notes", made.notes}};
    if (!o.out.empty()) {
      report["out"] = o.out;
    } else if (o.kind == "nccl-tests") {
      report["csv"] = made.text;
    } else {
      report["cluster"] = nlohmann::ordered_json::parse(made.text);
    }
    fmt::print("{}\n", report.dump(2));
    return kDone;
  }
  for (const std::string& note : made.notes) fmt::print(stderr, "# {}\n", note);
  if (o.out.empty()) {
    fmt::print("{}", made.text);
  } else {
    fmt::print("wrote {}, {} notes\n", o.out, made.notes.size());
  }
  return kDone;
}

}  // namespace

Action add_import(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("import", "Hardware facts from files of other programs, as ours");
  command->footer(
      "Example: gputwin import nvidia-smi-topo topo.txt --device a100-sxm-80gb --out mine.json\n"
      "nvidia-smi-topo, nccl-xml and slurm give a cluster file, nccl-tests a table (CSV) for\n"
      "validate ops and calibrate. Notes on stderr say what is assumed or not represented.\n"
      "Exit codes: 0 done, 2 bad input (line and reason).");
  auto o = std::make_shared<Options>();
  command->add_option("kind", o->kind, "nvidia-smi-topo, nccl-xml, nccl-tests or slurm")
      ->required()
      ->check(CLI::IsMember({"nvidia-smi-topo", "nccl-xml", "nccl-tests", "slurm"}));
  command->add_option("file", o->file, "File to read")->required();
  command->add_option("--out", o->out, "File to write; else the result is printed");
  command->add_option("--device", o->device, "Device of the GPUs, where the file does not name it");
  command
      ->add_option("--nodes", o->nodes,
                   "Nodes of the cluster (default 1), or those a log was measured on")
      ->check(CLI::Range(1, 1000000));
  command->add_option("--nodes-of", o->nodes_of, "slurm: cluster whose nodes and rates to take")
      ->capture_default_str();
  command->add_option("--system", o->system, "nccl-tests: name of the system (default: file name)");
  command->add_option("--collective", o->collective, "nccl-tests: where the log does not name it");
  command->add_option("--ranks", o->ranks, "nccl-tests: where the log does not tell")
      ->check(CLI::Range(1, 10000000));
  command->add_flag("--json", o->json, "Print JSON with the notes");
  return [o] { return import_and_write(*o); };
}

}  // namespace gputwin::cli
