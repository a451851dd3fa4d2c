// The rows of a sweep as files and as a table for people.
#pragma once

#include <string>

#include "sim/app/sweep.h"
#include "sim/app/sweep_run.h"

namespace gputwin {

/// RFC 4180, one row per point in input order: point, the paths varied, status, reason, figures.
/// Cells of figures are empty where there is no result.
std::string sweep_csv(const Sweep& sweep, const SweepRows& rows);

/// {"schema", "scenario", "sets", "columns", "points": [{"point", "settings", row}]}.
std::string sweep_json(const Sweep& sweep, const SweepRows& rows);

/// For a terminal: settings, time, tokens/s, MFU, memory; the fastest marked.
std::string sweep_report(const Sweep& sweep, const SweepRows& rows);

/// The point with the least iteration time per sample, the first of equals; none without results.
std::optional<std::size_t> best_point(const SweepRows& rows);

}  // namespace gputwin
