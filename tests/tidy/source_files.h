// The text files of the repository, for tests that read them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gputwin::tidy {

struct SourceFile {
  std::string path;  // relative to the repository, with '/'
  std::vector<std::string> lines;

  std::string folder() const;
  std::string name() const;
  bool is_cpp() const;  // .h or .cpp
  bool is_header() const;
};

/// All text files below the repository's own folders and at its top, sorted by path. Left out:
/// build output, hidden folders but .ci, measured data (CSV) and generated golden summaries.
const std::vector<SourceFile>& source_files();

/// What stands in the #include of a line: `"sim/core/plan.h"` or `<vector>`, with quotes or
/// brackets; else "".
std::string included(const std::string& line);

/// Columns of a line, counting characters, not bytes.
std::size_t columns(std::string_view line);

bool starts_with(std::string_view text, std::string_view start);
bool ends_with(std::string_view text, std::string_view end);

}  // namespace gputwin::tidy
