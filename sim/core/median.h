// The middle one of some values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace gputwin {

/// The upper one of the two in the middle if there is an even number of them; 0 of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace gputwin
