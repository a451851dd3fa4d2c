#include "hwmodels/calibrate/formats.h"
#include "hwmodels/kernels/pointwise.h"

namespace gputwin {

namespace {

void finish(const CsvTable& table, std::size_t row, const char* rows, const char* columns,
            PointwiseShape shape, Sample& sample) {
  shape.rows = table.extent(row, rows);
  shape.columns = table.extent(row, columns);
  shape.bytes *= static_cast<double>(shape.rows) * static_cast<double>(shape.columns);
  sample.query = shape;
}

int operation(const CsvTable& table, std::size_t row, const char* column, const std::string& name) {
  const int number = pointwise_operation(name);
  if (number < 0) table.fail(row, column, "is no known kernel", "for example add, gelu, softmax");
  return number;
}

// PyTorch 2.1, fp32. Two-input kernels move three arrays, the others two.
void read_neusight(const CsvTable& table, std::size_t row, Sample& sample) {
  const std::string& op = table.text(row, "op");
  const bool two_inputs = op == "add" || op == "mul" || op == "div" || op == "pow";
  const PointwiseShape shape{.bytes = two_inputs ? 12.0 : 8.0,
                             .kind = LibraryKernel::Elementwise,
                             .operation = operation(table, row, "op", op),
                             .library = pointwise_library("torch-2.1"),
                             .bits = 32};
  sample.library = "torch-2.1";
  sample.group = op;
  finish(table, row, "rows", "cols", shape, sample);
}

// Kernels of vLLM and Sarathi, fp16, timed by the profiler and rounded to 1 us.
void read_vidur(const CsvTable& table, std::size_t row, Sample& sample) {
  const std::string& op = table.text(row, "op");
  const PointwiseShape shape{.bytes = op == "mlp_act" ? 3.0
                                      : op == "add"   ? 6.0
                                                      : 4.0,
                             .kind = LibraryKernel::Serving,
                             .operation = operation(table, row, "op", op),
                             .library = pointwise_library("sarathi"),
                             .bits = 16};
  sample.library = "sarathi";
  sample.group = op;
  finish(table, row, "tokens", "width", shape, sample);
}

// Two bytes in, one out.
void read_quantize(const CsvTable& table, std::size_t row, Sample& sample) {
  const PointwiseShape shape{.bytes = 3,
                             .kind = LibraryKernel::Quantize,
                             .operation = pointwise_operation("quantize"),
                             .library = pointwise_library(table.text(row, "framework")),
                             .bits = 16};
  sample.library = table.text(row, "framework");
  sample.group = sample.library;
  finish(table, row, "m", "k", shape, sample);
}

void read_norm(const CsvTable& table, std::size_t row, Sample& sample) {
  const std::string& phase = table.text(row, "phase");
  const std::string op = table.text(row, "norm") + " " + phase;
  const PointwiseShape shape{.bytes = phase == "fwd" ? 4.0 : 6.0,
                             .kind = LibraryKernel::Norm,
                             .operation = operation(table, row, "norm", op),
                             .library = pointwise_library(table.text(row, "impl")),
                             .bits = 16};
  sample.library = table.text(row, "impl");
  sample.group = phase;
  finish(table, row, "rows", "cols", shape, sample);
}

}  // namespace

std::vector<TableFormat> pointwise_formats() {
  return {{.name = "membound_fp32_neusight",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"op", "rows", "cols"},
           .other_columns = {},
           .read = read_neusight},
          {.name = "membound_vidur",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"op", "tokens", "width"},
           .other_columns = {"tp", "gated"},
           .read = read_vidur},
          {.name = "membound_quant_aiconfigurator",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"m", "k"},
           .other_columns = {"framework", "quant"},
           .read = read_quantize},
          {.name = "norms_cudnn",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"norm", "rows", "cols", "phase"},
           .other_columns = {"impl"},
           .read = read_norm}};
}

}  // namespace gputwin
