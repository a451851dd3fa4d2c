// Finds the functions of a C++ file, by its braces.
#pragma once

#include <string>
#include <vector>

namespace gputwin::tidy {

struct Function {
  std::string head;       // text before the opening brace, blanks folded
  std::size_t line = 0;   // of the opening brace, from 1
  std::size_t lines = 0;  // from the opening to the closing brace, both counted
};

/// Functions defined in `lines`, members and tests included, in order of their closing brace.
/// Lambdas count as lines of the function around them.
std::vector<Function> functions(const std::vector<std::string>& lines);

}  // namespace gputwin::tidy
