#include "sim/app/plugin_library.h"

#include <dlfcn.h>

#include <boost/dll/shared_library.hpp>
#include <map>
#include <string>
#include <string_view>

#include "sim/core/error.h"

namespace gputwin {
namespace {

namespace dll = boost::dll;
namespace fs = std::filesystem;

static_assert(std::string_view(kPluginRelease) == GPUTWIN_RELEASE,
              "strategies/plugin.h names the release that CMakeLists.txt has");

[[noreturn]] void refuse(const fs::path& path, const std::string& problem, const std::string& fix) {
  throw InputError("--plugin", "", path.string(), problem, fix);
}

dll::shared_library opened(const fs::path& path) {
  std::error_code missing;
  if (!fs::is_regular_file(path, missing)) {
    refuse(path, "is no file", "name the shared library, for example build/libmine.so");
  }
  boost::dll::fs::error_code failed;
  dll::shared_library library;
  library.load(fs::absolute(path), failed, dll::load_mode::rtld_now | dll::load_mode::rtld_local);
  if (failed || !library.is_loaded()) {
    dlopen(fs::absolute(path).c_str(), RTLD_NOW);  // again, since Boost.DLL drops the reason
    const char* why = dlerror();
    refuse(path, "cannot be loaded: " + (why != nullptr ? std::string(why) : failed.message()),
           "build it as strategies/PLUGINS.md says");
  }
  for (const char* symbol : {"gputwin_plugin_stamp", "gputwin_plugin"}) {
    if (library.has(symbol)) continue;
    refuse(path, std::string("is no plugin of gputwin: it has no ") + symbol,
           "end one of its files with GPUTWIN_PLUGIN(...), see strategies/PLUGINS.md");
  }
  const std::string theirs = library.get<const char*()>("gputwin_plugin_stamp")();
  if (theirs != plugin_stamp()) {
    refuse(path,
           "was built for another gputwin\n  the plugin: " + theirs +
               "\n  this program: " + plugin_stamp() + "\n ",
           "build it again with the compiler and the installed package of this program");
  }
  return library;
}

}  // namespace

const Plugin* load_plugin(const fs::path& path) {
  static std::map<fs::path, dll::shared_library> libraries;  // by canonical path
  std::error_code missing;
  const fs::path file = fs::weakly_canonical(path, missing);
  auto found = libraries.find(file);
  if (found == libraries.end()) found = libraries.emplace(file, opened(path)).first;
  return found->second.get<const Plugin*()>("gputwin_plugin")();
}

}  // namespace gputwin
