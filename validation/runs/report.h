// Scores of published runs as text and as JSON.
#pragma once

#include <string>

#include "validation/runs/scoring.h"

namespace gputwin {

/// Tables by kind, by group and device, and of memory figures; then what was not predicted, and
/// why.
std::string runs_report(const std::vector<PublishedRun>& runs,
                        const std::vector<Prediction>& predictions, const Scores& scores);

/// One line per run: id, measured, predicted, error, memory.
std::string runs_listing(const std::vector<PublishedRun>& runs,
                         const std::vector<Prediction>& predictions);

/// {"rows": […], "summary": {…}}; keys in validation/runs/README.md.
std::string runs_json(const std::vector<PublishedRun>& runs,
                      const std::vector<Prediction>& predictions, const Scores& scores);

}  // namespace gputwin
