#include "sim/app/comparison_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "sim/app/html_text.h"
#include "sim/app/report.h"
#include "sim/trace/slice_kind.h"

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kWorthSaying = 0.005;  // of A's iteration
constexpr std::size_t kMostOps = 3, kMostRows = 12, kMostUnmatched = 5;

double total(const PartTimes& parts) { return std::accumulate(parts.begin(), parts.end(), 0.0); }

std::string signed_time(double seconds) {
  return (seconds < 0 ? "-" : "+") + human_time(std::abs(seconds));
}

/// Parts by the size of their change, largest first.
std::vector<std::size_t> by_change(const RunComparison& c) {
  std::vector<std::size_t> order(kTimeParts);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) {
    return std::abs(c.b[x] - c.a[x]) > std::abs(c.b[y] - c.a[y]);
  });
  return order;
}

bool belongs(const OpTimes& op, TimePart part) {
  return part == TimePart::Wait ? op.wait_a + op.wait_b > 0 : part_of(op.kind) == part;
}

double change_of(const OpTimes& op, TimePart part) {
  return part == TimePart::Wait ? op.wait_b - op.wait_a : op.time_b - op.time_a;
}

std::string op_name(const std::string& phase, const std::string& op) {
  return phase.empty() ? op : phase + " " + op;
}

/// "forward fc1 +1.20 ms (24 times in A, 24 in B)", of the operations that moved `part` most.
std::string movers(const RunComparison& c, TimePart part, double change) {
  std::vector<const OpTimes*> ops;
  for (const OpTimes& op : c.ops) {
    const double moved = change_of(op, part);
    if (belongs(op, part) && moved * change > 0) ops.push_back(&op);
  }
  std::stable_sort(ops.begin(), ops.end(), [&](const OpTimes* x, const OpTimes* y) {
    return std::abs(change_of(*x, part)) > std::abs(change_of(*y, part));
  });
  std::string text;
  for (std::size_t i = 0; i < ops.size() && i < kMostOps; ++i) {
    const OpTimes& op = *ops[i];
    text += fmt::format("{}{} {}", i == 0 ? ": " : ", ", op_name(op.phase, op.op),
                        signed_time(change_of(op, part)));
    if (std::abs(op.count_a - op.count_b) > 0.01) {
      text += fmt::format(" ({:.4g} times in A, {:.4g} in B)", op.count_a, op.count_b);
    }
  }
  return text;
}

std::string ranks_text(const RunComparison& c) {
  std::string text =
      fmt::format("{} ranks in A, {} in B, {} compared", c.ranks_a, c.ranks_b, c.ranks.size());
  if (c.ranks_by_order) text += ", paired by order since no number is in both";
  return text;
}

/// How operations found their counterparts: whole sentences.
std::vector<std::string> pairing_text(const RunComparison& c) {
  const auto pairs = [&c](PairedBy by) { return c.paired_by[static_cast<std::size_t>(by)]; };
  std::vector<std::string> lines{fmt::format(
      "pairs: {} by name, {} by place, {} by kind and order; alone: {} in A, {} in B",
      pairs(PairedBy::Name), pairs(PairedBy::Place), pairs(PairedBy::Order), c.alone_a, c.alone_b)};
  std::map<SliceKind, const Unordered*> worst;  // one rank stands for all
  for (const Unordered& u : c.unordered) worst.emplace(u.kind, &u);
  for (const auto& [kind, u] : worst) {
    lines.push_back(fmt::format(
        "not paired: {}, {:.6g} an iteration in A and {:.6g} in B on rank {} (by order only within "
        "{:.0f} %)",
        label(kind), u->a, u->b, u->rank, 100 * kOrderTolerance));
  }
  return lines;
}

std::string straggler_text(const RunComparison& c, const std::vector<std::size_t>& found,
                           char run) {
  std::string list;
  for (const std::size_t i : found) {
    list += (list.empty() ? "" : ", ") + std::to_string(c.ranks[i].rank);
  }
  return fmt::format(
      "in {} rank {} works more than 10 % and one standard deviation longer than "
      "the mean of all",
      run, list);
}

