#include "sim/app/sweep_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <set>

#include "sim/app/html_text.h"
#include "sim/app/sweep_table.h"

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kWidth = 760, kHeight = 320, kLeft = 80, kRight = 20, kTop = 16, kBottom = 46;
constexpr std::size_t kMaxSeries = 12, kMaxBars = 60;

// Okabe and Ito's colours, told apart by most people.
constexpr std::array kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
                              "#8a6d00", "#7f7f7f", "#882255", "#117733", "#332288", "#aa4499"};

std::optional<double> number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != 0 || !std::isfinite(value)) return std::nullopt;
  return value;
}

bool has_result(const std::optional<Json>& row) { return row && row->at("status") == "ok"; }

double figure(const Json& row, const char* pointer) {
  return row.value(Json::json_pointer(pointer), 0.0);
}

// The horizontal axis: a path, and where its values lie in [0, 1].
struct XAxis {
  std::string path;
  std::vector<std::string> values;  // distinct, ascending if numbers, else by appearance
  std::vector<double> place;        // of each
};

XAxis axis_of(const Sweep& sweep, const std::string& path) {
  XAxis axis{path, {}, {}};
  bool numbers = true;
  for (const auto& point : sweep.points) {
    const std::string value = value_at(point, path);
    if (std::find(axis.values.begin(), axis.values.end(), value) != axis.values.end()) continue;
    axis.values.push_back(value);
    numbers = numbers && number(value).has_value();
  }
  if (numbers) {
    std::stable_sort(axis.values.begin(), axis.values.end(),
                     [](const auto& a, const auto& b) { return *number(a) < *number(b); });
  }
  const double n = static_cast<double>(axis.values.size());
  const double low = numbers ? *number(axis.values.front()) : 0;
  const double high = numbers ? *number(axis.values.back()) : 0;
  const bool logarithmic = numbers && low > 0 && high / low >= 8;
  for (std::size_t i = 0; i < axis.values.size(); ++i) {
    if (!numbers || high <= low) {
      axis.place.push_back((static_cast<double>(i) + 0.5) / n);
      continue;
    }
    const double v = *number(axis.values[i]);
    axis.place.push_back(logarithmic ? std::log(v / low) / std::log(high / low)
                                     : (v - low) / (high - low));
  }
  return axis;
}

// The first path whose values are numbers, else the first.
std::string path_for_x(const Sweep& sweep) {
  for (const std::string& path : sweep.columns) {
    const auto is_number = [&](const auto& point) { return number(value_at(point, path)); };
    if (std::all_of(sweep.points.begin(), sweep.points.end(), is_number) &&
        axis_of(sweep, path).values.size() > 1)
      return path;
  }
  return sweep.columns.front();
}

// "layout.tp 4, layout.pp 2": everything a point sets but `without`.
std::string label_of(const Sweep& sweep, std::size_t i, const std::string& without) {
  std::string text;
  for (const std::string& path : sweep.columns) {
    if (path == without) continue;
    const std::string value = value_at(sweep.points[i], path);
    if (!value.empty()) text += (text.empty() ? "" : ", ") + path + " " + value;
  }
  return text;
}

struct Series {
  std::string label;
  std::vector<std::size_t> points;  // with a result, from left to right
};

std::vector<Series> series_of(const Sweep& sweep, const SweepRows& rows, const XAxis& x) {
  std::vector<Series> all;
  const auto place = [&](std::size_t i) {
    const auto v = std::find(x.values.begin(), x.values.end(), value_at(sweep.points[i], x.path));
    return x.place[static_cast<std::size_t>(v - x.values.begin())];
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!has_result(rows[i])) continue;
    const std::string label = label_of(sweep, i, x.path);
    auto s = std::find_if(all.begin(), all.end(), [&](const auto& e) { return e.label == label; });
    if (s == all.end()) s = all.insert(all.end(), {label, {}});
    s->points.push_back(i);
  }
  for (Series& s : all) {
    std::stable_sort(s.points.begin(), s.points.end(),
                     [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
  }
  return all;
}

// A round step that divides [0, most] into about five.
double round_step(double most) {
  const double rough = most / 5, power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double m : {1.0, 2.0, 2.5, 5.0}) {
    if (rough <= m * power * 1.0000001) return m * power;
  }
  return 10 * power;
}

