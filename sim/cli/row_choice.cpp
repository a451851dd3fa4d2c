#include "sim/cli/row_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "sim/core/error.h"

namespace gputwin::cli {
namespace {

bool matches(const RowFilter& filter, const std::string& wanted, const std::string& word) {
  return filter.whole ? word == wanted : word.find(wanted) != std::string::npos;
}

// "a, b, c", of very many the first.
std::string listed(const std::set<std::string>& words) {
  constexpr std::ptrdiff_t kMost = 40;
  const auto count = static_cast<std::ptrdiff_t>(words.size());
  const auto end = std::next(words.begin(), std::min(count, kMost));
  const std::string more = count > kMost ? fmt::format(" and {} more", count - kMost) : "";
  return fmt::format("{}{}", fmt::join(words.begin(), end, ", "), more);
}

}  // namespace

bool RowFilter::leaves_out(const std::string& word) {
  known.insert(word);
  return !wanted.empty() && std::none_of(wanted.begin(), wanted.end(), [&](const std::string& w) {
    return matches(*this, w, word);
  });
}

void require_rows(const std::vector<std::string>& files, bool any_read, bool any_left,
                  const std::vector<RowFilter>& filters) {
  if (!any_read) {
    throw InputError(fmt::format("{}", fmt::join(files, ", ")), "", "", "has no rows",
                     "give a file with at least one row");
  }
  for (const RowFilter& filter : filters) {
    for (const std::string& wanted : filter.wanted) {
      const auto is_of = [&](const std::string& word) { return matches(filter, wanted, word); };
      if (std::any_of(filter.known.begin(), filter.known.end(), is_of)) continue;
      throw InputError(filter.option, "", wanted, "is that of no row",
                       "the files have " + listed(filter.known));
    }
  }
  if (any_left) return;
  std::vector<std::string> options;
  for (const RowFilter& filter : filters) {
    if (!filter.wanted.empty()) options.push_back(filter.option);
  }
  throw InputError(fmt::format("{}", fmt::join(options, ", ")), "", "", "together leave no row",
                   "leave one of them out");
}

}  // namespace gputwin::cli