Json json_of(const KindErrors& k) {
  return {{"pairs", k.pairs},     {"time_a_s", k.time_a},        {"time_b_s", k.time_b},
          {"mean_error", k.mean}, {"mean_absolute", k.absolute}, {"p50_absolute", k.median},
          {"p95_absolute", k.p95}};
}

Json json_of(const std::vector<Unmatched>& list) {
  Json rows = Json::array();
  for (const Unmatched& u : list) {
    rows.push_back({{"op", u.op},
                    {"phase", u.phase},
                    {"kind", label(u.kind)},
                    {"count", u.count},
                    {"time_s", u.time_s}});
  }
  return rows;
}

std::string kind_row(std::string_view name, const KindErrors& k) {
  return fmt::format("  {:<14} {:>8} {:>11} {:>11} {:>+8.1f} % {:>7.1f} % {:>7.1f} % {:>7.1f} %\n",
                     name, k.pairs, human_time(k.time_a), human_time(k.time_b), 100 * k.mean,
                     100 * k.absolute, 100 * k.median, 100 * k.p95);
}

std::string unmatched_text(const std::vector<Unmatched>& list, char run) {
  if (list.empty()) return "";
  std::string text = fmt::format("\nIn {} alone\n", run);
  for (std::size_t i = 0; i < list.size() && i < kMostUnmatched; ++i) {
    text +=
        fmt::format("  {:>8} x {:<50} {}\n", list[i].count,
                    op_name(list[i].phase, list[i].op).substr(0, 50), human_time(list[i].time_s));
  }
  if (list.size() > kMostUnmatched) {
    text += fmt::format("  and {} other operations\n", list.size() - kMostUnmatched);
  }
  return text;
}

/// The waterfall as SVG: A, then what each part adds or takes away, then B.
std::string waterfall(const RunComparison& c) {
  constexpr double kWidth = 760, kRow = 26, kLeft = 230, kRight = 110;
  std::vector<std::size_t> parts;
  for (const std::size_t p : by_change(c)) {
    if (c.a[p] != c.b[p]) parts.push_back(p);
  }
  double most = std::max(total(c.a), total(c.b)), at = total(c.a);
  for (const std::size_t p : parts) most = std::max(most, at += c.b[p] - c.a[p]);
  const double scale = most > 0 ? (kWidth - kLeft - kRight) / most : 0;
  double y = 4;
  std::string svg = fmt::format(R"(<svg viewBox="0 0 {} {}" role="img"><title>From A to B</title>)",
                                kWidth, kRow * static_cast<double>(parts.size() + 2) + 8);
  const auto bar = [&](const std::string& name, double from, double to, const char* colour,
                       const std::string& value) {
    const double left = std::min(from, to), right = std::max(from, to);
    svg += fmt::format(
        R"(<text x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text><rect x="{:.2f}" y="{:.1f}" )"
        R"(width="{:.2f}" height="{:.1f}" fill="{}"/><text x="{:.1f}" y="{:.1f}">{}</text>)",
        kLeft - 8, y + kRow * 0.65, html_text(name), kLeft + scale * left, y + 3,
        std::max(1.0, scale * (right - left)), kRow - 6, colour, kLeft + scale * right + 6,
        y + kRow * 0.65, value);
    y += kRow;
  };
  bar("A", 0, total(c.a), "#7f7f7f", human_time(total(c.a)));
  at = total(c.a);
  for (const std::size_t p : parts) {
    const double change = c.b[p] - c.a[p];
    bar(std::string(label(static_cast<TimePart>(p))), at, at + change,
        change > 0 ? "#d55e00" : "#009e73", signed_time(change));
    at += change;
  }
  bar("B", 0, total(c.b), "#0072b2", human_time(total(c.b)));
  return svg + "</svg>\n";
}

}  // namespace

