// The far end of a WorkerPool: a process that runs one scenario after another.
#pragma once

#include <iosfwd>

namespace gputwin {

/// Reads one request per line from `in` until it ends, and writes one answer per line to `out`.
///
/// Request   {"name": text, "scenario": object, "time_limit_s": number, "exact": bool}
///           (exact: simulate every micro-batch, see extrapolate.h); optional "sets": overrides
///           "path=value" in order, "dirs": data directories instead of the shipped one,
///           "plugins": shared libraries (plugin_library.h)
/// Answer    {"status": "ok", "result": result.json}, or
///           {"status": "infeasible" | "input" | "cancelled" | "error", "reason": text}
void serve(std::istream& in, std::ostream& out);

}  // namespace gputwin
