#include "sim/trace/time_windows.h"

#include <algorithm>
#include <cmath>

namespace gputwin {

void TimeWindows::widen(Ps end) {
  while (end / width_ >= static_cast<Ps>(kWindows)) {
    width_ *= 2;
    for (auto& row : rows_) {
      if (row.empty()) continue;
      for (std::size_t i = 0; i < kWindows / 2; ++i) row[i] = row[2 * i] + row[2 * i + 1];
      std::fill(row.begin() + kWindows / 2, row.end(), 0);
    }
  }
}

void TimeWindows::add(std::size_t index, std::int64_t amount, Ps start, Ps end) {
  widen(end);
  std::vector<std::int64_t>& row = rows_[index];
  if (row.empty()) row.resize(kWindows);
  const auto window = [this](Ps t) { return static_cast<std::size_t>(t / width_); };
  if (window(start) == window(end)) {
    row[window(start)] += amount;
    return;
  }
  // Rounded running total, so that the windows of an interval sum to its amount exactly.
  std::int64_t placed = 0;
  for (std::size_t i = window(start); i <= window(end); ++i) {
    const Ps until = std::min(end, static_cast<Ps>(i + 1) * width_);
    const double share = static_cast<double>(until - start) / static_cast<double>(end - start);
    const std::int64_t total = std::llround(static_cast<double>(amount) * share);
    row[i] += total - placed;
    placed = total;
  }
}

}  // namespace gputwin