std::vector<std::string> explanation(const RunComparison& c) {
  std::vector<std::string> lines;
  const double whole = c.iteration_b - c.iteration_a;
  for (const std::size_t p : by_change(c)) {
    const auto part = static_cast<TimePart>(p);
    const double change = c.b[p] - c.a[p];
    if (std::abs(change) < kWorthSaying * c.iteration_a) continue;
    std::string line = fmt::format("{} takes {} {} in B", label(part), human_time(std::abs(change)),
                                   change > 0 ? "more" : "less");
    if (std::abs(whole) > kWorthSaying * c.iteration_a) {
      line += fmt::format(", {:.0f} % of the difference", 100 * change / whole);
    }
    lines.push_back(line + movers(c, part, change));
  }
  if (!c.stragglers_b.empty()) lines.push_back(straggler_text(c, c.stragglers_b, 'B'));
  if (!c.stragglers_a.empty()) lines.push_back(straggler_text(c, c.stragglers_a, 'A'));
  if (lines.empty()) lines.emplace_back("nothing differs by more than 0.5 % of the iteration");
  return lines;
}

std::string comparison_report(const RunComparison& c, const std::string& a, const std::string& b) {
  std::string text = fmt::format("A  {}\nB  {}\n  {}\n\n", a, b, ranks_text(c));
  text += fmt::format("  iteration   A {}   B {}   {:+.1f} %   (mean of {} and {})\n\n",
                      human_time(c.iteration_a), human_time(c.iteration_b),
                      100 * (c.iteration_b / c.iteration_a - 1), c.iterations_a, c.iterations_b);
  text += fmt::format("  {:<30} {:>12} {:>12} {:>12}\n", "where the time goes", "A", "B", "B - A");
  for (std::size_t p = 0; p < kTimeParts; ++p) {
    if (c.a[p] == 0 && c.b[p] == 0) continue;
    text += fmt::format("  {:<30} {:>12} {:>12} {:>12}\n", label(static_cast<TimePart>(p)),
                        human_time(c.a[p]), human_time(c.b[p]), signed_time(c.b[p] - c.a[p]));
  }
  text += "\nWhat explains the difference\n";
  int number = 0;
  for (const std::string& line : explanation(c)) text += fmt::format("  {}. {}\n", ++number, line);
  text += fmt::format("\n  {:<14} {:>8} {:>11} {:>11} {:>10} {:>9} {:>9} {:>9}\n", "A against B",
                      "pairs", "A", "B", "mean", "absolute", "p50", "p95");
  for (const KindErrors& k : c.kinds) text += kind_row(label(k.kind), k);
  text += kind_row("all", c.all);
  for (const std::string& line : pairing_text(c)) text += "  " + line + "\n";
  if (c.wait_is_bound) {
    text +=
        "  no flows link the members of communications: waiting is what they took beyond the "
        "shortest alike\n";
  }
  text += unmatched_text(c.only_a, 'A') + unmatched_text(c.only_b, 'B');
  for (const auto& [from, to] : c.renamed) text += "  taken as one: " + from + " = " + to + "\n";
  return text;
}

std::string comparison_json(const RunComparison& c, const std::string& a, const std::string& b) {
  Json parts = Json::array(), kinds = Json::array(), ops = Json::array(), ranks = Json::array();
  const auto part_name = [](std::size_t p) { return label(static_cast<TimePart>(p)); };
  for (std::size_t p = 0; p < kTimeParts; ++p) {
    parts.push_back({{"part", part_name(p)}, {"a_s", c.a[p]}, {"b_s", c.b[p]}});
  }
  for (const KindErrors& k : c.kinds) {
    Json row = json_of(k);
    row["kind"] = label(k.kind);
    kinds.push_back(std::move(row));
  }
  for (const OpTimes& o : c.ops) {
    ops.push_back({{"op", o.op},
                   {"phase", o.phase},
                   {"kind", label(o.kind)},
                   {"count_a", o.count_a},
                   {"count_b", o.count_b},
                   {"time_a_s", o.time_a},
                   {"time_b_s", o.time_b},
                   {"wait_a_s", o.wait_a},
                   {"wait_b_s", o.wait_b}});
  }
  for (const RankTimes& r : c.ranks) {
    Json row{{"rank", r.rank}, {"busy_a_s", r.busy_a}, {"busy_b_s", r.busy_b}};
    for (std::size_t p = 0; p < kTimeParts; ++p) {
      row["parts"].push_back({{"part", part_name(p)}, {"a_s", r.a[p]}, {"b_s", r.b[p]}});
    }
    ranks.push_back(std::move(row));
  }
  Json unordered = Json::array();
  for (const Unordered& u : c.unordered) {
    unordered.push_back({{"rank", u.rank}, {"kind", label(u.kind)}, {"a", u.a}, {"b", u.b}});
  }
  const Json json{{"schema", 1},
                  {"a", a},
                  {"b", b},
                  {"iteration_a_s", c.iteration_a},
                  {"iteration_b_s", c.iteration_b},
                  {"iterations_a", c.iterations_a},
                  {"iterations_b", c.iterations_b},
                  {"parts", parts},
                  {"explanation", explanation(c)},
                  {"errors", {{"all", json_of(c.all)}, {"kinds", kinds}}},
                  {"pairing",
                   {{"by_name", c.paired_by[static_cast<std::size_t>(PairedBy::Name)]},
                    {"by_place", c.paired_by[static_cast<std::size_t>(PairedBy::Place)]},
                    {"by_order", c.paired_by[static_cast<std::size_t>(PairedBy::Order)]},
                    {"alone_a", c.alone_a},
                    {"alone_b", c.alone_b},
                    {"too_different", unordered}}},
                  {"ops", ops},
                  {"ranks", ranks},
                  {"only_a", json_of(c.only_a)},
                  {"only_b", json_of(c.only_b)},
                  {"renamed", c.renamed},
                  {"wait_is_bound", c.wait_is_bound}};
  return json.dump(2) + "\n";
}

