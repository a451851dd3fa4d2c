// Writes a timeline from memory as a trace that Perfetto and chrome://tracing open.
#pragma once

#include <filesystem>

#include "sim/trace/store.h"

namespace gputwin {

/// Processes, threads, slices with phase and arguments, flows and counters; times exact to the
/// picosecond. Whole or not at all; compressed where the name ends in ".gz". Same store, same
/// bytes.
///
/// Fails   InputError naming the path when it cannot be written.
void write_chrome(const Store& store, const std::filesystem::path& path);

}  // namespace gputwin
