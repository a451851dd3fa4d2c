// Tables of scored checks.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "validation/cases/cases.h"

namespace gputwin::cases {
namespace {

struct Line {
  std::string category;
  std::set<std::string> cases;
  int checks = 0, held = 0, failed = 0, not_scorable = 0;
  int numeric = 0, numeric_held = 0;  // of those scored

  void add(const Scored& s) {
    cases.insert(s.id);
    ++checks;
    if (s.verdict == Verdict::NotScorable) {
      ++not_scorable;
      return;
    }
    const bool good = s.verdict == Verdict::Held;
    (good ? held : failed) += 1;
    numeric += s.numeric ? 1 : 0;
    numeric_held += s.numeric && good ? 1 : 0;
  }
};

// Categories in the order of their first check, then all together.
std::vector<Line> lines_of(const std::vector<Scored>& scored) {
  std::vector<Line> lines;
  Line total;
  total.category = "all";
  for (const Scored& s : scored) {
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&](const Line& l) { return l.category == s.category; });
    if (line == lines.end()) {
      lines.emplace_back().category = s.category;
      line = lines.end() - 1;
    }
    line->add(s);
    total.add(s);
  }
  lines.push_back(std::move(total));
  return lines;
}

std::string percent(int part, int whole) {
  return whole == 0 ? "-" : fmt::format("{:.0f} %", 100.0 * part / whole);
}

const char* word(Verdict v) {
  switch (v) {
    case Verdict::Held: return "held";
    case Verdict::Failed: return "failed";
    case Verdict::NotScorable: return "not scorable";
  }
  return "";
}

}  // namespace

std::string cases_report(const std::vector<Scored>& scored) {
  std::string out = fmt::format("{:<18}{:>6}{:>8}{:>6}{:>8}{:>14}{:>14}\n", "category", "cases",
                                "checks", "held", "failed", "not scorable", "numbers held");
  for (const Line& l : lines_of(scored)) {
    out +=
        fmt::format("{:<18}{:>6}{:>8}{:>6}{:>8}{:>14}{:>14}\n", l.category, l.cases.size(),
                    l.checks, l.held, l.failed, l.not_scorable, percent(l.numeric_held, l.numeric));
  }
  std::map<std::string, int> reasons;
  for (const Scored& s : scored) {
    if (s.verdict == Verdict::NotScorable) ++reasons[s.reason];
  }
  if (!reasons.empty()) out += "\nNot scorable, because:\n";
  for (const auto& [reason, count] : reasons) out += fmt::format("{:>5}  {}\n", count, reason);
  return out;
}

std::string cases_listing(const std::vector<Scored>& scored) {
  std::string out = fmt::format("{:<8}{:<28}{:<8}{:>14}{:>14}{:>7}  {}\n", "case", "metric", "op",
                                "expected", "predicted", "tol", "verdict");
  for (const Scored& s : scored) {
    const std::string expected = s.numeric ? s.expected + " " + s.unit : s.expected;
    out += fmt::format("{:<8}{:<28}{:<8}{:>14}{:>14}{:>6.0f}%  {}{}{}\n", s.id, s.metric, s.op,
                       expected, s.predicted, s.tolerance * 100, word(s.verdict),
                       s.reason.empty() ? "" : ": ", s.reason);
  }
  return out;
}

std::string cases_json(const std::vector<Scored>& scored) {
  Json out{{"checks", Json::array()}, {"categories", Json::array()}};
  for (const Scored& s : scored) {
    out["checks"].push_back({{"id", s.id},
                             {"category", s.category},
                             {"metric", s.metric},
                             {"op", s.op},
                             {"expected", s.expected},
                             {"unit", s.unit},
                             {"tolerance", s.tolerance},
                             {"predicted", s.predicted.empty() ? Json() : Json(s.predicted)},
                             {"numeric", s.numeric},
                             {"verdict", word(s.verdict)},
                             {"reason", s.reason}});
  }
  for (const Line& l : lines_of(scored)) {
    out["categories"].push_back({{"category", l.category},
                                 {"cases", l.cases.size()},
                                 {"checks", l.checks},
                                 {"held", l.held},
                                 {"failed", l.failed},
                                 {"not_scorable", l.not_scorable},
                                 {"numeric", l.numeric},
                                 {"numeric_held", l.numeric_held}});
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

double failed_share(const std::vector<Scored>& scored) {
  const Line all = lines_of(scored).back();
  const int counted = all.held + all.failed;
  return counted == 0 ? 0.0 : static_cast<double>(all.failed) / counted;
}

}  // namespace gputwin::cases
