#include "hwmodels/calibrate/formats.h"
#include "hwmodels/kernels/exchange.h"

namespace gputwin {

namespace {

// All-reduce kernels of serving stacks; "backend" says whether a CUDA graph launched them.
void read_all_reduce(const CsvTable& table, std::size_t row, Sample& sample) {
  AllReduceShape shape;
  shape.ranks = static_cast<std::int32_t>(table.extent(row, "nranks", 2));
  shape.bytes = static_cast<double>(table.extent(row, "size_bytes"));
  shape.eager = table.text(row, "backend").ends_with("_eager");
  shape.framework = exchange_framework(table.text(row, "framework"));
  shape.version = version_number(table.text(row, "version"));
  sample.library = table.text(row, "framework") + (shape.eager ? " eager" : " graph");
  sample.group = shape.eager ? "eager" : "CUDA graph";
  sample.query = shape;
}

// DeepEP's kernels.
void read_experts(const CsvTable& table, std::size_t row, Sample& sample) {
  ExpertExchangeShape shape;
  const std::string& mode = table.text(row, "mode");
  if (mode != "ll" && mode != "normal") table.fail(row, "mode", "is no mode", "ll or normal");
  const std::string& phase = table.text(row, "phase");
  if (phase != "dispatch" && phase != "combine") {
    table.fail(row, "phase", "is no phase", "dispatch or combine");
  }
  shape.low_latency = mode == "ll";
  shape.combine = phase == "combine";
  shape.tokens = table.extent(row, "tokens");
  shape.hidden = table.extent(row, "hidden");
  shape.top_k = table.extent(row, "topk");
  shape.experts = table.extent(row, "experts");
  shape.nodes = static_cast<std::int32_t>(table.extent(row, "nnodes"));
  const bool stated = !table.text(row, "sms").empty();
  shape.sms = stated ? static_cast<std::int32_t>(table.extent(row, "sms")) : 0;
  shape.version = version_number(table.text(row, "version"));
  sample.library = "deepep";
  sample.group = mode + " " + phase + (shape.nodes > 1 ? ", several nodes" : ", one node");
  sample.query = shape;
}

}  // namespace

std::vector<TableFormat> exchange_formats() {
  return {
      {.name = "custom_allreduce_aiconfigurator",
       .device_column = "gpu",
       .time_column = "time_us",
       .seconds_per_unit = 1e-6,
       .shape_columns = {"size_bytes", "nranks"},
       .other_columns = {"framework", "version", "backend"},
       .read = read_all_reduce},
      {.name = "deepep_aiconfigurator",
       .device_column = "gpu",
       .time_column = "time_us",
       .seconds_per_unit = 1e-6,
       .shape_columns = {"mode", "phase", "nnodes", "hidden", "tokens", "topk", "experts", "sms"},
       .other_columns = {"version"},
       .read = read_experts}};
}

}  // namespace gputwin
