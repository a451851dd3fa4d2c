#include "sim/trace/level_of_detail.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gputwin {

namespace {

// Once or twice a pixel: rounded by hand, since std::lround and std::floor are calls here.
std::uint8_t share(std::int64_t part, double per_whole) {
  if (part <= 0) return 0;
  const double value = static_cast<double>(part) * per_whole + 0.5;
  return static_cast<std::uint8_t>(std::clamp(value, 1.0, 255.0));
}

std::int64_t floored(double value) {
  const auto cut = static_cast<std::int64_t>(value);
  return cut - (value < static_cast<double>(cut) ? 1 : 0);
}

std::int64_t bin_of(Ps time, Ps width) { return time / width - (time % width < 0 ? 1 : 0); }

}  // namespace

Cell CellSum::take(double width) {
  if (kinds_ == 0) return {};
  std::int64_t total = 0, most = 0;
  std::uint8_t best = 0;
  for (std::size_t i = 0; i < kinds_; ++i) {
    const std::uint8_t k = touched_[i];
    const std::int64_t sum = std::exchange(sums_[k], 0);
    total += sum;
    if (sum > most || (sum == most && k < best)) {
      most = sum;
      best = k;
    }
  }
  const double per_whole = 255.0 / width;
  return {share(total, per_whole), share(most, per_whole), static_cast<SliceKind>(best),
          static_cast<std::uint8_t>(std::exchange(kinds_, 0))};
}

LevelOfDetail::Builder::Builder(Ps begin, Ps end, std::size_t slices) {
  if (slices < kMinSlices || end <= begin) return;
  used_ = true;
  const auto bins = static_cast<Ps>(slices * 2 / 5);
  width_ = (end - begin) / bins + 1;
  first_ = bin_ = bin_of(begin, width_);
  last_ = bin_of(end - 1, width_);
  for (int level = 0;; ++level) {
    const std::int64_t first = first_ >> level, last = last_ >> level;
    levels_.emplace_back(static_cast<std::size_t>(last - first + 1));
    next_.push_back(first);
    if (last - first <= 1) break;  // bins on both sides of time 0 never become one
  }
  accumulated_.assign(levels_.size() * kSliceKinds, 0);
}

void LevelOfDetail::Builder::close_bins(std::int64_t up_to) {
  CellSum sum;
  for (std::size_t level = 0; level < levels_.size(); ++level) {
    const std::int64_t now = up_to >> level;
    if (next_[level] >= now) return;  // coarser bins change less often
    std::int64_t* sums = accumulated_.data() + level * kSliceKinds;
    const auto at = static_cast<std::size_t>(next_[level] - (first_ >> level));
    for (std::size_t k = 0; k < kSliceKinds; ++k) {
      if (sums[k] == 0) continue;
      sum.add(static_cast<SliceKind>(k), sums[k]);
      if (level + 1 < levels_.size()) sums[kSliceKinds + k] += sums[k];
      sums[k] = 0;
    }
    levels_[level][at] = sum.take(std::ldexp(static_cast<double>(width_), static_cast<int>(level)));
    next_[level] = now;
  }
}

/// The bin of a time not before that of the call before; few slices jump far, so few divisions.
void LevelOfDetail::Builder::go_to(Ps time) {
  if (time < (bin_ + 1) * width_) return;
  bin_ = time < (bin_ + 2) * width_ ? bin_ + 1 : bin_of(time, width_);
  close_bins(bin_);
}

void LevelOfDetail::Builder::add(Ps start, Ps duration, SliceKind kind) {
  if (!used_ || duration <= 0) return;
  const Ps end = start + duration;
  for (Ps from = start; from < end;) {
    go_to(from);
    const Ps until = std::min(end, (bin_ + 1) * width_);
    accumulated_[static_cast<std::size_t>(kind)] += until - from;
    from = until;
  }
}

LevelOfDetail LevelOfDetail::Builder::finish() {
  LevelOfDetail out;
  if (!used_) return out;
  // Beyond the last bin of every level, so that all close.
  close_bins(((last_ >> (levels_.size() - 1)) + 1) << (levels_.size() - 1));
  out.width_ = width_;
  out.first_ = first_;
  out.levels_ = std::move(levels_);
  return out;
}

void LevelOfDetail::draw(double from, double per_pixel, std::span<Cell> out) const {
  if (empty()) return;
  const auto finest_width = static_cast<double>(width_);
  const int wanted = static_cast<int>(std::floor(std::log2(per_pixel / finest_width)));
  const auto level =
      static_cast<std::size_t>(std::clamp(wanted, 0, static_cast<int>(levels_.size()) - 1));
  const std::vector<Cell>& bins = levels_[level];
  const double scale = 1.0 / std::ldexp(finest_width, static_cast<int>(level));
  const std::int64_t base = first_ >> level;
  const auto count = static_cast<std::int64_t>(bins.size());
  std::int64_t begin = floored(from * scale) - base;
  for (std::size_t x = 0; x < out.size(); ++x) {
    const std::int64_t next =
        floored((from + static_cast<double>(x + 1) * per_pixel) * scale) - base;
    const std::int64_t i0 = std::exchange(begin, next), i1 = std::max(i0 + 1, next);
    if (i1 <= 0 || i0 >= count) continue;
    unsigned cover = 0;
    Cell best{};
    for (std::int64_t i = std::max<std::int64_t>(i0, 0); i < std::min(i1, count); ++i) {
      const Cell& bin = bins[static_cast<std::size_t>(i)];
      cover += bin.cover;
      if (bin.kind_cover > best.kind_cover) best = bin;
    }
    const auto cells = static_cast<unsigned>(i1 - i0);
    best.cover = static_cast<std::uint8_t>((cover + cells - 1) / cells);
    if (best.kind_cover > 0) out[x] = best;
  }
}

std::size_t LevelOfDetail::bytes() const {
  std::size_t total = 0;
  for (const auto& level : levels_) total += level.size() * sizeof(Cell);
  return total;
}

}  // namespace gputwin
