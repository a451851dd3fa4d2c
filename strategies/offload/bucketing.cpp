#include "strategies/offload/bucketing.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace gputwin {

std::vector<std::int64_t> fill_buckets(const std::vector<std::int64_t>& tensors,
                                       std::int64_t limit) {
  std::vector<std::int64_t> buckets;
  std::int64_t open = 0;
  const auto close = [&] {
    if (open > 0) buckets.push_back(std::exchange(open, 0));
  };
  for (const std::int64_t n : tensors) {
    if (n > limit) {
      close();
      buckets.push_back(n);
      continue;
    }
    open += n;
    if (open >= limit) close();
  }
  close();
  return buckets;
}

Bytes efficient_copy(Seconds start_up, BytesPerSecond rate, double share) {
  return Bytes(std::llround((1.0 / share - 1.0) * start_up.value * rate.value));
}

std::int64_t choose_bucket_elements(const std::vector<std::int64_t>& tensors, std::int64_t least,
                                    std::int64_t most, std::int64_t step) {
  std::set<std::int64_t> limits;
  for (std::int64_t limit = least; limit <= std::max(least, most); limit += step) {
    limits.insert(limit);
  }
  for (const std::int64_t n : tensors) {
    if (n >= least && n <= most) limits.insert(n);
  }
  std::int64_t best = least;
  double least_waste = 2.0;
  for (const std::int64_t limit : limits) {
    const std::vector<std::int64_t> buckets = fill_buckets(tensors, limit);
    std::int64_t slot = 0, used = 0, count = 0;
    for (const std::int64_t n : buckets) {
      if (n > 2 * most) continue;
      slot = std::max(slot, n);
      used += n;
      ++count;
    }
    if (count == 0) continue;
    const double waste =
        1.0 - static_cast<double>(used) / (static_cast<double>(slot) * static_cast<double>(count));
    if (waste < least_waste - 1e-12) {
      least_waste = waste;
      best = limit;
    }
  }
  return best;
}

}  // namespace gputwin
