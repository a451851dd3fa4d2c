// Writes fitted constants into a device file, and the card that says how good they are.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hwmodels/calibrate/fit.h"

namespace gputwin {

/// The text of the device file `start` with the numbers of `fits` in place, each with kind fitted
/// and a source that names its tables, rows and errors. Keys that "like" takes from another file
/// stay there unless a fit replaced them. `name` replaces the name of the device,
/// unless it is empty.
std::string calibrated_device(const std::filesystem::path& start,
                              const std::vector<FamilyFit>& fits,
                              const std::string& name = "");

/// A page on one device: for each group rows, errors in and out of the fit, range, libraries and
/// `date` ("2026-12-02", printed as it is).
std::string model_card(const std::string& device, const std::vector<FamilyFit>& fits,
                       const std::string& tables, const std::string& date);

}  // namespace gputwin
