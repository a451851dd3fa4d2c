#include "hwmodels/calibrate/formats.h"
#include "sim/core/error.h"

namespace gputwin {

namespace {

GemmShape plain_shape(const CsvTable& table, std::size_t row, DType dtype) {
  GemmShape shape{.m = table.integer(row, "m"),
                  .n = table.integer(row, "n"),
                  .k = table.integer(row, "k"),
                  .dtype = dtype,
                  .trans_b = true};
  for (const char* column : {"m", "n", "k"}) {
    if (table.integer(row, column) < 1) table.fail(row, column, "is no extent", "write 1 or more");
  }
  const std::int64_t inputs = shape.m * shape.k + shape.k * shape.n;
  shape.traffic = Bytes(inputs * bits(dtype) / 8 + shape.m * shape.n * 2);
  return shape;
}

// Linear layers of PyTorch under a CUDA graph, 2-byte outputs; times of 8- and 4-bit formats hold
// the quantisation of the activations.
void read_aiconfigurator(const CsvTable& table, std::size_t row, Sample& sample) {
  sample.library = "torch";
  sample.group = table.text(row, "dtype");
  sample.query = GemmQuery{plain_shape(table, row, table_dtype(table, row, "dtype"))};
}

}  // namespace

std::vector<TableFormat> gemm_formats() {
  return {{.name = "gemm_aiconfigurator",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"dtype", "m", "n", "k"},
           .other_columns = {},
           .read = read_aiconfigurator}};
}

}  // namespace gputwin
