// The two kinds of wrong that are not our bug: bad input (thrown once) and a job that cannot be (a
// value).
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <variant>

#include "sim/core/units.h"

namespace gputwin {

/// Bad input: where it stands, what it says, what would be right. `main` prints it and exits
/// with 2.
struct InputError : std::runtime_error {
  std::string file;     // as the user named it; "--set" for a command-line override
  std::string pointer;  // JSON pointer (RFC 6901) of the offending value, or "line N"
  std::string value;    // the value found, as text; empty if it is missing
  std::string problem;  // one clause: "does not divide attention heads (96)"
  std::string fix;      // a way out: "nearest legal values: 2, 4"

  InputError(std::string file_, std::string pointer_, std::string value_, std::string problem_,
             std::string fix_)
      : std::runtime_error(file_ + ": " + (pointer_.empty() ? "" : pointer_ + ": ") +
                           (value_.empty() ? "" : value_ + " ") + problem_ +
                           (fix_.empty() ? "" : " (" + fix_ + ")")),
        file(std::move(file_)),
        pointer(std::move(pointer_)),
        value(std::move(value_)),
        problem(std::move(problem_)),
        fix(std::move(fix_)) {}
};

/// A plan that cannot be. Searches list these; `run` prints one and exits with 3.
struct Infeasible {
  std::string reason;  // one sentence
  std::optional<Bytes>
      short_by{};     // memory missing on the fullest rank, where memory is the reason
  std::string fix{};  // what would make it fit
};

template <class T>
using Outcome = std::variant<T, Infeasible>;

}  // namespace gputwin
