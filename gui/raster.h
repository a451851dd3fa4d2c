// Draws rows of a timeline into an image, scan line by scan line: no QPainter on the way of a
// million slices, no GPU.
#pragma once

#include <QImage>
#include <vector>

#include "gui/row_model.h"
#include "gui/session.h"
#include "gui/theme.h"

namespace gputwin::gui {

/// Letters of one font, drawn once as coverage.
class Letters {
 public:
  explicit Letters(int pixels);
  int width(std::string_view text) const;
  int height() const { return height_; }
  /// Draws as much of `text` (Latin-1 of UTF-8, others as '?') as fits in `room` pixels.
  void draw(QImage& image, int x, int y, int room, std::string_view text, QRgb colour) const;

 private:
  struct Letter {
    int width = 0;
    std::vector<std::uint8_t> cover;  // height_ rows of `width`
  };
  int height_ = 0;
  std::vector<Letter> letters_;  // from ' ' on
};

struct RasterJob {
  const Store* store = nullptr;
  const RowModel* rows = nullptr;
  const SearchHits* hits = nullptr;  // may be null
  Window window;
  int top = 0;  // pixels of all rows scrolled away
};

/// Draws the rows in view into columns [x0, x1) of `image`. Returns how many rows were drawn.
int draw_rows(QImage& image, int x0, int x1, const RasterJob& job, const Theme& theme);
/// Writes the names of slices that are wide enough upon them. Apart from draw_rows, since a name
/// stays in view when its slice is only partly there: it cannot move with the columns.
void draw_labels(QImage& image, const RasterJob& job, const Theme& theme, const Letters& letters);

/// Counters on each other, `top` being the height of the image; the largest value in each column.
void draw_stack(QImage& image, const Store& store, const std::vector<std::uint32_t>& counters,
                const Window& window, double top, const Theme& theme);
/// Hue of a series that is no kind of work: a memory class, a link.
SliceKind series_kind(std::size_t series, const std::string& name);

/// Busy share by kind of the whole run, one column a pixel.
QImage draw_overview(const Store& store, int width, int height, const Theme& theme);

/// Colour of a cell: its kind's, as strong as its coverage, never too faint to see.
QRgb cell_colour(const Cell& cell, const Theme& theme);

}  // namespace gputwin::gui
