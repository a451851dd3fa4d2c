// Where the shipped data lies: scenarios/ and hwmodels/ with their JSON files.
#pragma once

#include <filesystem>

namespace gputwin {

/// The directory that holds scenarios/ and hwmodels/: the environment variable GPUTWIN_DATA if set,
/// else the first of the executable's folder and its parents that holds both, itself or in
/// share/gputwin (installed), else the source tree it was built from.
std::filesystem::path data_directory();

}  // namespace gputwin
