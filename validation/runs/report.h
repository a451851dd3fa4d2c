// Scores of published runs as text and as JSON.
#pragma once

#include <string>

#include "validation/runs/ablation_table.h"
#include "validation/runs/scoring.h"
#include "validation/runs/stack_fit.h"

namespace gputwin {

/// What a report may hold beside the scores.
struct RunsExtras {
  const UnseenPredictions* unseen = nullptr;  // adds three columns of mean errors
  const AblationTable* ablation = nullptr;
  const StackFit* fit = nullptr;  // fitted factors
};

/// Tables by kind, by group and device, and of memory figures; then what was not predicted, and
/// why.
std::string runs_report(const std::vector<PublishedRun>& runs,
                        const std::vector<Prediction>& predictions, const RunsExtras& extras = {});

/// One line per run: id, measured, predicted, error, memory.
std::string runs_listing(const std::vector<PublishedRun>& runs,
                         const std::vector<Prediction>& predictions);

/// {"rows": […], "summary": {…}}; keys in validation/runs/README.md.
std::string runs_json(const std::vector<PublishedRun>& runs,
                      const std::vector<Prediction>& predictions, const RunsExtras& extras = {});

}  // namespace gputwin
