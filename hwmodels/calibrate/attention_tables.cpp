#include "hwmodels/calibrate/formats.h"
#include "hwmodels/kernels/attention_shape.h"

namespace gputwin {

namespace {

void read_heads(const CsvTable& table, std::size_t row, AttentionShape& shape) {
  shape.batch = table.extent(row, "batch");
  shape.queries = table.extent(row, "q_len");
  shape.keys = table.extent(row, "kv_len");
  shape.heads = table.extent(row, "hq");
  shape.kv_heads = table.extent(row, "hkv");
  if (shape.heads % shape.kv_heads != 0) {
    table.fail(row, "hkv", "does not divide the query heads", "each key head serves equally many");
  }
}

// Causal prefill and paged decode of serving libraries.
void read_serving(const CsvTable& table, std::size_t row, Sample& sample) {
  AttentionShape shape;
  const std::string& phase = table.text(row, "phase");
  if (phase != "prefill" && phase != "decode") {
    table.fail(row, "phase", "is no phase", "prefill or decode");
  }
  shape.phase = phase == "prefill" ? AttentionShape::Phase::Prefill : AttentionShape::Phase::Decode;
  read_heads(table, row, shape);
  shape.head_size = shape.value_size = table.extent(row, "head_dim");
  shape.window = static_cast<std::int64_t>(table.number_or(row, "window", 0));
  shape.dtype = table_dtype(table, row, "dtype");
  shape.kv_dtype = table_dtype(table, row, "kv_dtype");
  sample.library = table.text(row, "framework") + " " + table.text(row, "kernel");
  shape.library = attention_library(table.text(row, "framework"), table.text(row, "kernel"));
  sample.group = phase;
  sample.query = shape;
}

void read_training(const CsvTable& table, std::size_t row, Sample& sample) {
  AttentionShape shape;
  const std::string& phase = table.text(row, "phase");
  if (phase != "fwd" && phase != "bwd") table.fail(row, "phase", "is no phase", "fwd or bwd");
  shape.phase = phase == "fwd" ? AttentionShape::Phase::Forward : AttentionShape::Phase::Backward;
  read_heads(table, row, shape);
  shape.head_size = table.extent(row, "d_qk");
  shape.value_size = table.extent(row, "d_v");
  shape.window = static_cast<std::int64_t>(table.number_or(row, "window", 0));
  shape.causal = table.text(row, "mask") != "no_mask";
  shape.dtype = shape.kv_dtype = table_dtype(table, row, "dtype");
  shape.library = attention_library("", table.text(row, "impl"));
  // cuDNN's version, and half a step for its slower, repeatable backward pass.
  shape.variant = table.number_or(row, "cudnn", 0) + 50 * table.number_or(row, "deterministic", 0);
  sample.library = table.text(row, "impl");
  sample.group = phase;
  sample.query = shape;
}

}  // namespace

std::vector<TableFormat> attention_formats() {
  return {{.name = "attention_infer_aiconfigurator",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"phase", "dtype", "kv_dtype", "batch", "q_len", "kv_len", "hq", "hkv",
                             "head_dim", "window"},
           .other_columns = {"framework", "kernel"},
           .read = read_serving},
          {.name = "attention_sdpa_train_cudnn",
           .device_column = "gpu",
           .time_column = "time_us",
           .seconds_per_unit = 1e-6,
           .shape_columns = {"dtype", "mask", "window", "batch", "q_len", "kv_len", "hq", "hkv",
                             "d_qk", "d_v", "phase"},
           .other_columns = {"impl", "deterministic"},
           .read = read_training}};
}

}  // namespace gputwin
