// gputwin collective: a table in the columns of nccl-tests.
#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

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
  std::string kind, cluster, stack = "megatron-core";
  std::int32_t ranks = 0;
  std::string sizes = "1M:1G";
  bool json = false;
};

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

void print_table(const std::vector<CollectiveMeasurement>& rows, const Options& options) {
  fmt::print("# {} over {} ranks of {}, simulated on SimGrid\n", options.kind, options.ranks,
             options.cluster);
  fmt::print("# {:>12} {:>12} {:>6} {:>6} {:>9} {:>8} {:>11} {:>9} {:>9}\n", "size", "count",
             "type", "redop", "algorithm", "protocol", "time", "algbw", "busbw");
  fmt::print("# {:>12} {:>12} {:>6} {:>6} {:>9} {:>8} {:>11} {:>9} {:>9}\n", "(B)", "(elements)",
             "", "", "", "", "(us)", "(GB/s)", "(GB/s)");
  const bool reduces = options.kind == "all_reduce" || options.kind == "reduce_scatter";
  for (const CollectiveMeasurement& r : rows) {
    fmt::print("  {:>12} {:>12} {:>6} {:>6} {:>9} {:>8} {:>11.2f} {:>9.2f} {:>9.2f}\n",
               r.size.value, r.size.value / 4, "float", reduces ? "sum" : "none",
               to_string(r.schedule.algorithm), to_string(r.schedule.protocol), r.time.value * 1e6,
               r.algorithm_GBps, r.bus_GBps);
  }
}

void print_json(const std::vector<CollectiveMeasurement>& rows) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const CollectiveMeasurement& r : rows) {
    out.push_back({{"size_bytes", r.size.value},
                   {"algorithm", to_string(r.schedule.algorithm)},
                   {"protocol", to_string(r.schedule.protocol)},
                   {"time_us", r.time.value * 1e6},
                   {"algbw_GBps", r.algorithm_GBps},
                   {"busbw_GBps", r.bus_GBps},
                   {"flows", r.flows}});
  }
  fmt::print("{}\n", out.dump(2));
}

int measure(const Options& options) {
  const Topology topology(load_cluster(options.cluster, {data_directory() / "scenarios"}));
  Job job;
  job.stack = options.stack;
  const HardwareModel costs(topology, job, data_directory() / "hwmodels");
  for (const std::string& note : costs.notes()) fmt::print(stderr, "# note: {}\n", note);
  SimgridExecutor executor;
  const auto kind = from_string<OpKind>(options.kind).value();
  const auto rows =
      measure_collective(kind, options.ranks, sizes_of(options.sizes), costs, topology, executor);
  options.json ? print_json(rows) : print_table(rows, options);
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
  command->add_flag("--json", options->json, "Print JSON");
  return [options] { return measure(*options); };
}

}  // namespace gputwin::cli
