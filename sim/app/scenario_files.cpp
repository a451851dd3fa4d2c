#include "sim/app/scenario_files.h"

#include <set>
#include <system_error>

namespace gputwin {
namespace fs = std::filesystem;

namespace {

bool is_file(const fs::path& path) {
  std::error_code failed;
  return fs::is_regular_file(path, failed) && !failed;
}

bool is_path(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".json");
}

}  // namespace

std::vector<std::string> data_names(const DataDirs& dirs, const std::string& folder) {
  std::set<std::string> names;
  for (const fs::path& dir : dirs) {
    std::error_code failed;
    fs::directory_iterator entries(dir / folder, failed);
    for (; !failed && entries != fs::directory_iterator(); entries.increment(failed)) {
      if (entries->path().extension() == ".json") names.insert(entries->path().stem().string());
    }
  }
  return {names.begin(), names.end()};
}

fs::path find_data_file(const DataDirs& dirs, const std::string& folder, const std::string& name) {
  if (name.empty() || name.size() > 1000 || name.find('\0') != std::string::npos) return {};
  if (is_path(name)) {
    if (is_file(name)) return name;
    for (const fs::path& dir : dirs) {
      if (is_file(dir / name)) return dir / name;
    }
    return {};
  }
  for (const fs::path& dir : dirs) {
    const fs::path candidate = dir / folder / (name + ".json");
    if (is_file(candidate)) return candidate;
  }
  return {};
}

}  // namespace gputwin
