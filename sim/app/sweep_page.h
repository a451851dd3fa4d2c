// The rows of a sweep as one page with plots, for a browser without a network.
#pragma once

#include <string>

#include "sim/app/sweep.h"
#include "sim/app/sweep_run.h"

namespace gputwin {

/// HTML with its plots as inline SVG: no script, no font, nothing loaded from elsewhere. Iteration
/// time and throughput over the first path with numbers (else the first path), a line per
/// combination of the others; where the time of each point goes; all rows as a table.
std::string sweep_page(const Sweep& sweep, const SweepRows& rows);

}  // namespace gputwin
