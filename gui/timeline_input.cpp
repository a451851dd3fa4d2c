// Timeline and overview: keys and mouse.
#include <QHelpEvent>
#include <QKeyEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QToolTip>
#include <algorithm>
#include <cmath>

#include "gui/number_text.h"
#include "gui/timeline.h"

namespace gputwin::gui {

namespace {

constexpr double kKeyZoom = 0.75, kWheelZoom = 1.0015;
constexpr int kDragThreshold = 4;

}  // namespace

void Timeline::keyPressEvent(QKeyEvent* event) {
  const auto held = event->modifiers() & ~Qt::KeypadModifier;
  if (held != Qt::NoModifier && held != Qt::ShiftModifier) return QWidget::keyPressEvent(event);
  const double fast = held == Qt::ShiftModifier ? 4 : 1;
  const double stride = canvas().width() * 0.12 * fast;
  switch (event->key()) {
    case Qt::Key_W:
    case Qt::Key_Up: return zoom(std::pow(kKeyZoom, fast), anchor());
    case Qt::Key_S:
    case Qt::Key_Down: return zoom(std::pow(kKeyZoom, -fast), anchor());
    case Qt::Key_A:
    case Qt::Key_Left: return pan(-stride);
    case Qt::Key_D:
    case Qt::Key_Right: return pan(stride);
    case Qt::Key_PageUp: return bar_->setValue(bar_->value() - bar_->pageStep());
    case Qt::Key_PageDown: return bar_->setValue(bar_->value() + bar_->pageStep());
    case Qt::Key_Home: return bar_->setValue(0);
    case Qt::Key_End: return bar_->setValue(bar_->maximum());
    case Qt::Key_Escape:
      session_.select(kNoSlice);
      session_.select_range(std::nullopt);
      return;
    default: QWidget::keyPressEvent(event);
  }
}

void Timeline::wheelEvent(QWheelEvent* event) {
  const QPointF angle = event->angleDelta();
  event->accept();
  if ((event->modifiers() & Qt::ControlModifier) != 0) {
    zoom(std::pow(kWheelZoom, -angle.y()), event->position().x());
  } else if ((event->modifiers() & Qt::ShiftModifier) != 0 || angle.x() != 0) {
    pan(-(angle.x() != 0 ? angle.x() : angle.y()));
  } else {
    bar_->setValue(bar_->value() - static_cast<int>(angle.y() / 120 * bar_->singleStep()));
  }
}

void Timeline::header_clicked(QPoint point) {
  const int at = rows_.row_at(point.y() - canvas().top() + scroll());
  if (at < 0) return;
  const Row row = rows_.rows()[static_cast<std::size_t>(at)];
  if (row.kind != RowKind::Group) return;
  rows_.toggle(row.key);
  rows_changed();
}

void Timeline::mousePressEvent(QMouseEvent* event) {
  setFocus();
  pressed_ = event->pos();
  pressed_window_ = window_;
  if (pressed_.x() < kHeaderWidth) return header_clicked(pressed_);
  const bool pan =
      event->button() == Qt::MiddleButton ||
      (event->button() == Qt::LeftButton && (event->modifiers() & Qt::ShiftModifier) != 0);
  if (pan) {
    drag_ = Drag::Pan;
    setCursor(Qt::ClosedHandCursor);
  } else if (event->button() == Qt::LeftButton) {
    drag_ = Drag::Range;
  }
}

void Timeline::mouseMoveEvent(QMouseEvent* event) {
  mouse_ = event->pos();
  const int moved = mouse_.x() - pressed_.x();
  if (drag_ == Drag::Pan) {
    set_window({pressed_window_.from - moved * window_.per_pixel, window_.per_pixel}, false);
  } else if (drag_ == Drag::Range && std::abs(moved) >= kDragThreshold) {
    session_.select_range(
        TimeRange{static_cast<Ps>(time_at(pressed_.x())), static_cast<Ps>(time_at(mouse_.x()))});
  }
}

void Timeline::mouseReleaseEvent(QMouseEvent* event) {
  const bool click = (event->pos() - pressed_).manhattanLength() < kDragThreshold;
  if (drag_ == Drag::Range && click) {
    session_.select(slice_at(event->pos()));
    if (session_.selected() == kNoSlice) session_.select_range(std::nullopt);
  }
  drag_ = Drag::None;
  unsetCursor();
}

void Timeline::mouseDoubleClickEvent(QMouseEvent* event) {
  if (event->pos().x() < kHeaderWidth) return header_clicked(event->pos());
  session_.select(slice_at(event->pos()));
  if (session_.selected() != kNoSlice) fit_selection();
}

void Timeline::leaveEvent(QEvent*) { mouse_ = {-1, -1}; }

void Timeline::resizeEvent(QResizeEvent* event) {
  layout_bar();
  // The same stretch of time stays in view.
  const int before = event->oldSize().width() - kHeaderWidth - bar_->width();
  if (before > 10 && session_.store() != nullptr) {
    set_window({window_.from, window_.per_pixel * before / canvas().width()}, false);
  } else {
    fit_all();
    history_.clear();
  }
}

bool Timeline::event(QEvent* event) {
  if (event->type() != QEvent::ToolTip || session_.store() == nullptr) return QWidget::event(event);
  const auto* help = static_cast<QHelpEvent*>(event);
  const SliceId s = slice_at(help->pos());
  if (s == kNoSlice) {
    QToolTip::hideText();
    return true;
  }
  const Store& store = *session_.store();
  QToolTip::showText(help->globalPos(),
                     QString("<b>%1</b><br>%2 · %3<br>from %4")
                         .arg(text(store.name(s)).toHtmlEscaped(), time_text(store.duration(s)),
                              text(label(store.kind(s))), time_text(store.start(s))),
                     this);
  return true;
}

Overview::Overview(Session& session, Timeline& timeline, QWidget* parent)
    : QWidget(parent), session_(session), timeline_(timeline) {
  setObjectName("overview");
  setAccessibleName("Overview of the whole run");
  setFixedHeight(44);
  setToolTip("The whole run by kind of work; click or drag to move the window");
  connect(&timeline_, &Timeline::window_changed, this, qOverload<>(&Overview::update));
  connect(&session_, &Session::store_changed, this, &Overview::invalidate);
}

void Overview::invalidate() {
  image_ = {};
  update();
}

void Overview::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  painter.fillRect(rect(), theme().panel);
  if (session_.store() == nullptr) return;
  const QRect at(Timeline::kHeaderWidth, 2, timeline_.canvas().width(), height() - 4);
  if (image_.size() != at.size()) {
    image_ = draw_overview(*session_.store(), at.width(), at.height(), theme());
  }
  painter.drawImage(at.topLeft(), image_);
  painter.setPen(theme().dim);
  painter.drawText(QRect(8, 0, Timeline::kHeaderWidth - 10, height()), Qt::AlignVCenter,
                   "whole run\n" + time_text(session_.store()->range().length()));
  const TimeRange all = session_.store()->range();
  const double scale = at.width() / static_cast<double>(all.length());
  const Window& window = timeline_.window();
  const double left = at.left() + (window.from - static_cast<double>(all.begin)) * scale;
  const double right = left + timeline_.canvas().width() * window.per_pixel * scale;
  QColor veil = theme().ground;
  veil.setAlpha(170);
  painter.setClipRect(at);
  painter.fillRect(QRectF(at.left(), at.top(), left - at.left(), at.height()), veil);
  painter.fillRect(QRectF(right, at.top(), at.right() - right + 1, at.height()), veil);
  painter.setPen(QPen(theme().accent, 1));
  painter.drawRect(QRectF(left, at.top(), std::max(2.0, right - left) - 1, at.height() - 1));
}

void Overview::mousePressEvent(QMouseEvent* event) { mouseMoveEvent(event); }

void Overview::mouseMoveEvent(QMouseEvent* event) {
  if (session_.store() == nullptr || image_.width() < 2) return;
  const TimeRange all = session_.store()->range();
  const double share = (event->position().x() - Timeline::kHeaderWidth) / image_.width();
  const Window& window = timeline_.window();
  const double half = timeline_.canvas().width() * window.per_pixel / 2;
  timeline_.set_window(
      {static_cast<double>(all.begin) + share * static_cast<double>(all.length()) - half,
       window.per_pixel});
}

}  // namespace gputwin::gui
