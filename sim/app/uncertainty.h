// How wrong the iteration time may be, from the intervals of the costs it is made of.
#pragma once

#include <string>
#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/run_result.h"
#include "sim/core/topology.h"

namespace gputwin {

struct Uncertainty {
  Seconds low{}, high{};                  // 80 % interval of the iteration time
  std::vector<std::string> extrapolated;  // ops priced outside their model's range, by name, sorted
};

/// Interval of `execution.iteration`.
///
/// Errors of one op class (GEMM, attention, …) are taken as fully correlated, classes as
/// independent: per class the deviation is the sum over its operations, over classes the root of
/// the sum of squares. Weights are the time of each class on the rank that ends last; communication
/// counts with its exposed part. Bubble and stall stretch with the work they wait for.
///
/// `shared_deviation`: a further, independent deviation of the whole iteration either way, as a
/// share of it (HardwareModel::stack_deviation).
Uncertainty uncertainty(const Plan& plan, const Execution& execution, const CostModel& costs,
                        const Topology& topology, double shared_deviation = 0);

}  // namespace gputwin