std::string frame(const XAxis& x, double most, const std::string& unit) {
  const double right = kWidth - kRight, bottom = kHeight - kBottom;
  std::string svg;
  const double step = round_step(most);
  for (int i = 0; i * step <= most * 1.0000001; ++i) {
    const double y = bottom - i * step / most * (bottom - kTop);
    svg += fmt::format(
        "<line x1='{:.1f}' x2='{:.1f}' y1='{:.1f}' y2='{:.1f}' stroke='#8884'/>"
        "<text x='{:.1f}' y='{:.1f}' text-anchor='end'>{:g}</text>\n",
        kLeft, right, y, y, kLeft - 8, y + 4, i * step);
  }
  double last = -1e9;
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    const double at = kLeft + x.place[i] * (right - kLeft);
    if (at - last < 48 && i + 1 < x.values.size()) continue;
    last = at;
    svg += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='middle'>{}</text>\n", at,
                       bottom + 18, html_text(x.values[i].substr(0, 24)));
  }
  svg += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='middle'>{}</text>\n",
                     (kLeft + right) / 2, kHeight - 6, html_text(x.path));
  return svg + fmt::format("<text x='4' y='{:.1f}'>{}</text>\n", kTop - 4, html_text(unit));
}

std::string svg_open(double height, const std::string& title) {
  return fmt::format("<svg viewBox='0 0 {:g} {:g}' role='img' aria-label='{}'>\n", kWidth, height,
                     title);
}

std::string legend(const std::vector<std::string>& labels) {
  std::string html = "<p>";
  for (std::size_t i = 0; i < labels.size(); ++i) {
    html += fmt::format("<span class='key' style='background:{}'></span>{}",
                        kColours[i % kColours.size()], html_text(labels[i]));
  }
  return html + "</p>\n";
}

// One figure over the axis, a line per series; `band`: two pointers to draw an interval, or none.
std::string line_plot(const Sweep& sweep, const SweepRows& rows, const std::string& title,
                      const char* pointer, const std::string& unit, bool band) {
  const XAxis x = axis_of(sweep, path_for_x(sweep));
  std::vector<Series> series = series_of(sweep, rows, x);
  if (series.empty()) return "";
  const std::size_t all = series.size();
  series.resize(std::min(all, kMaxSeries));
  double most = 0;
  for (const Series& s : series) {
    for (const std::size_t i : s.points) most = std::max(most, figure(*rows[i], pointer));
  }
  if (most <= 0) return "";
  most *= 1.08;
  std::string svg = "<h2>" + title + "</h2>\n" + svg_open(kHeight, title) + frame(x, most, unit);
  const auto at_x = [&](std::size_t i) {
    const auto v = std::find(x.values.begin(), x.values.end(), value_at(sweep.points[i], x.path));
    const double place = x.place[static_cast<std::size_t>(v - x.values.begin())];
    return kLeft + place * (kWidth - kRight - kLeft);
  };
  const auto at_y = [&](double value) {
    return kHeight - kBottom - std::min(value / most, 1.0) * (kHeight - kBottom - kTop);
  };
  std::vector<std::string> labels;
  for (std::size_t s = 0; s < series.size(); ++s) {
    labels.push_back(series[s].label);
    const char* colour = kColours[s];
    std::string line, dots;
    for (const std::size_t i : series[s].points) {
      const double value = figure(*rows[i], pointer), px = at_x(i), py = at_y(value);
      line += fmt::format("{}{:.1f},{:.1f}", line.empty() ? "" : " ", px, py);
      if (band) {
        dots += fmt::format(
            "<line x1='{0:.1f}' x2='{0:.1f}' y1='{1:.1f}' y2='{2:.1f}' stroke='{3}' "
            "stroke-opacity='.45'/>\n",
            px, at_y(figure(*rows[i], "/interval_s/0")), at_y(figure(*rows[i], "/interval_s/1")),
            colour);
      }
      dots += fmt::format(
          "<circle cx='{:.1f}' cy='{:.1f}' r='3.5' fill='{}'><title>{}: {:.5g} "
          "{}</title></circle>\n",
          px, py, colour, html_text(label_of(sweep, i, "")), value, unit);
    }
    svg += fmt::format("<polyline points='{}' fill='none' stroke='{}' stroke-width='1.8'/>\n{}",
                       line, colour, dots);
  }
  svg += "</svg>\n";
  if (series.size() > 1) svg += legend(labels);
  if (all > series.size()) {
    svg += fmt::format("<p>The first {} of {} lines; the table has all.</p>\n", series.size(), all);
  }
  return svg;
}

