// What the models of a device say about a sample.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "hwmodels/calibrate/sample.h"
#include "hwmodels/device.h"
#include "sim/core/cost.h"

namespace gputwin {

/// Cost of a sample's operation on `device`, or the reason why it has none. Reads the query and the
/// library, never the measured time.
std::variant<Cost, std::string> sample_cost(const Sample& sample, const Device& device);

}  // namespace gputwin