std::string comparison_page(const RunComparison& c, const std::string& a, const std::string& b) {
  std::string page = html_head("Comparison of two runs");
  page += fmt::format("<h1>Two runs</h1><p>A: {}<br>B: {}<br>{}</p>\n", html_text(a), html_text(b),
                      ranks_text(c));
  page += fmt::format("<p>An iteration takes {} in A and {} in B, {:+.1f} %.</p>\n",
                      human_time(c.iteration_a), human_time(c.iteration_b),
                      100 * (c.iteration_b / c.iteration_a - 1));
  page += "<h2>From A to B</h2>\n" + waterfall(c) + "<h2>What explains the difference</h2><ol>\n";
  for (const std::string& line : explanation(c)) page += "<li>" + html_text(line) + "</li>\n";
  page +=
      "</ol><h2>Errors of A by kind, waiting apart</h2><table><tr><th>kind<th>pairs<th>A<th>B"
      "<th>mean<th>mean absolute<th>p50<th>p95</tr>\n";
  const auto kind = [&](std::string_view name, const KindErrors& k) {
    page += fmt::format(
        "<tr><td>{}<td>{}<td>{}<td>{}<td>{:+.1f} %<td>{:.1f} %<td>{:.1f} %<td>"
        "{:.1f} %</tr>\n",
        name, k.pairs, human_time(k.time_a), human_time(k.time_b), 100 * k.mean, 100 * k.absolute,
        100 * k.median, 100 * k.p95);
  };
  for (const KindErrors& k : c.kinds) kind(label(k.kind), k);
  kind("all", c.all);
  page += "</table>";
  for (const std::string& line : pairing_text(c)) page += "<p>" + html_text(line) + "</p>\n";
  page +=
      "<h2>Operations that changed most, per rank and iteration</h2><table><tr><th>"
      "operation<th>A<th>B<th>B - A<th>waiting in A<th>in B</tr>\n";
  for (std::size_t i = 0; i < c.ops.size() && i < 4 * kMostRows; ++i) {
    const OpTimes& o = c.ops[i];
    page +=
        fmt::format("<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>\n",
                    html_text(op_name(o.phase, o.op)), human_time(o.time_a), human_time(o.time_b),
                    signed_time(o.time_b - o.time_a), human_time(o.wait_a), human_time(o.wait_b));
  }
  page += "</table>\n";
  for (const auto& [list, run] : {std::pair{&c.only_a, 'A'}, {&c.only_b, 'B'}}) {
    if (list->empty()) continue;
    page +=
        fmt::format("<h2>In {} alone</h2><table><tr><th>operation<th>count<th>time</tr>\n", run);
    for (const Unmatched& u : *list) {
      page += fmt::format("<tr><td>{}<td>{}<td>{}</tr>\n", html_text(op_name(u.phase, u.op)),
                          u.count, human_time(u.time_s));
    }
    page += "</table>\n";
  }
  return page + "</body></html>\n";
}

}  // namespace gputwin
