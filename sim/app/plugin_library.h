// Loads strategies from shared libraries (Boost.DLL).
#pragma once

#include <filesystem>

#include "strategies/plugin.h"

namespace gputwin {

/// The plugin in the shared library at `path`; loaded once, and never unloaded.
///
/// Errors  InputError if there is no such file, it is no shared library or no plugin of gputwin, or
///         it was built for another gputwin: then nothing of it but its stamp has run.
const Plugin* load_plugin(const std::filesystem::path& path);

}  // namespace gputwin
