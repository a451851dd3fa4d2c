// Reads traces in Chrome's JSON format: those of PyTorch's profiler (Kineto), of gputwin, and what
// else Perfetto opens.
#pragma once

#include <filesystem>

#include "sim/trace/store.h"

namespace gputwin {

/// Plain or gzip, an array of events or an object with "traceEvents". Complete events (X), begin
/// and end pairs (B, E), flows (s, t, f), counters (C) and names (M) are taken; what cannot be is
/// counted in Store::warnings. Times are exact to the picosecond, counted from the first event.
///
/// Fails   InputError for a file that cannot be read, is no JSON, holds no slice, or is larger than
///         4 GB unpacked (the reader's limit).
Store import_chrome(const std::filesystem::path& path);

/// A trace of either kind, recognised by its first bytes: .gtr, else Chrome's JSON.
Store open_trace(const std::filesystem::path& path);

/// "12.345" microseconds as picoseconds relative to `base_us`; false if it is no number or too far
/// away. Digits beyond the picosecond are cut.
bool parse_microseconds(std::string_view text, std::int64_t base_us, Ps& out);

}  // namespace gputwin
