// gputwin collective: a table in the columns of nccl-tests.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "hwmodels/hardware_model.h"
#include "sim/app/collective_benchmark.h"
#include "sim/app/data_directory.h"
#include "sim/app/scenario.h"
#include "sim/cli/commands.h"
#include "sim/core/error.h"
#include "sim/core/spelling.h"
#include "sim/engine/simgrid_executor.h"

namespace gputwin::cli {
namespace {

struct Options {
  std::string kind, cluster, stack = "nccl-tests";
  std::int32_t ranks = 0;
  std::string sizes = "1M:1G";
  std::string algorithm = "auto", protocol = "auto", network;
  std::int32_t per_node = 0;
  bool json = false;
};

// NCCL_ALGO in NCCL's words. Over several nodes NVLS goes on as NVLSTree.
std::optional<Algorithm> algorithm_of(const std::string& word) {
  if (word == "auto") return std::nullopt;
  if (word == "nvls" || word == "nvlstree") return Algorithm::NvLink;
  return from_string<Algorithm>(word);
}

[[noreturn]] void bad_size(const std::string& text) {
  throw InputError("--sizes", "", text, "is no size", "for example 4K, 1M:1G or 256,64KiB");
}

// "1M", "64KiB", "256": binary prefixes as nccl-tests reads them.
Bytes size_of(const std::string& text) {
  double value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || !(value > 0) || value > 1e15) bad_size(text);
  const std::string unit(parsed.ptr, text.data() + text.size());
  for (const auto& [name, shift] : {std::pair{"", 0}, {"B", 0}, {"K", 10}, {"M", 20}, {"G", 30}}) {
    const std::string prefix = name;
    if (unit == prefix || (shift > 0 && (unit == prefix + "iB" || unit == prefix + "B"))) {
      const double bytes = value * static_cast<double>(std::int64_t{1} << shift);
      if (bytes > 1e15) bad_size(text);
      return Bytes(static_cast<std::int64_t>(bytes));
    }
  }
  bad_size(text);
}

// "a:b" doubles from a to b; "a,b,c" lists.
std::vector<Bytes> sizes_of(const std::string& text) {
  const std::size_t colon = text.find(':');
  std::vector<Bytes> sizes;
  if (colon != std::string::npos) {
    const Bytes last = size_of(text.substr(colon + 1));
    for (Bytes s = size_of(text.substr(0, colon)); s <= last; s = s * 2) sizes.push_back(s);
    if (sizes.empty()) bad_size(text);
    return sizes;
  }
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    sizes.push_back(size_of(text.substr(at, comma - at)));
    at = comma + 1;
  }
  return sizes;
}

// As nccl-tests: what a rank holds of the result counts, in elements of one rank's part.
const char* algorithm_word(const CollectiveMeasurement& row, bool nodes) {
  if (row.schedule.algorithm == Algorithm::NvLink) return nodes ? "nvlstree" : "nvls";
  return to_string(row.schedule.algorithm).data();
}

struct Table {
  std::vector<CollectiveMeasurement> rows;
  LinkRate link;
  bool nodes = false;  // several
};

void print_table(const Table& table, const Options& options) {
  fmt::print("# {} over {} ranks of {}, simulated on SimGrid; in place costs the same\n",
             options.kind, options.ranks, options.cluster);
  fmt::print(
      "# {:>12} {:>12} {:>6} {:>6} {:>5} {:>11} {:>8} {:>8} {:>11} {:>8} {:>8} {:>9} {:>8}\n",
      "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "in-pl. time", "algbw",
      "busbw", "algorithm", "protocol");
  fmt::print("# {:>12} {:>12} {:>6} {:>6} {:>5} {:>11} {:>8} {:>8} {:>11} {:>8} {:>8}\n", "(B)",
             "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "(us)", "(GB/s)", "(GB/s)");
  const bool reduces = options.kind == "all_reduce" || options.kind == "reduce_scatter";
  const bool parts = options.kind != "all_reduce" && options.kind != "broadcast";
  for (const CollectiveMeasurement& r : table.rows) {
    const std::int64_t count = r.size.value / 4 / (parts ? options.ranks : 1);
    const std::string times = fmt::format("{:>11.2f} {:>8.2f} {:>8.2f}", r.time.value * 1e6,
                                          r.algorithm_GBps, r.bus_GBps);
    fmt::print("  {:>12} {:>12} {:>6} {:>6} {:>5} {} {} {:>9} {:>8}\n", r.size.value, count,
               "float", reduces ? "sum" : "none", options.kind == "broadcast" ? 0 : -1, times,
               times, algorithm_word(r, table.nodes), to_string(r.schedule.protocol));
  }
  if (const CollectiveMeasurement* from = saturation(table.rows)) {
    const double most = table.rows.back().bus_GBps;
    fmt::print(
        "# saturated (90 %) from {} B on; {:.1f} GB/s at the largest size are {:.0f} % of "
        "{:.1f} GB/s, {}\n",
        from->size.value, most, 100 * most / table.link.GBps, table.link.GBps, table.link.what);
  }
  for (const CollectiveMeasurement& r : table.rows) {
    if (r.schedule.algorithm != Algorithm::NvLink) continue;
    fmt::print(
        "# NVLS: busbw is no rate of a wire when switches reduce; it may exceed the link's\n");
    break;
  }
}

void print_json(const Table& table) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const CollectiveMeasurement& r : table.rows) {
    rows.push_back({{"size_bytes", r.size.value},
                    {"algorithm", algorithm_word(r, table.nodes)},
                    {"protocol", to_string(r.schedule.protocol)},
                    {"time_us", r.time.value * 1e6},
                    {"low_us", r.time.value * 1e6 * r.schedule.low},
                    {"high_us", r.time.value * 1e6 * r.schedule.high},
                    {"algbw_GBps", r.algorithm_GBps},
                    {"busbw_GBps", r.bus_GBps},
                    {"link_share", r.bus_GBps / table.link.GBps},
                    {"flows", r.flows}});
  }
  fmt::print("{}\n", rows.dump(2));
}

