// What a row of a timeline looks like from afar, without touching its slices.
#pragma once

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

/// Coverage of one row in bins of equal time, at widths that are powers of two. Bins stand at
/// multiples of their width from time zero, so a picture that moves does not shimmer.
///
/// Memory  4 B a bin; about one finest bin per four slices, twice that with the coarser levels.
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
    std::vector<std::int64_t> accumulated_;  // [level][kind]
    std::vector<std::vector<Cell>> levels_;
    std::vector<std::int64_t> next_;  // by level: bin being filled, counted from time 0
    int shift_ = 0;
    bool used_ = false;
    std::int64_t first_ = 0, last_ = 0;
  };

  bool empty() const { return levels_.empty(); }
  /// Width of the finest bins; 0 when there are none.
  Ps finest() const { return empty() ? 0 : Ps{1} << shift_; }
  /// Cell for each pixel from `from` on, each `per_pixel` picoseconds wide (>= finest()).
  void draw(double from, double per_pixel, std::span<Cell> out) const;
  std::size_t bytes() const;

 private:
  int shift_ = 0;
  std::int64_t first_ = 0;  // finest bin that levels_[0][0] is
  std::vector<std::vector<Cell>> levels_;
};

/// A cell that covers `sums` picoseconds by kind out of `width`.
Cell cell_of(std::span<const std::int64_t> sums, std::int64_t width);

}  // namespace gputwin
