// Timeline: what it draws.
#include <QPainter>
#include <QPainterPath>
#include <algorithm>
#include <cmath>

#include "gui/number_text.h"
#include "gui/timeline.h"

namespace gputwin::gui {

namespace {

constexpr std::size_t kMaxFlowsDrawn = 400;
constexpr int kMaxChain = 12;

}  // namespace

void Timeline::refresh_rows() {
  const QRect c = canvas();
  const RasterJob job{session_.store(), &rows_, &session_.hits(), window_, scroll()};
  const bool fits = image_.size() == c.size() && !stale_ && drawn_scroll_ == scroll();
  if (fits && drawn_window_ == window_) return;
  const double shift = (window_.from - drawn_window_.from) / window_.per_pixel;
  const int columns = static_cast<int>(std::lround(shift));
  const bool slid = fits && drawn_window_.per_pixel == window_.per_pixel &&
                    std::abs(columns) < c.width() && columns != 0;
  if (slid) {
    // Whole pixels only, so that the columns that stay are where they would be drawn.
    window_.from = drawn_window_.from + columns * window_.per_pixel;
    const int kept = c.width() - std::abs(columns);
    for (int y = 0; y < c.height(); ++y) {
      auto* line = reinterpret_cast<QRgb*>(image_.scanLine(y));
      std::memmove(line + std::max(0, -columns), line + std::max(0, columns),
                   static_cast<std::size_t>(kept) * sizeof(QRgb));
      const int from = columns > 0 ? kept : 0;
      std::fill(line + from, line + from + std::abs(columns), theme().ground.rgb());
    }
    RasterJob strip = job;
    strip.window = window_;
    const int x0 = columns > 0 ? kept : 0;
    rows_drawn_ = draw_rows(image_, x0, x0 + std::abs(columns), strip, theme());
    columns_drawn_ = std::abs(columns);
  } else {
    if (image_.size() != c.size()) image_ = QImage(c.size(), QImage::Format_RGB32);
    image_.fill(theme().ground);
    if (session_.store() != nullptr) {
      rows_drawn_ = draw_rows(image_, 0, c.width(), job, theme());
    }
    columns_drawn_ = c.width();
  }
  drawn_window_ = window_;
  drawn_scroll_ = scroll();
  stale_ = false;
}

void Timeline::paintEvent(QPaintEvent*) {
  refresh_rows();
  QPainter painter(this);
  painter.fillRect(rect(), theme().panel);
  const QRect c = canvas();
  if (session_.store() != nullptr) {
    QImage frame = image_.copy();
    draw_labels(frame, {session_.store(), &rows_, nullptr, window_, scroll()}, theme(), letters_);
    painter.drawImage(c.topLeft(), frame);
  } else {
    painter.setPen(theme().dim);
    painter.drawText(c, Qt::AlignCenter, "No trace is open. Open one (Ctrl+O) or run a scenario.");
    return;
  }
  painter.setClipRect(c);
  paint_grid(painter);
  paint_path(painter);
  paint_flows(painter);
  paint_selection(painter);
  painter.setClipping(false);
  paint_headers(painter);
  paint_ruler(painter);
  paint_path_strip(painter);
  paint_marks(painter);
}

void Timeline::paint_grid(QPainter& painter) {
  QColor line = theme().line;
  line.setAlpha(70);
  painter.setPen(line);
  const QRect c = canvas();
  const auto [first, last] = rows_.visible(scroll(), scroll() + c.height());
  for (int r = first; r < last; ++r) {
    const Row& row = rows_.rows()[static_cast<std::size_t>(r)];
    if (row.height < 5) continue;
    const int y = c.top() + row.top - scroll();
    if (row.kind == RowKind::Group && row.open) {
      painter.fillRect(QRect(c.left(), y, c.width(), row.height), theme().panel);
    }
    painter.drawLine(c.left(), y + row.height - 1, c.right(), y + row.height - 1);
  }
}

void Timeline::paint_ruler(QPainter& painter) {
  const QRect c = canvas();
  const QRect ruler(0, 0, width(), kRulerHeight);
  painter.fillRect(ruler, theme().panel);
  painter.setPen(theme().line);
  painter.drawLine(0, kRulerHeight - 1, width(), kRulerHeight - 1);
  const Ps step = tick_step(110 * window_.per_pixel);
  const double first = std::floor(window_.from / static_cast<double>(step));
  for (int i = 0; i < 200; ++i) {
    const double t = (first + i) * static_cast<double>(step);
    const double x = x_of(t);
    if (x > c.right()) break;
    if (x < c.left()) continue;
    painter.setPen(theme().line);
    painter.drawLine(QPointF(x, kRulerHeight - 8), QPointF(x, kRulerHeight - 1));
    painter.setPen(theme().dim);
    painter.drawText(QPointF(x + 4, kRulerHeight - 9), tick_text(static_cast<Ps>(t), step));
  }
  painter.setPen(theme().text);
  painter.drawText(QRect(8, 0, kHeaderWidth - 12, kRulerHeight), Qt::AlignVCenter,
                   painter.fontMetrics().elidedText(text(session_.store()->title), Qt::ElideMiddle,
                                                    kHeaderWidth - 16));
}

void Timeline::paint_header(QPainter& painter, const Row& row, const QRect& at) {
  const bool group = row.kind == RowKind::Group;
  if (group) painter.fillRect(at, theme().raised);
  if (row.pinned) painter.fillRect(QRect(0, at.top(), 3, at.height()), theme().accent);
  if (at.height() < 10) return;
  painter.setPen(group ? theme().text : theme().dim);
  const int indent = group ? 20 : 28;
  if (group) {
    const int y = at.center().y();
    const QPolygon open({{8, y - 3}, {16, y - 3}, {12, y + 3}});
    const QPolygon closed({{9, y - 4}, {15, y}, {9, y + 4}});
    painter.setBrush(theme().dim);
    painter.setPen(Qt::NoPen);
    painter.drawPolygon(row.open ? open : closed);
    painter.setPen(theme().text);
  }
  QString label = text(row.label);
  QRect box(indent, at.top(), at.width() - indent - 4, at.height());
  if (row.kind == RowKind::Counter) {
    const Counter& c = session_.store()->counters[row.parts.front()];
    double most = 0;
    for (const double v : c.value) most = std::max(most, v);
    const bool bytes = c.series.ends_with("bytes");
    QString unit =
        bytes ? "stacked by class" : QString("to %1 %2").arg(most, 0, 'g', 3).arg(text(c.series));
    box.setHeight(at.height() / 2);
    painter.drawText(
        QRect(indent, at.top() + at.height() / 2 - 2, at.width() - indent, at.height() / 2),
        Qt::AlignVCenter, unit);
  }
  painter.drawText(box, Qt::AlignVCenter,
                   painter.fontMetrics().elidedText(label, Qt::ElideRight, box.width()));
}

void Timeline::paint_headers(QPainter& painter) {
  const QRect c = canvas();
  painter.fillRect(QRect(0, c.top(), kHeaderWidth, c.height()), theme().panel);
  painter.setClipRect(QRect(0, c.top(), width(), c.height()));
  const auto [first, last] = rows_.visible(scroll(), scroll() + c.height());
  for (int r = first; r < last; ++r) {
    const Row& row = rows_.rows()[static_cast<std::size_t>(r)];
    paint_header(painter, row, QRect(0, c.top() + row.top - scroll(), kHeaderWidth, row.height));
  }
  painter.setClipping(false);
  painter.setPen(theme().line);
  painter.drawLine(kHeaderWidth - 1, 0, kHeaderWidth - 1, height());
}

void Timeline::paint_path(QPainter& painter) {
  if (!session_.path_shown()) return;
  const double from = window_.from, until = from + canvas().width() * window_.per_pixel;
  std::vector<std::pair<int, int>> last(rows_.rows().size(), {-1, -1});  // pixels drawn, by row
  painter.setPen(Qt::NoPen);
  painter.setBrush(theme().warn);
  for (const PathStep& s : session_.path()) {
    if (s.slice == kNoSlice || static_cast<double>(s.end) < from) continue;
    if (static_cast<double>(s.begin) > until) break;
    const int row = row_of_track(session_.store()->track_of(s.slice));
    if (row < 0) continue;
    const int left = static_cast<int>(std::max(x_of(static_cast<double>(s.begin)), 0.0));
    const int right = std::max(
        left + 1, static_cast<int>(std::min(x_of(static_cast<double>(s.end)), width() + 1.0)));
    auto& done = last[static_cast<std::size_t>(row)];
    if (right <= done.second) continue;
    done.second = right;
    const Row& r = rows_.rows()[static_cast<std::size_t>(row)];
    const int y = canvas().top() + r.top - scroll();
    if (y > height() || y + r.height < 0) continue;
    painter.drawRect(left, y, right - left, std::clamp(r.height / 5, 1, 4));
  }
}

void Timeline::paint_path_strip(QPainter& painter) {
  if (!session_.path_shown()) return;
  const QRect strip(kHeaderWidth, kRulerHeight, canvas().width(), kPathHeight);
  painter.fillRect(QRect(0, kRulerHeight, width(), kPathHeight), theme().panel);
  painter.setPen(theme().warn);
  painter.drawText(QRect(8, kRulerHeight - 2, kHeaderWidth - 10, kPathHeight + 3), Qt::AlignVCenter,
                   "critical path");
  painter.setClipRect(strip);
  int done = strip.left() - 1;
  for (const PathStep& s : session_.path()) {
    const int left = static_cast<int>(std::clamp(x_of(static_cast<double>(s.begin)), -1e5, 1e5));
    const int right = std::max(
        left + 1, static_cast<int>(std::clamp(x_of(static_cast<double>(s.end)), -1e5, 1e5)));
    if (right <= done) continue;
    if (left > strip.right()) break;
    const QColor colour =
        s.slice == kNoSlice ? theme().line : theme().of(session_.store()->kind(s.slice));
    painter.fillRect(std::max(left, done), strip.top() + 2, right - std::max(left, done),
                     strip.height() - 3, colour);
    done = right;
  }
  painter.setClipping(false);
}

void Timeline::paint_flows_of(QPainter& painter, SliceId slice, int depth) {
  const Store& store = *session_.store();
  std::size_t drawn = 0;
  for (const bool out : {true, false}) {
    for (const std::uint32_t f : out ? store.flows_from(slice) : store.flows_to(slice)) {
      if (++drawn > kMaxFlowsDrawn) return;
      const Flow& flow = store.flows()[f];
      const QRectF a = rect_of(flow.from), b = rect_of(flow.to);
      if (a.isNull() || b.isNull()) continue;
      // Drawn where both run: from the later start.
      const double x = std::max(a.left(), b.left());
      const QPointF p(std::min(x, a.right()), a.center().y()), q(x, b.center().y());
      QPainterPath curve(p);
      const double bend = std::clamp(std::abs(q.y() - p.y()) * 0.25, 8.0, 60.0);
      curve.cubicTo(p + QPointF(bend, 0), q - QPointF(bend, 0), q);
      painter.drawPath(curve);
      painter.drawLine(q, q + QPointF(-6, -4));
      painter.drawLine(q, q + QPointF(-6, 4));
      if (chain_ && depth < kMaxChain && out) paint_flows_of(painter, flow.to, depth + 1);
    }
    if (depth > 0) break;
  }
}

void Timeline::paint_flows(QPainter& painter) {
  if (session_.selected() == kNoSlice) return;
  painter.setPen(QPen(theme().text, 1));
  painter.setBrush(Qt::NoBrush);
  paint_flows_of(painter, session_.selected(), 0);
}

void Timeline::paint_selection(QPainter& painter) {
  const QRect c = canvas();
  if (session_.range()) {
    const double left = std::clamp(x_of(static_cast<double>(session_.range()->begin)), -10.0, 1e5);
    const double right = std::clamp(x_of(static_cast<double>(session_.range()->end)), -10.0, 1e5);
    QColor veil = theme().accent;
    veil.setAlpha(34);
    painter.fillRect(QRectF(left, c.top(), right - left, c.height()), veil);
    painter.setPen(theme().accent);
    painter.drawLine(QPointF(left, c.top()), QPointF(left, c.bottom()));
    painter.drawLine(QPointF(right, c.top()), QPointF(right, c.bottom()));
  }
  if (session_.selected() == kNoSlice) return;
  const QRectF at = rect_of(session_.selected());
  if (at.isNull()) return;
  painter.setBrush(Qt::NoBrush);
  painter.setPen(QPen(theme().ground, 1));
  painter.drawRect(at.adjusted(1, 1, -2, -3));
  painter.setPen(QPen(theme().accent, 2));
  painter.drawRect(at.adjusted(0, 0, -1, -2));
}

void Timeline::paint_marks(QPainter& painter) {
  const QRect c = canvas();
  painter.setClipRect(QRect(c.left(), 0, c.width(), height()));
  const auto flag = [&](double t, const QString& label, const QColor& colour) {
    const double x = x_of(t);
    if (x < c.left() - 300 || x > c.right()) return;
    painter.setPen(colour);
    painter.drawLine(QPointF(x, 2), QPointF(x, height()));
    if (label.isEmpty()) return;
    const int room = painter.fontMetrics().horizontalAdvance(label) + 10;
    const QRectF box(x, 3, room, 16);
    painter.fillRect(box, colour);
    painter.setPen(Theme::text_on(colour));
    painter.drawText(box, Qt::AlignCenter, label);
  };
  for (std::size_t m = 0; m < session_.marks.size(); ++m) {
    const Mark& mark = session_.marks[m];
    flag(static_cast<double>(mark.at),
         mark.note.isEmpty() ? QString("mark %1").arg(m + 1) : mark.note, theme().warn);
  }
  if (session_.range()) {
    flag(static_cast<double>(session_.range()->begin), time_text(session_.range()->length()),
         theme().accent);
  }
  painter.setClipping(false);
}

}  // namespace gputwin::gui