// Curves that were measured on one network, by name.
CollectiveCurves network_of(const std::string& name) {
  const auto folder = data_directory() / "hwmodels" / "collectives" / "networks";
  const std::vector<std::string> known = list_json_names(folder);
  if (!std::binary_search(known.begin(), known.end(), name)) {
    throw InputError("--network", "", name, "was not measured",
                     "nearest: " + nearest_name(name, known));
  }
  return load_collective_curves(folder / (name + ".json"));
}

int measure(const Options& options) {
  const Topology topology(load_cluster(options.cluster, {data_directory() / "scenarios"}));
  Job job;
  job.stack = options.stack;
  Adjustments adjustments;
  adjustments.nccl.algorithm = algorithm_of(options.algorithm);
  if (options.protocol != "auto")
    adjustments.nccl.protocol = from_string<Protocol>(options.protocol);
  if (!options.network.empty()) adjustments.network = network_of(options.network);
  const HardwareModel costs(topology, job, data_directory() / "hwmodels", adjustments);
  for (const std::string& note : costs.notes()) fmt::print(stderr, "# note: {}\n", note);
  SimgridExecutor executor;
  const auto kind = from_string<OpKind>(options.kind).value();
  Table table;
  table.rows = measure_collective(kind, options.ranks, sizes_of(options.sizes), costs, topology,
                                  executor, options.per_node);
  table.link = link_rate(topology, options.ranks, options.per_node);
  const NodeType& node = topology.node_type(GpuId(0));
  const std::int32_t used = options.per_node > 0 ? options.per_node : node.gpus;
  table.nodes = options.ranks > std::max(used, options.per_node > 0 ? 0 : node.intra.domain_gpus);
  options.json ? print_json(table) : print_table(table, options);
  return kDone;
}

}  // namespace

Action add_collective(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "collective", "Times of one collective by size, as nccl-tests prints them");
  command->footer(
      "Example: gputwin collective all_reduce --cluster a100_128x8 --ranks 1024 --sizes 1M:1G");
  auto options = std::make_shared<Options>();
  command
      ->add_option("kind", options->kind,
                   "all_reduce, all_gather, reduce_scatter, all_to_all or broadcast")
      ->required()
      ->check(
          CLI::IsMember({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"}));
  command->add_option("--cluster", options->cluster, "Cluster by name (gputwin list clusters)")
      ->required();
  command->add_option("--ranks", options->ranks, "Ranks, one per GPU from the first")->required();
  command
      ->add_option("--sizes", options->sizes,
                   "First:last, doubling, or a list: 4K,1M (binary prefixes)")
      ->capture_default_str();
  command->add_option("--stack", options->stack, "Software stack whose in-run factors apply")
      ->capture_default_str();
  command->add_option("--ranks-per-node", options->per_node, "Ranks on each node (default: all)")
      ->check(CLI::PositiveNumber);
  command->add_option("--algorithm", options->algorithm, "Force what NCCL_ALGO would")
      ->check(CLI::IsMember({"auto", "ring", "tree", "nvls", "nvlstree", "direct"}))
      ->capture_default_str();
  command->add_option("--protocol", options->protocol, "Force what NCCL_PROTO would")
      ->check(CLI::IsMember({"auto", "ll", "ll128", "simple"}))
      ->capture_default_str();
  command->add_option("--network", options->network,
                      "Measured network whose curves apply (hwmodels/collectives/networks)");
  command->add_flag("--json", options->json, "Print JSON");
  return [options] { return measure(*options); };
}

}  // namespace gputwin::cli
