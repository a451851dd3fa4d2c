// One measured time: what was run, on which device, by which library.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "hwmodels/calibrate/csv_table.h"
#include "hwmodels/collectives/collective_row.h"
#include "hwmodels/device_aliases.h"
#include "hwmodels/kernels/attention_shape.h"
#include "hwmodels/kernels/convolution.h"
#include "hwmodels/kernels/exchange.h"
#include "hwmodels/kernels/gemm.h"
#include "hwmodels/kernels/moe.h"
#include "hwmodels/kernels/pointwise.h"
#include "hwmodels/kernels/prompt_pass.h"
#include "hwmodels/kernels/whole_model.h"
#include "sim/core/units.h"

namespace gputwin {

/// A matrix multiplication of a benchmark.
struct GemmQuery {
  GemmShape shape;
};

/// What a row asks the models: one alternative per kind of operation.
using Query = std::variant<GemmQuery, AttentionShape, MoeShape, PointwiseShape, ConvolutionShape,
                           RnnShape, AllReduceShape, ExpertExchangeShape, WholeModelShape,
                           PromptPassShape, CollectiveRow>;

struct Sample {
  std::size_t line = 0;     // of the file
  std::string device;       // name of a file in hwmodels/devices; empty: the spelling is unknown
  std::string spelling;     // of the device, in the table
  std::string group;        // what reports tell apart: a number format, a phase, a collective
  const char* table = "";   // name of the format
  std::string library;      // what ran it, and how it was timed: constants may depend on it
  Seconds time{};           // measured; 0: the table has none
  std::uint64_t shape = 0;  // hash of the shape: equal on all devices and for all libraries
  Query query;
};

/// Whether a sample is kept out of every fit: one shape in five, the same on every device.
bool is_test(const Sample& sample);

/// How one kind of table is read. A table is of the format all of whose `columns` it has; of
/// several, that with the most.
struct TableFormat {
  const char* name;
  const char* device_column;
  const char* time_column;
  double seconds_per_unit;                 // of the time column
  std::vector<const char*> shape_columns;  // what the hash of a shape is made of
  std::vector<const char*> other_columns;  // further ones it needs
  /// Fills query and library. Throws InputError for values that cannot be.
  void (*read)(const CsvTable& table, std::size_t row, Sample& sample);

  std::vector<const char*> columns() const;
};

/// All formats that can be predicted.
const std::vector<TableFormat>& table_formats();

/// The format of `table`; throws InputError, naming the nearest format and what it lacks.
const TableFormat& format_of(const CsvTable& table);

/// Every row of `table` as a sample. Throws InputError with file and line for broken values and
/// times that are not positive.
std::vector<Sample> read_samples(const CsvTable& table, const TableFormat& format,
                                 const DeviceAliases& aliases);

/// The dtype of a table's word ("bfloat16", "fp8_block"); throws InputError at the field.
DType table_dtype(const CsvTable& table, std::size_t row, const char* column);

}  // namespace gputwin