std::string bars(const Sweep& sweep, const SweepRows& rows) {
  std::vector<std::size_t> shown;
  double most = 0;
  for (std::size_t i = 0; i < rows.size() && shown.size() < kMaxBars; ++i) {
    if (!has_result(rows[i])) continue;
    shown.push_back(i);
    most = std::max(most, figure(*rows[i], "/iteration_time_s"));
  }
  if (shown.empty() || most <= 0) return "";
  std::vector<std::string> parts;
  for (const auto& [part, unused] : rows[shown[0]]->at("breakdown_s").items()) {
    const auto has_part = [&, p = part](std::size_t i) {
      return rows[i]->at("breakdown_s").value(p, 0.0) > 0;
    };
    if (std::any_of(shown.begin(), shown.end(), has_part)) parts.push_back(part);
  }
  constexpr double kRow = 22, kText = 260;
  const std::string title = "Where the time goes";
  std::string svg =
      "<h2>" + title + "</h2>\n" + svg_open(kRow * static_cast<double>(shown.size()) + 4, title);
  for (std::size_t r = 0; r < shown.size(); ++r) {
    const double y = kRow * static_cast<double>(r);
    const Json& row = *rows[shown[r]];
    std::string label = label_of(sweep, shown[r], "");
    if (label.size() > 40) label = "..." + label.substr(label.size() - 37);
    svg += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='end'>{}</text>\n", kText - 8,
                       y + 15, html_text(label));
    double at = kText;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const double seconds = row.at("breakdown_s").value(parts[p], 0.0);
      const double width = seconds / most * (kWidth - kText - 70);
      svg += fmt::format(
          "<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='16' fill='{}'><title>{}: {:.4g} s"
          "</title></rect>\n",
          at, y + 3, width, kColours[p % kColours.size()], parts[p], seconds);
      at += width;
    }
    svg += fmt::format("<text x='{:.1f}' y='{:.1f}'>{:.4g} s</text>\n", at + 6, y + 15,
                       figure(row, "/iteration_time_s"));
  }
  return svg + "</svg>\n" + legend(parts);
}

std::string table(const Sweep& sweep, const SweepRows& rows) {
  const std::optional<std::size_t> best = best_point(rows);
  std::string html = "<h2>All points</h2>\n<table><tr><th>point</th>";
  for (const std::string& c : sweep.columns) html += "<th>" + html_text(c) + "</th>";
  html += "<th>time, s</th><th>tokens/s</th><th>MFU</th><th>GPU memory, GiB</th><th></th></tr>\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool ok = has_result(rows[i]);
    html += best == i ? "<tr class='best'>" : ok ? "<tr>" : "<tr class='bad'>";
    html += fmt::format("<td>{}</td>", i);
    for (const std::string& c : sweep.columns) {
      html += "<td>" + html_text(value_at(sweep.points[i], c)) + "</td>";
    }
    if (ok) {
      html += fmt::format(
          "<td>{:.5g}</td><td>{:.5g}</td><td>{:.1f} %</td><td>{:.2f}</td><td>{}</td>",
          figure(*rows[i], "/iteration_time_s"), figure(*rows[i], "/tokens_per_s"),
          figure(*rows[i], "/mfu") * 100, figure(*rows[i], "/memory/peak_device_bytes") / (1 << 30),
          best == i ? "fastest" : "");
    } else {
      const std::string why =
          rows[i] ? rows[i]->value("status", "") + ": " + rows[i]->value("reason", "") : "not run";
      html += "<td></td><td></td><td></td><td></td><td>" + html_text(why) + "</td>";
    }
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

}  // namespace

std::string sweep_page(const Sweep& sweep, const SweepRows& rows) {
  const std::string title = "Sweep of " + sweep.name;
  std::string sets;
  for (const std::string& set : sweep.sets) sets += (sets.empty() ? "" : ", ") + html_text(set);
  const auto done = std::count_if(rows.begin(), rows.end(), has_result);
  std::string html = html_head(title) + "<h1>" + html_text(title) + "</h1>\n";
  html += fmt::format("<p>{} points, {} with a result.{}</p>\n", rows.size(), done,
                      sets.empty() ? "" : " With " + sets + ".");
  if (const auto best = best_point(rows)) {
    html += "<p>Fastest: " + html_text(label_of(sweep, *best, "")) + ".</p>\n";
  }
  html += line_plot(sweep, rows, "Iteration time", "/iteration_time_s", "s", true);
  html += line_plot(sweep, rows, "Throughput", "/tokens_per_s", "tokens/s", false);
  html += bars(sweep, rows);
  return html + table(sweep, rows) + "</body></html>\n";
}

}  // namespace gputwin
