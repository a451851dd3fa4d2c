// A comparison of two runs as text, as JSON and as a page.
#pragma once

#include <string>

#include "sim/trace/run_comparison.h"

namespace gputwin {

/// What explains the difference B - A, the largest part first: whole sentences, each with the
/// operations that make most of it. Parts below 0.5 % of A's iteration are left out.
std::vector<std::string> explanation(const RunComparison& c);

/// At most 100 columns. `a`, `b`: what the runs are called.
std::string comparison_report(const RunComparison& c, const std::string& a, const std::string& b);
std::string comparison_json(const RunComparison& c, const std::string& a, const std::string& b);
/// One file without any other: the waterfall from A to B, errors by kind, tables.
std::string comparison_page(const RunComparison& c, const std::string& a, const std::string& b);

}  // namespace gputwin
