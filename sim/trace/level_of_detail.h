// What a row of a timeline looks like from afar, without touching its slices.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/units.h"
#include "sim/trace/slice_kind.h"

namespace gputwin {

/// One cell of a row: how much of its time is covered, and by what mostly.
struct Cell {
  std::uint8_t cover = 0;       // of 255; a covered picosecond is at least 1
  std::uint8_t kind_cover = 0;  // of 255, by `kind` alone
  SliceKind kind = SliceKind::Other;
  std::uint8_t kinds = 0;  // how many kinds, at most 255
  bool operator==(const Cell&) const = default;
};
static_assert(sizeof(Cell) == 4);

/// Coverage of one row in bins of equal time; the bins of each level are twice as wide as those of
/// the level before. They stand at multiples of their width from time zero, so a picture that moves
/// does not shimmer.
///
/// Memory  4 B a bin; two finest bins per five slices, twice that with the coarser levels. So at
///         most 2.5 slices lie in a pixel, on average, where the bins are too coarse for it.
class LevelOfDetail {
 public:
  static constexpr std::size_t kMinSlices = 256;  // below, the slices themselves are quick enough

  /// Adds a slice; in order of start, not overlapping.
  class Builder {
   public:
    Builder(Ps begin, Ps end, std::size_t slices);
    void add(Ps start, Ps duration, SliceKind kind);
    LevelOfDetail finish();

   private:
    void close_bins(std::int64_t up_to);
    void go_to(Ps time);
    std::vector<std::int64_t> accumulated_;  // [level][kind]
    std::vector<std::vector<Cell>> levels_;
    std::vector<std::int64_t> next_;  // by level: bin being filled, counted from time 0
    Ps width_ = 0;
    bool used_ = false;
    std::int64_t first_ = 0, last_ = 0;
    std::int64_t bin_ = 0;  // finest one that was added to last
  };

  bool empty() const { return levels_.empty(); }
  /// Width of the finest bins; 0 when there are none.
  Ps finest() const { return empty() ? 0 : width_; }
  /// Cell for each pixel from `from` on, each `per_pixel` picoseconds wide (>= finest()).
  void draw(double from, double per_pixel, std::span<Cell> out) const;
  std::size_t bytes() const;

 private:
  Ps width_ = 0;            // of the finest bins
  std::int64_t first_ = 0;  // finest bin that levels_[0][0] is
  std::vector<std::vector<Cell>> levels_;
};

/// Sums up one cell at a time; only the kinds that were added are looked at.
class CellSum {
 public:
  void add(SliceKind kind, Ps covered) {
    const auto k = static_cast<std::size_t>(kind);
    if (sums_[k] == 0) touched_[kinds_++] = static_cast<std::uint8_t>(k);
    sums_[k] += covered;
  }
  /// The cell of `width` picoseconds; then begins anew.
  Cell take(double width);

 private:
  std::array<std::int64_t, kSliceKinds> sums_{};
  std::array<std::uint8_t, kSliceKinds> touched_{};
  std::size_t kinds_ = 0;
};

}  // namespace gputwin
