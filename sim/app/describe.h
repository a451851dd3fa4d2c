// A scenario in words, for the head of a report.
#pragma once

#include "sim/app/report.h"
#include "sim/app/scenario.h"

namespace gputwin {

/// Job, cluster and layout as one line each, and how FLOPs are counted.
ReportContext describe(const Scenario& scenario);

}  // namespace gputwin
