#include "hwmodels/calibrate/formats.h"
#include "hwmodels/kernels/convolution.h"
#include "hwmodels/kernels/moe.h"

namespace gputwin {

namespace {

// "balanced", or "power_law_1.2": the exponent.
double skew_of(const CsvTable& table, std::size_t row) {
  const std::string& text = table.text(row, "dist");
  constexpr std::string_view kPrefix = "power_law_";
  if (text == "balanced") return 0;
  if (!text.starts_with(kPrefix)) {
    table.fail(row, "dist", "is no distribution of tokens", "balanced or power_law_1.2");
  }
  return std::atof(text.c_str() + kPrefix.size());
}

void read_moe(const CsvTable& table, std::size_t row, Sample& sample) {
  MoeShape shape{.tokens = table.extent(row, "tokens"),
                 .hidden = table.extent(row, "hidden"),
                 .intermediate = table.extent(row, "inter"),
                 .top_k = table.extent(row, "topk"),
                 .experts = table.extent(row, "experts"),
                 .tensor_parallel = table.extent(row, "tp"),
                 .expert_parallel = table.extent(row, "ep")};
  shape.skew = skew_of(table, row);
  shape.dtype = table_dtype(table, row, "dtype");
  const std::string& kernel = table.text(row, "kernel");
  shape.gated = kernel.find("nongated") == std::string::npos;
  shape.library = moe_library(kernel, table.text(row, "dtype"));
  sample.library = kernel;
  sample.group = table.text(row, "dtype");
  sample.query = shape;
}

LayerPhase phase_of(const CsvTable& table, std::size_t row) {
  const std::string& phase = table.text(row, "phase");
  if (phase == "fwd") return LayerPhase::Forward;
  if (phase == "bwd_data") return LayerPhase::BackwardData;
  if (phase == "bwd_weight") return LayerPhase::BackwardWeight;
  table.fail(row, "phase", "is no phase", "fwd, bwd_data or bwd_weight");
}

// DeepBench's words; "mixed" multiplies 2-byte numbers, on matrix units where there are.
DType precision_of(const CsvTable& table, std::size_t row) {
  const std::string& precision = table.text(row, "precision");
  if (precision == "fp32") return DType::F32;
  if (precision.starts_with("fp16")) return DType::F16;
  if (precision.starts_with("int8")) return DType::U8;
  table.fail(row, "precision", "is no known precision", "fp32, fp16in_mixed or int8_gemm");
}

void read_convolution(const CsvTable& table, std::size_t row, Sample& sample) {
  ConvolutionShape shape;
  shape.width = table.extent(row, "w"), shape.height = table.extent(row, "h");
  shape.channels = table.extent(row, "c"), shape.batch = table.extent(row, "n");
  shape.filters = table.extent(row, "k");
  shape.filter_width = table.extent(row, "filt_w");
  shape.filter_height = table.extent(row, "filt_h");
  shape.pad_width = table.extent(row, "pad_w", 0);
  shape.pad_height = table.extent(row, "pad_h", 0);
  shape.stride_width = table.extent(row, "stride_w");
  shape.stride_height = table.extent(row, "stride_h");
  shape.phase = phase_of(table, row);
  shape.dtype = precision_of(table, row);
  sample.group = table.text(row, "precision") + " " + table.text(row, "phase");
  sample.query = shape;
}

void read_rnn(const CsvTable& table, std::size_t row, Sample& sample) {
  RnnShape shape{.hidden = table.extent(row, "hidden"),
                 .batch = table.extent(row, "batch"),
                 .steps = table.extent(row, "steps")};
  const std::string& cell = table.text(row, "cell");
  if (cell != "lstm" && cell != "gru" && cell != "rnn_vanilla") {
    table.fail(row, "cell", "is no known cell", "lstm, gru or rnn_vanilla");
  }
  shape.gates = cell == "lstm" ? 4 : cell == "gru" ? 3 : 1;
  shape.phase = phase_of(table, row);
  shape.dtype = precision_of(table, row);
  sample.group = cell;
  sample.query = shape;
}

}  // namespace

std::vector<TableFormat> layer_formats() {
  return {{.name = "moe_aiconfigurator",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"dtype", "tokens", "hidden", "inter", "topk", "experts", "tp", "ep",
                             "dist"},
           .other_columns = {"kernel"},
           .read = read_moe},
          {.name = "conv_deepbench",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"w", "h", "c", "n", "k", "filt_w", "filt_h", "pad_w", "pad_h",
                             "stride_w", "stride_h", "phase", "precision"},
           .other_columns = {},
           .read = read_convolution},
          {.name = "rnn_deepbench",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"precision", "cell", "hidden", "batch", "steps", "phase"},
           .other_columns = {},
           .read = read_rnn}};
}

}  // namespace gputwin
