// What a shared library must provide to take part in make_plan (gputwin run --plugin SO).
//
// How to write one: strategies/PLUGINS.md. Types of the standard library and of sim/core cross the
// border, so library and program must be built alike: the stamp says how each was, and a library
// with another one is refused before anything in it runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/error.h"
#include "sim/core/job.h"
#include "sim/core/layout.h"
#include "sim/core/segment.h"
#include "strategies/schedules/table.h"

namespace gputwin {

/// Steps of a strategy; each is called once per plan, none keeps state. Null: left as it is.
struct Plugin {
  const char* name = "";
  const char* what = "";  // one clause, for the reader of a result

  /// Rewrites the segments after recomputation; all members of a communicator alike.
  Outcome<Lowered> (*segments)(Lowered lowered, const Job& job) = nullptr;

  /// One table per pipeline stage instead of those of layout.schedule: every pass of every
  /// micro-batch once. Splits the backward pass only if layout.schedule does.
  Outcome<std::vector<StageTable>> (*schedule)(const Layout& layout,
                                               std::int32_t micro_batches) = nullptr;

  /// Rewrites the finished plan.
  Outcome<Plan> (*plan)(Plan plan, const Layout& layout, const Job& job) = nullptr;
};

/// Raised whenever a type below, or what a step may rely on, changes its meaning but not its size.
inline constexpr int kPluginAbi = 1;
inline constexpr const char* kPluginRelease = "0.1.0";  // of gputwin

/// How the code that calls this was built: release, ABI, compiler, standard library, type sizes.
inline std::string plugin_stamp() {
  std::string stamp = "gputwin " + std::string(kPluginRelease) + ", plugin ABI " +
                      std::to_string(kPluginAbi) + ", compiler " + __VERSION__;
#ifdef _GLIBCXX_RELEASE
  stamp += ", libstdc++ " + std::to_string(_GLIBCXX_RELEASE) + " strings " +
           std::to_string(_GLIBCXX_USE_CXX11_ABI);
#endif
  stamp += ", sizes";
  for (const std::size_t size :
       {sizeof(void*), sizeof(std::string),   sizeof(Op),         sizeof(View),
        sizeof(Call),  sizeof(Name),          sizeof(Buffer),     sizeof(Parameter),
        sizeof(Input), sizeof(Program),       sizeof(Rank),       sizeof(Plan),
        sizeof(Chunk), sizeof(StageSegments), sizeof(Lowered),    sizeof(Layout),
        sizeof(Job),   sizeof(Pass),          sizeof(Infeasible), sizeof(Plugin)}) {
    stamp += " " + std::to_string(size);
  }
  return stamp;
}

}  // namespace gputwin

/// Exports `plugin`, a gputwin::Plugin with static lifetime, from a shared library. Once a library.
#define GPUTWIN_PLUGIN(plugin)                                                                \
  extern "C" __attribute__((visibility("default"))) const char* gputwin_plugin_stamp() {      \
    static const std::string stamp = gputwin::plugin_stamp();                                 \
    return stamp.c_str();                                                                     \
  }                                                                                           \
  extern "C" __attribute__((visibility("default"))) const gputwin::Plugin* gputwin_plugin() { \
    return &(plugin);                                                                         \
  }                                                                                           \
  static_assert(true, "a semicolon follows")
