// Counts the program's heap allocations, for the report's line on what the simulation cost.
#pragma once

#include <cstdint>

namespace gputwin::cli {

/// Calls of operator new so far.
std::int64_t heap_allocations();

}  // namespace gputwin::cli
