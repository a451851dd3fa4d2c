// Finds models, clusters and runs by name in the data directories.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace gputwin {

using DataDirs = std::vector<std::filesystem::path>;

/// Names (file stems, sorted, without repetition) of the JSON files in `folder` of the data
/// directories.
std::vector<std::string> data_names(const DataDirs& dirs, const std::string& folder);

/// The first file `folder`/`name`.json of the data directories; empty if there is none. A name with
/// a slash or that ends in ".json" is a path: as it stands, or below the first data directory.
std::filesystem::path find_data_file(const DataDirs& dirs, const std::string& folder,
                                     const std::string& name);

}  // namespace gputwin
