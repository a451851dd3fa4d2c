// Layouts that cannot be. The scenario loader refuses most of them first, with a pointer into the
// file.
#pragma once

#include <optional>

#include "sim/core/cluster.h"
#include "sim/core/error.h"
#include "sim/core/job.h"
#include "sim/core/layout.h"
#include "sim/core/workload.h"

namespace gputwin {

/// Why `model` cannot be trained so, or nothing.
std::optional<Infeasible> refusal(const Transformer& model, const Cluster& cluster,
                                  const Layout& layout, const Job& job);

}  // namespace gputwin
