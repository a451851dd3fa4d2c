// Predicts measured operations and says how wrong the predictions are.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hwmodels/calibrate/sample.h"

namespace gputwin {

/// Which rows of a table are predicted: all, those a fit may use, or those kept out of every fit.
enum class Part : std::uint8_t { All, Fit, Test };

/// One row of a table and what the models say; low and high are the ends of the 80 % interval.
struct OpPrediction {
  Sample sample;
  double predicted_s = 0, low_s = 0, high_s = 0;  // 0: not predicted
  bool extrapolated = false;
  std::string reason;  // why it is not predicted

  bool ok() const { return predicted_s > 0; }
  double error() const { return predicted_s / sample.time.value - 1; }
};

struct OpTable {
  std::string file, format;
  std::vector<OpPrediction> rows;
};

/// Predicts the rows of `part` of one file. `data` is the folder that holds hwmodels. Throws
/// InputError for files and values that cannot be read; a row of a device without a file, or of an
/// operation its device cannot run, is no error but carries a reason.
OpTable predict_ops(const std::filesystem::path& file, Part part,
                    const std::filesystem::path& data);

/// Errors (predicted / measured - 1) of the rows of a table on one device.
struct OpErrors {
  std::string table, device;
  std::string part;   // a group of the rows ("bfloat16"), or a band of measured times; "": all
  bool band = false;  // the part is a band
  std::size_t rows = 0, predicted = 0;
  double median = 0, mean = 0, p90 = 0;  // of the absolute error
  double bias = 0;                       // median of the signed error
  double coverage = 0;                   // share of measured times inside the 80 % interval
};

/// By table and device, each followed by its groups, if there are several, and its bands; the last
/// lines are the tables as a whole (device "").
std::vector<OpErrors> score_ops(const std::vector<OpTable>& tables);

std::string ops_report(const std::vector<OpTable>& tables);
/// As DESIGN 5 states it, with bands and the reasons of rows that were not predicted.
std::string ops_json(const std::vector<OpTable>& tables);
/// The `n` rows with the largest errors of each table, one a line.
std::string worst_ops(const std::vector<OpTable>& tables, std::size_t n);

}  // namespace gputwin
