// Rows of validation files, as options choose them.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace gputwin::cli {

/// An option that keeps rows by a word of theirs.
struct RowFilter {
  std::string option;               // "--group"
  std::vector<std::string> wanted;  // as given; empty: all rows
  std::set<std::string> known{};    // the word of every row that was read
  bool whole = false;               // a word must be equal, not contained

  /// True if the filter leaves a row of this word out. Notes the word.
  bool leaves_out(const std::string& word);
};

/// Throws InputError if `files` have no rows, if a wanted word is that of no row (naming those
/// there are), or if the filters together leave none.
void require_rows(const std::vector<std::string>& files, bool any_read, bool any_left,
                  const std::vector<RowFilter>& filters);

}  // namespace gputwin::cli
