// Our own invariants. A broken one is our bug: it throws in every build, and `main` exits with 4.
#pragma once

#include <stdexcept>
#include <string>

namespace gputwin {

/// Thrown by GPUTWIN_CHECK. Never caught outside `main`, the GUI and worker loops.
struct InvariantBroken : std::logic_error {
  using std::logic_error::logic_error;
};

[[noreturn]] inline void invariant_broken(const char* condition, const std::string& why,
                                          const char* file, int line) {
  throw InvariantBroken(std::string(file) + ":" + std::to_string(line) + ": " + condition +
                        " must hold: " + why);
}

}  // namespace gputwin

#define GPUTWIN_CHECK(condition, why) \
  ((condition) ? void() : ::gputwin::invariant_broken(#condition, (why), __FILE__, __LINE__))
