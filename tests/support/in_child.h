// Runs a piece of a test in a process of its own: SimGrid allows one engine per process, and aborts
// it on many mistakes.
#pragma once

#include <functional>
#include <string>

namespace gputwin::test {

struct ChildResult {
  bool ok = false;
  std::string text;  // what the work returned, or else what went wrong
};

/// Forks, runs `work` in the child and returns its text. A crash, an exception or `timeout_s`
/// seconds without an end are reported, not passed on. The child leaves by _exit: no destructor and
/// no test hook runs in it.
ChildResult in_child(const std::function<std::string()>& work, double timeout_s = 60.0);

}  // namespace gputwin::test
