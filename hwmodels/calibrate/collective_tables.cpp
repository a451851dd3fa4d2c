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
           .read = read_vidur}};
}

}  // namespace gputwin
