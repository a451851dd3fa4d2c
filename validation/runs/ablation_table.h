// How much worse predictions of published runs get when one mechanism is left out.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "validation/runs/predict.h"

namespace gputwin {

/// The rows of a column: those of a kind, or of a group.
struct AblationColumn {
  const char* label;
  const char* kind;   // "" = any
  const char* group;  // "" = any
  bool tau = false;   // Kendall's tau instead of the mean absolute error
};

std::vector<AblationColumn> ablation_columns();

struct AblationLine {
  std::string mechanism;                      // "" = none left out
  std::vector<std::optional<double>> values;  // by column; none: no such rows, or fewer than three
};

using AblationTable = std::vector<AblationLine>;

/// The values of one line. Before errors are taken, predictions are divided by the median of
/// predicted / measured of their `stack` (parallel to `runs`), which one time scale per stack would
/// have done; Kendall's tau is that of the predictions as they are.
AblationLine ablation_line(const std::string& mechanism, const std::vector<PublishedRun>& runs,
                           const std::vector<std::string>& stacks,
                           const std::vector<Prediction>& predictions);

/// What passes of ablate weigh, in passes over all runs.
double ablation_passes();

/// One line with everything, then one per mechanism made free (what_if.without); nothing is fitted
/// again. Rows outside all columns are not predicted. A stack is a family of `hardware`/stacks on
/// one architecture.
AblationTable ablate(const std::vector<PublishedRun>& runs, const std::filesystem::path& hardware,
                     WorkerPool& pool, const PredictOptions& options, PassProgress& passes);

std::string ablation_text(const AblationTable& table);

/// [{"without": text or null, COLUMN: number or null, …}, …]
nlohmann::ordered_json ablation_json(const AblationTable& table);

}  // namespace gputwin
