#include "sim/app/data_directory.h"

#include <cstdlib>

#include "sim/core/error.h"

namespace gputwin {
namespace fs = std::filesystem;

fs::path data_directory() {
  std::error_code ignored;
  const auto holds_data = [&](const fs::path& p) {
    return fs::is_directory(p / "scenarios" / "models", ignored) &&
           fs::is_directory(p / "hwmodels" / "devices", ignored);
  };
  if (const char* set = std::getenv("GPUTWIN_DATA"); set != nullptr && *set != '\0') {
    if (holds_data(set)) return set;
    throw InputError("GPUTWIN_DATA", "", set, "holds no scenarios/models and hwmodels/devices",
                     "name the folder of the source tree, or unset it");
  }
  fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (; folder.has_relative_path(); folder = folder.parent_path()) {
    for (const fs::path& data : {folder, folder / "share" / "gputwin"}) {
      if (holds_data(data)) return data;
    }
  }
  return GPUTWIN_SOURCE_DIR;
}

}  // namespace gputwin
