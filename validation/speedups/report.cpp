#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "validation/speedups/speedups.h"

namespace gputwin {
namespace {

constexpr double kSpeedupPoints = 0.04, kHiddenPoints = 0.10, kApart = 1.05;

bool has_hidden(const ScoredSpeedup& s) { return s.times.plain_s > s.times.free_s; }

// How many published figures of a group are met, and in how many rows the faster way is known.
struct Count {
  int speedups = 0, speedups_met = 0, hidden = 0, hidden_met = 0, order = 0, rows = 0;
};

void add(const ScoredSpeedup& s, Count& c) {
  const double predicted = s.times.speedup();
  ++c.rows;
  if (s.row.speedup) {
    ++c.speedups;
    c.speedups_met += std::abs(predicted - *s.row.speedup) <= kSpeedupPoints;
  }
  if (s.row.hidden) {
    ++c.hidden;
    c.hidden_met += std::abs(s.times.hidden() - *s.row.hidden) <= kHiddenPoints;
  }
  // A published hidden share above 0 is a gain.
  c.order += (predicted > 1) == (s.row.speedup.value_or(2.0) > 1);
}

std::string pair(double predicted, const std::optional<double>& published, double unit,
                 const char* form) {
  const std::string p = fmt::format(fmt::runtime(form), predicted * unit);
  return p + " " + (published ? fmt::format(fmt::runtime(form), *published * unit) : "     -");
}

std::vector<ScoredSpeedup> of_group(const std::vector<ScoredSpeedup>& scored,
                                    const std::string& group) {
  std::vector<ScoredSpeedup> out;
  for (const ScoredSpeedup& s : scored) {
    if (s.row.group == group) out.push_back(s);
  }
  return out;
}

}  // namespace

PairCount pairs_in_order(const std::vector<ScoredSpeedup>& scored, double apart) {
  struct Way {
    double published = 1, predicted = 1;
  };
  std::map<std::pair<std::string, std::string>, std::vector<Way>> sets;
  for (const ScoredSpeedup& s : scored) {
    if (!s.row.speedup) continue;
    std::vector<Way>& ways = sets[{s.row.group, s.row.set}];
    if (ways.empty()) ways.push_back({});  // the job as it is
    ways.push_back({*s.row.speedup, s.times.speedup()});
  }
  PairCount count;
  for (const auto& [set, ways] : sets) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const bool i_faster = ways[i].published > ways[j].published;
        const Way& fast = ways[i_faster ? i : j];
        const Way& slow = ways[i_faster ? j : i];
        if (fast.published <= apart * slow.published) continue;
        ++count.pairs;
        count.right += fast.predicted > slow.predicted;
      }
    }
  }
  return count;
}

std::string speedups_report(const std::vector<ScoredSpeedup>& scored) {
  std::string out = fmt::format(
      "{:<34} {:>9} {:>9}   {:<13}   {:<13}\n{:<34} {:>9} {:>9}   {}   {}\n", "", "plain",
      "variant", "speed-up", "hidden %", "", "ms", "ms", " pred. publ.", " pred. publ.");
  std::map<std::string, Count> groups;
  for (const ScoredSpeedup& s : scored) {
    const SpeedupTimes& t = s.times;
    out += fmt::format("{:<34} {:>9.3f} {:>9.3f}   {}   {}\n", s.row.id, 1e3 * t.plain_s,
                       1e3 * t.variant_s, pair(t.speedup(), s.row.speedup, 1, "{:6.3f}"),
                       has_hidden(s) ? pair(t.hidden(), s.row.hidden, 100, "{:6.1f}") : "");
    add(s, groups[s.row.group]);
  }
  out += "\n";
  for (const auto& [group, c] : groups) {
    out += fmt::format("{:<12} the faster way is right in {} of {}", group, c.order, c.rows);
    if (c.speedups > 0) {
      out += fmt::format("; speed-up within {:.0f} points in {} of {}", 100 * kSpeedupPoints,
                         c.speedups_met, c.speedups);
    }
    if (const PairCount p = pairs_in_order(of_group(scored, group), kApart); p.pairs > 0) {
      out += fmt::format("; pairs more than {:.0f} % apart in order: {} of {}", 100 * (kApart - 1),
                         p.right, p.pairs);
    }
    if (c.hidden > 0) {
      out += fmt::format("; hidden share within {:.0f} points in {} of {}", 100 * kHiddenPoints,
                         c.hidden_met, c.hidden);
    }
    out += "\n";
  }
  const PairCount all = pairs_in_order(scored, kApart);
  if (groups.size() > 1 && all.pairs > 0) {
    out += fmt::format("all groups: pairs more than {:.0f} % apart in order: {} of {}\n",
                       100 * (kApart - 1), all.right, all.pairs);
  }
  return out;
}

std::string speedups_json(const std::vector<ScoredSpeedup>& scored) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  nlohmann::ordered_json groups = nlohmann::ordered_json::object();
  for (const ScoredSpeedup& s : scored) {
    nlohmann::ordered_json row{{"id", s.row.id},
                               {"group", s.row.group},
                               {"set", s.row.set},
                               {"source", s.row.source},
                               {"plain_s", s.times.plain_s},
                               {"variant_s", s.times.variant_s},
                               {"speedup", s.times.speedup()}};
    if (has_hidden(s)) row["free_s"] = s.times.free_s, row["hidden"] = s.times.hidden();
    if (s.row.speedup) row["published_speedup"] = *s.row.speedup;
    if (s.row.hidden) row["published_hidden"] = *s.row.hidden;
    rows.push_back(std::move(row));
    if (groups.contains(s.row.group)) continue;
    const PairCount pairs = pairs_in_order(of_group(scored, s.row.group), kApart);
    groups[s.row.group] = {{"pairs", pairs.pairs}, {"pairs_in_order", pairs.right}};
  }
  return nlohmann::ordered_json{{"rows", rows}, {"groups", groups}}.dump(1) + "\n";
}

}  // namespace gputwin
