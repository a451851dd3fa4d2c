// Amounts over time in equal windows whose number is bounded: their width doubles as time goes on.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/units.h"

namespace gputwin {

/// Rows of at most kWindows windows. What is added within an interval is spread evenly over it.
class TimeWindows {
 public:
  static constexpr std::size_t kWindows = 2048;
  static constexpr Ps kFirstWidth = 1'000'000;  // 1 us

  explicit TimeWindows(std::size_t rows) : rows_(rows) {}

  void add(std::size_t row, std::int64_t amount, Ps start, Ps end);

  Ps width() const { return width_; }
  /// Amounts of a row; empty if nothing was added to it. The sum is that of all amounts added.
  const std::vector<std::int64_t>& row(std::size_t row) const { return rows_[row]; }

 private:
  void widen(Ps end);

  std::vector<std::vector<std::int64_t>> rows_;
  Ps width_ = kFirstWidth;
};

}  // namespace gputwin
