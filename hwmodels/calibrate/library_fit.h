// Fits the kernels of libraries (hwmodels/kernels/library.h): three constants a device, and
// corrections that devices share.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "hwmodels/calibrate/fit.h"
#include "hwmodels/device.h"
#include "hwmodels/kernels/residual.h"

namespace gputwin {

/// Constants and corrections of one kind.
struct LibraryFit {
  LibraryKernel kernel{};
  std::map<std::string, FamilyFit> devices;     // by name of the device
  std::map<std::string, Residual> corrections;  // by name of the file
};

/// Fits all kinds of which `samples` have rows on `devices` (by name). Test samples are used for
/// errors alone.
std::vector<LibraryFit> fit_libraries(std::span<const Sample> samples,
                                      const std::map<std::string, Device>& devices);

/// The correction that kind and device share with others: by architecture where many rows were
/// measured on each, one for all devices otherwise.
std::string correction_name(LibraryKernel kernel, const Device& device);

/// Start-up and efficiencies of one kind on one device, its correction kept as it is. None: too few
/// rows.
std::optional<FamilyFit> fit_library_constants(LibraryKernel kernel,
                                               std::span<const Sample> samples,
                                               const Device& start);

}  // namespace gputwin
