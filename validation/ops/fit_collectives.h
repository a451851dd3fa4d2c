// Fits the shipped curves of collectives (hwmodels/collectives) to tables of measured ones.
#pragma once

#include <map>
#include <span>
#include <string>

#include "hwmodels/calibrate/sample.h"

namespace gputwin {

/// Text of each file of curves, by name ("curves/b200-sxm"). Samples that are no
/// collectives are passed over, those of the test part are not fitted; `error_out` of each curve
/// comes from fits that left every fifth of its own sizes out in turn. Rows of systems of one
/// node with a measured device also go to the curves of the device if they moved 1 GiB or more, for
/// which the tables of devices have none.
std::map<std::string, std::string> fit_collectives(std::span<const Sample> samples);

}  // namespace gputwin
