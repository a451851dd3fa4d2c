#include "sim/trace/level_of_detail.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace gputwin {

namespace {

std::uint8_t share(std::int64_t part, std::int64_t whole) {
  if (part <= 0) return 0;
  const double value = 255.0 * static_cast<double>(part) / static_cast<double>(whole);
  return static_cast<std::uint8_t>(std::clamp(std::lround(value), 1L, 255L));
}

}  // namespace

Cell cell_of(std::span<const std::int64_t> sums, std::int64_t width) {
  std::int64_t total = 0;
  std::size_t best = 0, kinds = 0;
  for (std::size_t k = 0; k < sums.size(); ++k) {
    total += sums[k];
    kinds += sums[k] > 0 ? 1 : 0;
    if (sums[k] > sums[best]) best = k;
  }
  if (total <= 0) return {};
  return {share(total, width), share(sums[best], width), static_cast<SliceKind>(best),
          static_cast<std::uint8_t>(kinds)};
}

LevelOfDetail::Builder::Builder(Ps begin, Ps end, std::size_t slices) {
  if (slices < kMinSlices || end <= begin) return;
  used_ = true;
  const auto bins = static_cast<Ps>(slices / 4);
  const auto width = static_cast<std::uint64_t>((end - begin) / bins + 1);
  shift_ = std::bit_width(std::bit_ceil(width)) - 1;
  first_ = begin >> shift_;
  last_ = (end - 1) >> shift_;
  for (int level = 0;; ++level) {
    const std::int64_t first = first_ >> level, last = last_ >> level;
    levels_.emplace_back(static_cast<std::size_t>(last - first + 1));
    next_.push_back(first);
    if (last - first <= 1) break;  // bins on both sides of time 0 never become one
  }
  accumulated_.assign(levels_.size() * kSliceKinds, 0);
}

void LevelOfDetail::Builder::close_bins(std::int64_t up_to) {
  for (std::size_t level = 0; level < levels_.size(); ++level) {
    const std::int64_t now = up_to >> level;
    if (next_[level] >= now) return;  // coarser bins change less often
    std::int64_t* sums = accumulated_.data() + level * kSliceKinds;
    const auto at = static_cast<std::size_t>(next_[level] - (first_ >> level));
    levels_[level][at] = cell_of({sums, kSliceKinds}, Ps{1} << (shift_ + static_cast<int>(level)));
    if (level + 1 < levels_.size()) {
      for (std::size_t k = 0; k < kSliceKinds; ++k) sums[kSliceKinds + k] += sums[k];
    }
    std::fill(sums, sums + kSliceKinds, 0);
    next_[level] = now;
  }
}

void LevelOfDetail::Builder::add(Ps start, Ps duration, SliceKind kind) {
  if (!used_ || duration <= 0) return;
  const Ps end = start + duration;
  for (std::int64_t bin = start >> shift_; bin <= (end - 1) >> shift_; ++bin) {
    close_bins(bin);
    const Ps from = std::max(start, bin << shift_);
    const Ps until = std::min(end, (bin + 1) << shift_);
    accumulated_[static_cast<std::size_t>(kind)] += until - from;
  }
}

LevelOfDetail LevelOfDetail::Builder::finish() {
  LevelOfDetail out;
  if (!used_) return out;
  // Beyond the last bin of every level, so that all close.
  close_bins(((last_ >> (levels_.size() - 1)) + 1) << (levels_.size() - 1));
  out.shift_ = shift_;
  out.first_ = first_;
  out.levels_ = std::move(levels_);
  return out;
}

void LevelOfDetail::draw(double from, double per_pixel, std::span<Cell> out) const {
  if (empty()) return;
  const double finest_width = std::ldexp(1.0, shift_);
  const int wanted = static_cast<int>(std::floor(std::log2(per_pixel / finest_width)));
  const auto level =
      static_cast<std::size_t>(std::clamp(wanted, 0, static_cast<int>(levels_.size()) - 1));
  const std::vector<Cell>& bins = levels_[level];
  const double scale = 1.0 / std::ldexp(finest_width, static_cast<int>(level));
  const std::int64_t base = first_ >> level;
  const auto count = static_cast<std::int64_t>(bins.size());
  for (std::size_t x = 0; x < out.size(); ++x) {
    const double t = from + static_cast<double>(x) * per_pixel;
    const auto i0 = static_cast<std::int64_t>(std::floor(t * scale)) - base;
    const auto i1 =
        std::max(i0 + 1, static_cast<std::int64_t>(std::floor((t + per_pixel) * scale)) - base);
    if (i1 <= 0 || i0 >= count) continue;
    unsigned cover = 0, n = 0;
    Cell best{};
    for (std::int64_t i = std::max<std::int64_t>(i0, 0); i < std::min(i1, count); ++i, ++n) {
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
