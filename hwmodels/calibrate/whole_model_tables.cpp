#include "hwmodels/calibrate/formats.h"
#include "hwmodels/kernels/prompt_pass.h"
#include "hwmodels/kernels/whole_model.h"

namespace gputwin {

namespace {

// NeuSight's whole passes, PyTorch 2.1, fp32: the time of the forward pass, or of both.
void read_whole_model(const CsvTable& table, std::size_t row, Sample& sample) {
  WholeModelShape shape = whole_model(table.text(row, "model_name"));
  const std::string& mode = table.text(row, "mode");
  if (mode != "inf" && mode != "train") table.fail(row, "mode", "is no mode", "inf or train");
  shape.training = mode == "train";
  shape.batch = table.extent(row, "batch");
  shape.sequence = table.extent(row, "seqlen");
  const std::string& option = table.text(row, "option");
  shape.fused = option == "fusion";
  // Several devices need a cluster, which this table does not describe.
  if (!option.empty() && !shape.fused) shape.layers = 0;
  sample.group = mode;
  sample.query = shape;
}

// Prompts of Splitwise's table, vLLM: the time until the first token.
void read_prompt(const CsvTable& table, std::size_t row, Sample& sample) {
  PromptPassShape shape = served_model(table.text(row, "model"));
  shape.tensor_parallel = static_cast<std::int32_t>(table.extent(row, "tensor_parallel"));
  shape.batch = table.extent(row, "batch_size");
  shape.prompt = table.extent(row, "prompt_size");
  sample.group = table.text(row, "model");
  sample.library = "vllm";
  sample.query = shape;
}

}  // namespace

std::vector<TableFormat> whole_model_formats() {
  return {{.name = "e2e_neusight",
           .device_column = "device",
           .time_column = "label_e2e_ms",
           .seconds_per_unit = 1e-3,
           .shape_columns = {"model_name", "seqlen", "batch", "mode"},
           .other_columns = {"option"},
           .read = read_whole_model},
          {.name = "e2e_infer_splitwise",
           .device_column = "hardware",
           .time_column = "prompt_time",
           .seconds_per_unit = 1e-3,
           .shape_columns = {"model", "tensor_parallel", "prompt_size", "batch_size"},
           .other_columns = {},
           .read = read_prompt}};
}

}  // namespace gputwin
