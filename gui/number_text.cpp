#include "gui/number_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/app/report.h"

namespace gputwin::gui {

QString text(const std::string& utf8) { return QString::fromStdString(utf8); }

QString text(std::string_view utf8) {
  return QString::fromUtf8(utf8.data(), static_cast<qsizetype>(utf8.size()));
}

QString time_text(Ps time) { return text(human_time(to_seconds(time).value)); }

QString exact_text(Ps time) { return text(grouped(time)) + " ps"; }

QString share_text(double part, double whole) {
  return whole > 0 ? text(fmt::format("{:.1f} %", 100 * part / whole)) : QString("-");
}

QString bytes_text(double bytes) {
  constexpr double kGib = 1 << 30, kMib = 1 << 20;
  if (std::abs(bytes) >= kGib) return text(fmt::format("{:.2f} GiB", bytes / kGib));
  if (std::abs(bytes) >= kMib) return text(fmt::format("{:.2f} MiB", bytes / kMib));
  return text(fmt::format("{:.0f} B", bytes));
}

QString count_text(std::int64_t count) { return text(grouped(count)); }

Ps tick_step(double least) {
  double step = 1;
  while (step < least && step < 1e18) {
    if (2 * step >= least) return static_cast<Ps>(2 * step);
    if (5 * step >= least) return static_cast<Ps>(5 * step);
    step *= 10;
  }
  return static_cast<Ps>(step);
}

QString tick_text(Ps time, Ps step) {
  if (time == 0) return "0";
  struct Unit {
    const char* name;
    double ps;
  };
  static constexpr Unit kUnits[] = {{"s", 1e12}, {"ms", 1e9}, {"us", 1e6}, {"ns", 1e3}, {"ps", 1}};
  const double size = std::abs(static_cast<double>(time));
  for (const Unit& unit : kUnits) {
    if (size < unit.ps && unit.ps > 1) continue;
    const double digits = std::ceil(std::log10(unit.ps / static_cast<double>(step)) - 1e-9);
    const int decimals = std::clamp(static_cast<int>(digits), 0, 12);
    return text(
        fmt::format("{:.{}f} {}", static_cast<double>(time) / unit.ps, decimals, unit.name));
  }
  return "0";
}

}  // namespace gputwin::gui
