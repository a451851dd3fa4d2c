#include "hwmodels/calibrate/formats.h"
#include "hwmodels/collectives/collective_row.h"

namespace gputwin {

namespace {

std::int32_t count(const CsvTable& table, std::size_t row, const char* column, double absent) {
  const double value = table.number_or(row, column, absent);
  if (value < 1 || value > 1e6 || value != static_cast<std::int32_t>(value)) {
    table.fail(row, column, "is no number of ranks or nodes", "write 1 or more");
  }
  return static_cast<std::int32_t>(value);
}

void finish(const CsvTable& table, std::size_t row, CollectiveRow query, Sample& sample) {
  query.collective = table.text(row, "collective");
  query.ranks = count(table, row, "nranks", 0);
  query.bytes = table.number(row, "size_bytes");
  if (query.bytes < 0) table.fail(row, "size_bytes", "is no size", "write 0 or more");
  sample.group = query.collective + (query.nodes > 1 ? ", several nodes" : ", one node");
  sample.library = "nccl " + query.version;
  sample.query = std::move(query);
}

// nccl-tests in one node, by device.
void read_aiconfigurator(const CsvTable& table, std::size_t row, Sample& sample) {
  CollectiveRow query;
  query.system = "aic-" + table.text(row, "gpu");
  query.version = table.text(row, "nccl_folder");
  query.nodes = count(table, row, "nnodes", 1);
  finish(table, row, std::move(query), sample);
}

// nccl-tests and rccl-tests of whole systems, as printed.
void read_logs(const CsvTable& table, std::size_t row, Sample& sample) {
  CollectiveRow query;
  query.system = table.text(row, "system");
  query.version = table.text(row, "nccl");
  query.env = table.text(row, "env");
  query.nodes = count(table, row, "nnodes", 1);
  finish(table, row, std::move(query), sample);
}

// Kernel times of a profiler.
void read_vidur(const CsvTable& table, std::size_t row, Sample& sample) {
  CollectiveRow query;
  query.system = "vidur-" + table.text(row, "node");
  const std::int32_t per_node = count(table, row, "ranks_per_node", 0);
  query.nodes = std::max(1, count(table, row, "nranks", 0) / per_node);
  finish(table, row, std::move(query), sample);
}

// Blink-GPU on the nodes of Snellius: four GPUs a node, MPI through the host or CUDA-aware, NCCL,
// or copies over NVLink. A ping-pong is one way; several run between all pairs of two nodes.
void read_snellius(const CsvTable& table, std::size_t row, Sample& sample) {
  constexpr std::int32_t kPerNode = 4;
  const std::string& pattern = table.text(row, "pattern");
  CollectiveRow query;
  query.system = table.text(row, "system") + "-" + table.text(row, "gpu");
  query.env = table.text(row, "impl");
  query.nodes = table.text(row, "placement") == "multinode" ? 2 : 1;
  query.ranks = kPerNode * query.nodes;
  query.bytes = static_cast<double>(table.extent(row, "size_bytes"));
  if (pattern.ends_with("pingpong")) {
    query.ranks = 2;
    query.collective = "sendrecv";
    if (pattern.starts_with("multi")) query.env += " multi";
  } else {
    query.collective = pattern == "allreduce" ? "all_reduce" : pattern;
  }
  sample.group = pattern + ", " + table.text(row, "impl");
  sample.library = query.env;
  sample.query = std::move(query);
}

// What a command of OSU's benchmarks says about the run, in the words that change times.
std::string osu_setting(const std::string& context) {
  std::string setting;
  for (const char* word : {"no-cxi", "wo-cxi", "neither", "gdrcopy only", "GPUDirectRDMA only",
                           "gdrcopy", "EESSI", "PrgEnv-cray"}) {
    if (context.find(word) == std::string::npos) continue;
    setting = word;
    break;
  }
  return setting == "wo-cxi" ? "no-cxi" : setting;
}

// OSU micro-benchmarks between two ranks (or all to all): microseconds, or MB/s turned into the
// time of one message.
void read_osu(const CsvTable& table, std::size_t row, Sample& sample) {
  constexpr double kMega = 1e6;
  const std::string &test = table.text(row, "test"), &context = table.text(row, "context");
  CollectiveRow query;
  query.system = sample.device.empty() ? table.text(row, "system") : sample.device;
  query.nodes = context.find("-N1") != std::string::npos ? 1 : 2;
  query.ranks = 2;
  query.bytes = static_cast<double>(table.extent(row, "size_bytes"));
  query.collective = "sendrecv";
  if (test.starts_with("All-to-All")) {
    constexpr std::int32_t kPerNode = 4;
    query.ranks = kPerNode * query.nodes;
    query.collective = "alltoall";
  }
  const bool bandwidth = table.text(row, "unit") == "MB/s";
  query.env = std::string(table.text(row, "cuda") == "1" ? "device" : "host");
  query.env += test.starts_with("Bi-") ? " both ways" : bandwidth ? " stream" : " single";
  if (const std::string setting = osu_setting(context); !setting.empty()) {
    query.env += " " + setting;
  }
  if (bandwidth && sample.time.value > 0) {
    sample.time = Seconds(query.bytes / (table.number(row, "value") * kMega));
  }
  sample.group = test + (table.text(row, "cuda") == "1" ? ", device" : ", host");
  sample.library = "osu";
  sample.query = std::move(query);
}

}  // namespace

std::vector<TableFormat> collective_formats() {
  return {{.name = "nccl_aiconfigurator",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"collective", "size_bytes"},
           .other_columns = {"nranks", "nccl_folder"},
           .read = read_aiconfigurator},
          {.name = "nccl_tests_logs",
           .device_column = "system",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"collective", "size_bytes"},
           .other_columns = {"nranks"},
           .read = read_logs},
          {.name = "coll_vidur",
           .device_column = "node",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"collective", "size_bytes"},
           .other_columns = {"nranks", "ranks_per_node"},
           .read = read_vidur},
          {.name = "p2p_snellius_blink",
           .device_column = "gpu",
           .time_column = "time_us_median",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"pattern", "impl", "placement", "size_bytes"},
           .other_columns = {"system"},
           .read = read_snellius},
          {.name = "osu_p2p",
           .device_column = "system",
           .time_column = "value",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"test", "cuda", "context", "size_bytes"},
           .other_columns = {"unit"},
           .read = read_osu}};
}

}  // namespace gputwin
