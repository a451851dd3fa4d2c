// The .gtr file: a Store on disk, as columns that are read back in one go.
//
//   "GTRACE\r\n"  version u32  sections u32  bytes of the file u64
//   per section:  kind u32  zero u32  offset u64  bytes u64      all little-endian
//   sections:     tables (titles, processes, tracks, definitions, counters), then columns
//
// Level of detail is not stored: it is made from the columns in a tenth of a second per 5 M slices.
#pragma once

#include <filesystem>

#include "sim/trace/store.h"

namespace gputwin {

inline constexpr std::uint32_t kGtrVersion = 1;

/// Writes `store` to `path`, whole or not at all. Same store, same bytes. Fails: InputError.
void write_gtr(const Store& store, const std::filesystem::path& path);

/// Reads one back; everything in it is checked, so that a damaged or hostile file ends in an
/// InputError that says what is wrong where, never in a crash.
Store read_gtr(const std::filesystem::path& path);

}  // namespace gputwin
