#include "hwmodels/calibrate/formats.h"
#include "hwmodels/calibrate/gemm_fit.h"
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
  shape.traffic = gemm_traffic(shape);
  return shape;
}

// Linear layers of PyTorch under a CUDA graph, 2-byte outputs; times of 8- and 4-bit formats hold
// the quantisation of the activations.
void read_aiconfigurator(const CsvTable& table, std::size_t row, Sample& sample) {
  sample.library = "torch";
  sample.group = table.text(row, "dtype");
  GemmShape shape = plain_shape(table, row, table_dtype(table, row, "dtype"));
  shape.block_scales = sample.group == "fp8_block";
  sample.query = GemmQuery{shape};
}

// fp16 linear layers of language models; kernel times of a profiler, rounded to 1 us.
void read_vidur(const CsvTable& table, std::size_t row, Sample& sample) {
  sample.library = "kineto";
  sample.group = "float16";
  sample.query = GemmQuery{plain_shape(table, row, DType::F16)};
}

// fp32 without TF32: single (linear) and batched products of PyTorch.
void read_neusight(const CsvTable& table, std::size_t row, Sample& sample) {
  sample.library = "torch";
  sample.group = table.text(row, "op");
  GemmShape shape = plain_shape(table, row, DType::F32);
  if (sample.group == "bmm") {
    shape.batch = table.integer(row, "batch");
    if (shape.batch < 1) table.fail(row, "batch", "is no count", "write 1 or more");
    shape.traffic = gemm_traffic(shape);
  } else {
    shape.m *= table.number_or(row, "batch", 1) > 1 ? table.integer(row, "batch") : 1;
    shape.traffic = gemm_traffic(shape);
  }
  sample.query = GemmQuery{shape};
}

// cuBLAS of 2016-2019. Its matrices are stored by columns: by rows the product is C^T = B^T A^T.
void read_deepbench(const CsvTable& table, std::size_t row, Sample& sample) {
  const std::string& precision = table.text(row, "precision");
  sample.library = "cublas-2018";
  sample.group = precision;
  const bool half = precision == "fp16in_mixed";
  if (!half && precision != "fp32" && precision != "int8_gemm") {
    table.fail(row, "precision", "is no known format", "write fp32, fp16in_mixed or int8_gemm");
  }
  const DType dtype = half ? DType::F16 : precision == "fp32" ? DType::F32 : DType::U8;
  GemmShape shape = plain_shape(table, row, dtype);
  std::swap(shape.m, shape.n);
  shape.trans_a = table.text(row, "transB") == "T";
  shape.trans_b = table.text(row, "transA") == "T";
  sample.query = GemmQuery{shape};
}

}  // namespace

std::vector<TableFormat> gemm_formats() {
  return {{.name = "gemm_aiconfigurator",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"n", "k"},  // whole layers are kept out of fits
           .other_columns = {"dtype", "m"},
           .read = read_aiconfigurator},
          {.name = "gemm_vidur",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"n", "k"},
           .other_columns = {"op", "tp", "m"},
           .read = read_vidur},
          {.name = "gemm_fp32_neusight",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"batch", "m", "n", "k"},
           .other_columns = {"op"},
           .read = read_neusight},
          {.name = "gemm_deepbench",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"m", "n", "k"},
           .other_columns = {"suite", "precision", "transA", "transB"},
           .read = read_deepbench}};
}

}  // namespace gputwin
