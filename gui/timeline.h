// The timeline: rows of slices over one axis of time, with keys and mouse.
#pragma once

#include <QImage>
#include <QScrollBar>
#include <QWidget>
#include <deque>
#include <functional>

#include "gui/raster.h"
#include "gui/row_model.h"
#include "gui/session.h"

namespace gputwin::gui {

/// Painted by itself on the raster backend; only rows in view are laid out and drawn. An image of
/// the rows is kept: moving sideways draws only the columns that come in, moving a selection draws
/// nothing but the selection.
class Timeline : public QWidget {
  Q_OBJECT

 public:
  explicit Timeline(Session& session, QWidget* parent = nullptr);

  static constexpr int kHeaderWidth = 210, kRulerHeight = 26, kPathHeight = 12;

  const Window& window() const { return window_; }
  void set_window(Window window, bool remember = true);
  RowModel& rows() { return rows_; }
  int scroll() const { return bar_->value(); }
  void scroll_to(int pixels) { bar_->setValue(pixels); }

  void fit_all();
  void fit_selection();
  void zoom(double factor, double x);
  void pan(double pixels);
  void undo_view();
  void step(int direction);         // next or previous slice of the selected one's row
  void follow_flow(int direction);  // along a flow of the selected slice
  void next_hit(int direction);
  void next_on_path(int direction);
  void mark_range();
  void pin_selected();
  void set_row_height(int pixels);
  void set_grouping(Grouping grouping);
  void reveal(SliceId slice);
  bool reveal_row(const QString& words);
  void show_chain(bool on);  // flows of flows too
  void rows_changed();
  void theme_changed();

  SliceId slice_at(QPoint point) const;
  /// Pixel of a time within this widget.
  double x_of(double t) const { return kHeaderWidth + (t - window_.from) / window_.per_pixel; }
  double time_at(double x) const { return window_.from + (x - kHeaderWidth) * window_.per_pixel; }
  QRect canvas() const;
  /// What a screen reader says of the whole.
  QString summary() const;

  int rows_drawn() const { return rows_drawn_; }  // by the last drawing of rows
  int columns_drawn() const { return columns_drawn_; }

 Q_SIGNALS:
  void window_changed();
  void hint(const QString& text);

 protected:
  void paintEvent(QPaintEvent* event) override;
  void resizeEvent(QResizeEvent* event) override;
  void keyPressEvent(QKeyEvent* event) override;
  void wheelEvent(QWheelEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void mouseReleaseEvent(QMouseEvent* event) override;
  void mouseDoubleClickEvent(QMouseEvent* event) override;
  void leaveEvent(QEvent* event) override;
  bool event(QEvent* event) override;

 private:
  enum class Drag { None, Range, Pan };

  void take_store();
  void invalidate();
  void refresh_rows();
  void layout_bar();
  double anchor() const;
  void paint_ruler(QPainter& painter);
  void paint_grid(QPainter& painter);
  void paint_headers(QPainter& painter);
  void paint_header(QPainter& painter, const Row& row, const QRect& at);
  void paint_path(QPainter& painter);
  void paint_path_strip(QPainter& painter);
  void paint_flows(QPainter& painter);
  void paint_flows_of(QPainter& painter, SliceId slice, int depth);
  void paint_selection(QPainter& painter);
  void paint_marks(QPainter& painter);
  QRectF rect_of(SliceId slice) const;
  int row_of_track(std::uint32_t track) const;
  void header_clicked(QPoint point);
  void tell_selection();

  Session& session_;
  RowModel rows_;
  QScrollBar* bar_;
  Letters letters_;
  Window window_;
  std::deque<Window> history_;
  QImage image_;
  Window drawn_window_;
  int drawn_scroll_ = -1;
  bool stale_ = true, chain_ = false;
  int rows_drawn_ = 0, columns_drawn_ = 0;
  std::vector<int> track_rows_;  // by track: its row, or -1
  Drag drag_ = Drag::None;
  QPoint pressed_, mouse_{-1, -1};
  Window pressed_window_;
};

/// The whole run in a strip, with the window as a brush.
class Overview : public QWidget {
 public:
  Overview(Session& session, Timeline& timeline, QWidget* parent = nullptr);
  void invalidate();

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;

 private:
  Session& session_;
  Timeline& timeline_;
  QImage image_;
};

}  // namespace gputwin::gui
