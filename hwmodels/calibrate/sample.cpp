#include "hwmodels/calibrate/sample.h"

#include <algorithm>
#include <array>

#include "hwmodels/calibrate/formats.h"
#include "sim/core/error.h"

namespace gputwin {

namespace {

constexpr std::uint64_t kTestShare = 5;  // one shape in five

// FNV-1a over the text of the fields, so that the split does not depend on how numbers are stored.
std::uint64_t shape_hash(const CsvTable& table, std::size_t row, const TableFormat& format) {
  std::uint64_t hash = 14695981039346656037ull;
  const auto add = [&](unsigned char c) { hash = (hash ^ c) * 1099511628211ull; };
  for (const char* column : format.shape_columns) {
    for (const char c : table.text(row, column)) add(static_cast<unsigned char>(c));
    add(',');
  }
  // FNV's low bits are weak for short inputs; fold the high ones in.
  return hash ^ (hash >> 32);
}

std::vector<std::string> missing_columns(const CsvTable& table, const TableFormat& format) {
  std::vector<std::string> missing;
  for (const char* column : format.columns()) {
    if (!table.has(column)) missing.emplace_back(column);
  }
  return missing;
}

}  // namespace

bool is_test(const Sample& sample) { return sample.shape % kTestShare == 0; }

std::vector<const char*> TableFormat::columns() const {
  std::vector<const char*> all{device_column, time_column};
  all.insert(all.end(), shape_columns.begin(), shape_columns.end());
  all.insert(all.end(), other_columns.begin(), other_columns.end());
  return all;
}

const std::vector<TableFormat>& table_formats() {
  static const std::vector<TableFormat> formats = [] {
    std::vector<TableFormat> all;
    for (const auto family : {gemm_formats, attention_formats, pointwise_formats, layer_formats,
                              exchange_formats, whole_model_formats, collective_formats}) {
      for (TableFormat& format : family()) all.push_back(std::move(format));
    }
    return all;
  }();
  return formats;
}

const TableFormat& format_of(const CsvTable& table) {
  const TableFormat *best = nullptr, *nearest = nullptr;
  std::vector<std::string> lacks;
  for (const TableFormat& format : table_formats()) {
    std::vector<std::string> missing = missing_columns(table, format);
    if (missing.empty() && (!best || format.columns().size() > best->columns().size())) {
      best = &format;
    }
    if (!nearest || missing.size() < lacks.size()) nearest = &format, lacks = std::move(missing);
  }
  if (best) return *best;
  std::string names;
  for (const std::string& column : lacks) names += (names.empty() ? "" : ", ") + column;
  throw InputError(table.file(), "line 1", "", "is the header of no known table",
                   std::string("nearest: ") + nearest->name + ", which also has " + names);
}

std::vector<Sample> read_samples(const CsvTable& table, const TableFormat& format,
                                 const DeviceAliases& aliases) {
  std::vector<Sample> samples;
  samples.reserve(table.rows());
  for (std::size_t row = 0; row < table.rows(); ++row) {
    Sample sample;
    sample.line = table.line(row);
    sample.table = format.name;
    sample.spelling = table.text(row, format.device_column);
    sample.device = aliases.find(format.name, format.device_column, sample.spelling);
    const bool measured = !table.text(row, format.time_column).empty();
    if (measured) {
      sample.time = Seconds(table.number(row, format.time_column) * format.seconds_per_unit);
    }
    if (measured && sample.time.value <= 0) {
      table.fail(row, format.time_column, "is no time that can have been measured",
                 "times are positive");
    }
    sample.shape = shape_hash(table, row, format);
    format.read(table, row, sample);
    samples.push_back(std::move(sample));
  }
  return samples;
}

DType table_dtype(const CsvTable& table, std::size_t row, const char* column) {
  struct Word {
    const char* word;
    DType dtype;
  };
  constexpr std::array kWords{
      Word{"bfloat16", DType::Bf16}, Word{"bf16", DType::Bf16},    Word{"float16", DType::F16},
      Word{"fp16", DType::F16},      Word{"half", DType::F16},     Word{"float32", DType::F32},
      Word{"fp32", DType::F32},      Word{"float", DType::F32},    Word{"tf32", DType::Tf32},
      Word{"fp8", DType::F8},        Word{"fp8_block", DType::F8}, Word{"mxfp8", DType::Mxf8},
      Word{"nvfp4", DType::Nvf4}};
  const std::string& text = table.text(row, column);
  const auto found =
      std::find_if(kWords.begin(), kWords.end(), [&](const Word& w) { return text == w.word; });
  if (found == kWords.end()) table.fail(row, column, "is no known number format", "write bfloat16");
  return found->dtype;
}

}  // namespace gputwin
