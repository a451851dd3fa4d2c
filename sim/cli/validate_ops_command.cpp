// gputwin validate ops: predicts measured operations and says how wrong the predictions are.
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "sim/app/data_directory.h"
#include "sim/cli/commands.h"
#include "validation/ops/ops.h"

namespace gputwin::cli {
namespace {

struct Options {
  std::vector<std::string> files;
  Part part = Part::All;
  std::size_t worst = 0;
  double max_error = 0;
  bool json = false;
};

int validate_ops(const Options& o) {
  std::vector<OpTable> tables;
  for (const std::string& file : o.files) {
    tables.push_back(predict_ops(file, o.part, data_directory() / "hwmodels"));
  }
  if (o.json) {
    fmt::print("{}", ops_json(tables));
  } else {
    fmt::print("{}{}", worst_ops(tables, o.worst), ops_report(tables));
  }
  if (o.max_error <= 0) return kDone;
  double sum = 0, rows = 0;
  for (const OpTable& table : tables) {
    for (const OpPrediction& row : table.rows) {
      if (row.ok()) sum += std::abs(row.error()), ++rows;
    }
  }
  const double mean = rows > 0 ? sum / rows : 0;
  if (mean <= o.max_error) return kDone;
  fmt::print(stderr, "gputwin: the mean error {:.3f} is above --max-error {:.3f}\n", mean,
             o.max_error);
  return kBoundBreached;
}

}  // namespace

Action add_validate_ops(CLI::App& validate) {
  CLI::App* ops = validate.add_subcommand("ops", "Measured kernels, collectives and copies");
  ops->footer(
      "Example: gputwin validate ops gemm.csv attention.csv --part test --worst 20\n"
      "Tables are recognised by their header; columns beyond it are ignored. Formats: "
      "validation/ops/README.md. Exit codes: 0 done, 1 --max-error breached, 2 bad input.");
  auto o = std::make_shared<Options>();
  const std::map<std::string, Part> parts{
      {"all", Part::All}, {"fit", Part::Fit}, {"test", Part::Test}};
  ops->add_option("files", o->files, "Tables of measured times (CSV)")->required();
  ops->add_flag("--json", o->json, "Print the tables as JSON");
  ops->add_option("--part", o->part,
                  "Rows to predict: all, those a fit may use, or those kept out of every fit")
      ->transform(CLI::CheckedTransformer(parts))
      ->default_str("all");
  ops->add_option("--worst", o->worst, "Print this many rows with the largest errors of each file");
  ops->add_option("--max-error", o->max_error,
                  "Exit with 1 if the mean absolute error of all rows is above this (0.1 is 10 %)")
      ->check(CLI::PositiveNumber);
  return [o] { return validate_ops(*o); };
}

}  // namespace gputwin::cli
