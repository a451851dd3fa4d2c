#include "hwmodels/calibrate/formats.h"
#include "hwmodels/calibrate/gemm_fit.h"
#include "sim/core/error.h"

namespace gputwin {

namespace {

GemmShape plain_shape(const CsvTable& table, std::size_t row, DType dtype) {
  GemmShape shape{.m = table.extent(row, "m"),
                  .n = table.extent(row, "n"),
                  .k = table.extent(row, "k"),
                  .dtype = dtype,
                  .trans_b = true};
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
    shape.batch = table.extent(row, "batch");
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

// One value of "m=4096;k=6144;layout=NN".
std::string part_of(const CsvTable& table, std::size_t row, const std::string& key) {
  const std::string text = ";" + table.text(row, "shape");
  const std::size_t at = text.find(";" + key + "=");
  if (at == std::string::npos) table.fail(row, "shape", "has no " + key, "write m=1;n=1;k=1");
  const std::size_t from = at + key.size() + 2;
  return text.substr(from, text.find(';', from) - from);
}

std::int64_t extent_of(const CsvTable& table, std::size_t row, const std::string& key) {
  const std::int64_t value = std::atoll(part_of(table, row, key).c_str());
  if (value < 1) table.fail(row, "shape", "has no positive " + key, "write 1 or more");
  return value;
}

// Products of Transformer Engine in training, at the clocks of a training run. Grouped products
// and attention carry efficiencies, but no times.
void read_simumax(const CsvTable& table, std::size_t row, Sample& sample) {
  const std::string& op = table.text(row, "op");
  sample.library = "transformer-engine";
  sample.group = op;
  GemmShape shape{.dtype = DType::Bf16, .trans_b = true};
  if (op == "matmul") {
    shape.m = extent_of(table, row, "m"), shape.n = extent_of(table, row, "n");
    shape.k = extent_of(table, row, "k"), shape.batch = extent_of(table, row, "b");
    // Stored by columns: TN is a forward product, NN a data gradient, NT a weight gradient.
    const std::string layout = part_of(table, row, "layout");
    shape.trans_a = layout == "NT";
    shape.trans_b = layout == "TN";
    sample.group += " " + layout;
    shape.traffic = gemm_traffic(shape);
    const bool wide = part_of(table, row, "out_dtype") == "fp32";
    const std::int64_t results = shape.batch * shape.m * shape.n;
    if (wide) shape.traffic += Bytes(2 * results);
    if (part_of(table, row, "accumulate") == "True")
      shape.traffic += Bytes(results * (wide ? 4 : 2));
  } else if (op == "group_matmul") {
    shape.m = extent_of(table, row, "M"), shape.n = extent_of(table, row, "N");
    shape.k = extent_of(table, row, "K"), shape.batch = extent_of(table, row, "ng");
    shape.traffic = gemm_traffic(shape);
  } else if (op == "sdp_fwd" || op == "sdp_bwd") {
    AttentionShape attention;
    attention.phase =
        op == "sdp_fwd" ? AttentionShape::Phase::Forward : AttentionShape::Phase::Backward;
    attention.library = attention_library("te", "sdp");
    sample.query = attention;
    return;
  } else {
    table.fail(row, "op", "is no known operation", "matmul, group_matmul, sdp_fwd or sdp_bwd");
  }
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
           .read = read_deepbench},
          {.name = "gemm_attn_efficiency_simumax",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"op", "shape"},
           .other_columns = {"efficiency"},
           .read = read_simumax}};
}

}  // namespace gputwin
