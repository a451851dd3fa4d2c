#include "gui/timeline.h"

#include <QAccessible>
#include <QEvent>
#include <QHelpEvent>
#include <QKeyEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QToolTip>
#include <algorithm>
#include <cmath>

#include "gui/number_text.h"

namespace gputwin::gui {

namespace {

constexpr double kClosest = 0.05;  // ps a pixel
constexpr std::size_t kHistory = 100;

}  // namespace

Timeline::Timeline(Session& session, QWidget* parent)
    : QWidget(parent), session_(session), bar_(new QScrollBar(Qt::Vertical, this)), letters_(11) {
  setObjectName("timeline");
  setAccessibleName("Timeline");
  setFocusPolicy(Qt::StrongFocus);
  setMouseTracking(true);
  setMinimumSize(500, 200);
  setAttribute(Qt::WA_OpaquePaintEvent);
  bar_->setAccessibleName("Rows");
  connect(bar_, &QScrollBar::valueChanged, this, qOverload<>(&Timeline::update));
  connect(&session_, &Session::store_changed, this, &Timeline::take_store);
  connect(&session_, &Session::selection_changed, this, &Timeline::tell_selection);
  connect(&session_, &Session::range_changed, this, qOverload<>(&Timeline::update));
  connect(&session_, &Session::marks_changed, this, qOverload<>(&Timeline::update));
  connect(&session_, &Session::hits_changed, this, &Timeline::invalidate);
  connect(&session_, &Session::path_changed, this, [this] {
    layout_bar();
    invalidate();
  });
  connect(&session_, &Session::reveal, this, &Timeline::reveal);
}

QRect Timeline::canvas() const {
  const int top = kRulerHeight + (session_.path_shown() ? kPathHeight : 0);
  return {kHeaderWidth, top, std::max(1, width() - kHeaderWidth - bar_->sizeHint().width()),
          std::max(1, height() - top)};
}

void Timeline::take_store() {
  rows_.set_store(session_.store());
  history_.clear();
  bar_->setValue(0);
  rows_changed();
  fit_all();
}

void Timeline::rows_changed() {
  track_rows_.assign(session_.store() != nullptr ? session_.store()->tracks.size() : 0, -1);
  for (std::size_t r = 0; r < rows_.rows().size(); ++r) {
    const Row& row = rows_.rows()[r];
    if (row.kind == RowKind::Track) track_rows_[row.id] = static_cast<int>(r);
    if (row.kind != RowKind::Group || row.open) continue;
    for (const std::uint32_t t : row.parts) track_rows_[t] = static_cast<int>(r);
  }
  layout_bar();
  invalidate();
}

void Timeline::theme_changed() { invalidate(); }

void Timeline::invalidate() {
  stale_ = true;
  update();
}

void Timeline::layout_bar() {
  const QRect c = canvas();
  bar_->setGeometry(c.right() + 1, c.top(), bar_->sizeHint().width(), c.height());
  bar_->setPageStep(c.height());
  bar_->setSingleStep(3 * rows_.row_height());
  bar_->setRange(0, std::max(0, rows_.height() - c.height()));
}

void Timeline::set_window(Window window, bool remember) {
  if (session_.store() == nullptr) return;
  const TimeRange all = session_.store()->range();
  const double whole = static_cast<double>(all.length());
  const double width = canvas().width();
  window.per_pixel =
      std::clamp(window.per_pixel, kClosest, std::max(kClosest, 1.25 * whole / width));
  const double margin = width * window.per_pixel * 0.9;
  window.from = std::clamp(window.from, static_cast<double>(all.begin) - margin,
                           static_cast<double>(all.end) - 0.1 * width * window.per_pixel);
  if (window == window_) return;
  if (remember) {
    history_.push_back(window_);
    if (history_.size() > kHistory) history_.pop_front();
  }
  window_ = window;
  Q_EMIT window_changed();
  update();
}

void Timeline::undo_view() {
  if (history_.empty()) return;
  const Window before = history_.back();
  history_.pop_back();
  set_window(before, false);
}

void Timeline::fit_all() {
  if (session_.store() == nullptr) return;
  const TimeRange all = session_.store()->range();
  const double per_pixel = static_cast<double>(all.length()) / (canvas().width() * 0.98);
  set_window({static_cast<double>(all.begin) - 0.01 * canvas().width() * per_pixel, per_pixel});
}

void Timeline::fit_selection() {
  TimeRange range;
  if (session_.selected() != kNoSlice) {
    range = {session_.store()->start(session_.selected()),
             session_.store()->end(session_.selected())};
  } else if (session_.range()) {
    range = *session_.range();
  } else {
    return fit_all();
  }
  const double per_pixel =
      std::max(1.0, static_cast<double>(range.length())) / (canvas().width() * 0.8);
  set_window({static_cast<double>(range.begin) - 0.1 * canvas().width() * per_pixel, per_pixel});
}

void Timeline::zoom(double factor, double x) {
  const double t = time_at(x);
  const double per_pixel = std::clamp(
      window_.per_pixel * factor, kClosest,
      session_.store() == nullptr
          ? 1e18
          : 1.25 * static_cast<double>(session_.store()->range().length()) / canvas().width());
  set_window({t - (x - kHeaderWidth) * per_pixel, per_pixel});
}

void Timeline::pan(double pixels) {
  set_window({window_.from + pixels * window_.per_pixel, window_.per_pixel}, false);
}

double Timeline::anchor() const {
  const QRect c = canvas();
  return c.contains(mouse_) ? mouse_.x() : c.center().x();
}

void Timeline::step(int direction) {
  const Store* store = session_.store();
  if (store == nullptr) return;
  SliceId now = session_.selected();
  if (now == kNoSlice) {
    const double middle = time_at(canvas().center().x());
    for (const Row& row : rows_.rows()) {
      if (row.kind != RowKind::Track) continue;
      const Track& track = store->tracks[row.id];
      now = std::min(
          store->overlapping(track, static_cast<Ps>(middle), static_cast<Ps>(middle) + 1).first,
          track.first + track.count - 1);
      return reveal(now);
    }
    return;
  }
  const Track& track = store->tracks[store->track_of(now)];
  if (direction > 0 && now + 1 < track.first + track.count) reveal(now + 1);
  if (direction < 0 && now > track.first) reveal(now - 1);
}

void Timeline::follow_flow(int direction) {
  const SliceId now = session_.selected();
  if (now == kNoSlice) return Q_EMIT hint("Select a slice first, then [ and ] follow its flows");
  const Store& store = *session_.store();
  const auto rows = direction > 0 ? store.flows_from(now) : store.flows_to(now);
  if (rows.empty())
    return Q_EMIT hint(direction > 0 ? "No flow leaves this slice" : "No flow ends in this slice");
  const Flow& flow = store.flows()[rows.front()];
  reveal(direction > 0 ? flow.to : flow.from);
}

void Timeline::next_hit(int direction) {
  const auto& hits = session_.hits().slices;
  if (hits.empty()) return Q_EMIT hint("Nothing found: type in the search field (key /)");
  const SliceId now = session_.selected();
  auto at = direction > 0 ? std::upper_bound(hits.begin(), hits.end(), now == kNoSlice ? 0 : now)
                          : std::lower_bound(hits.begin(), hits.end(), now);
  if (now == kNoSlice) at = hits.begin();
  if (direction > 0 && at == hits.end()) at = hits.begin();
  if (direction < 0) at = at == hits.begin() ? hits.end() - 1 : at - 1;
  reveal(*at);
}

void Timeline::next_on_path(int direction) {
  if (!session_.path_shown()) session_.show_path(true);
  const auto& path = session_.path();
  if (path.empty()) return;
  const Ps here = session_.selected() != kNoSlice ? session_.store()->start(session_.selected())
                                                  : static_cast<Ps>(window_.from);
  SliceId best = kNoSlice;
  for (const PathStep& s : path) {
    if (s.slice == kNoSlice || s.slice == session_.selected()) continue;
    const Ps start = session_.store()->start(s.slice);
    if (direction > 0 && start >= here) {
      best = s.slice;
      break;
    }
    if (direction < 0 && start <= here) best = s.slice;
  }
  if (best != kNoSlice) reveal(best);
}

void Timeline::mark_range() {
  if (session_.store() == nullptr) return;
  if (session_.selected() != kNoSlice && !session_.range()) {
    session_.select_range(TimeRange{session_.store()->start(session_.selected()),
                                    session_.store()->end(session_.selected())});
    return;
  }
  const Ps at = session_.range() ? session_.range()->begin : static_cast<Ps>(time_at(anchor()));
  session_.marks.push_back({at, QString()});
  Q_EMIT session_.marks_changed();
}

void Timeline::pin_selected() {
  int row = session_.selected() != kNoSlice
                ? row_of_track(session_.store()->track_of(session_.selected()))
                : rows_.row_at(mouse_.y() - canvas().top() + scroll());
  if (row < 0) return Q_EMIT hint("Point at a row, or select a slice, to pin its row");
  rows_.toggle_pin(rows_.rows()[static_cast<std::size_t>(row)]);
  rows_changed();
}

void Timeline::set_row_height(int pixels) {
  rows_.set_row_height(pixels);
  rows_changed();
}

void Timeline::set_grouping(Grouping grouping) {
  rows_.set_grouping(grouping);
  rows_changed();
}

void Timeline::show_chain(bool on) {
  chain_ = on;
  update();
}

int Timeline::row_of_track(std::uint32_t track) const {
  return track < track_rows_.size() ? track_rows_[track] : -1;
}

void Timeline::reveal(SliceId slice) {
  const Store* store = session_.store();
  if (store == nullptr || slice >= store->size()) return;
  const int row = rows_.reveal_track(store->track_of(slice));
  rows_changed();
  if (row >= 0) {
    const Row& r = rows_.rows()[static_cast<std::size_t>(row)];
    const int visible = canvas().height();
    if (r.top < scroll() || r.top + r.height > scroll() + visible) {
      bar_->setValue(r.top - visible / 2);
    }
  }
  const double left = static_cast<double>(store->start(slice));
  const double right = static_cast<double>(store->end(slice));
  const double width = canvas().width() * window_.per_pixel;
  Window window = window_;
  if (right - left > 0.9 * width || right - left < 3 * window_.per_pixel) {
    window.per_pixel = std::max(right - left, 1.0) / (canvas().width() * 0.1);
  }
  const double shown = canvas().width() * window.per_pixel;
  if (left < window_.from || right > window_.from + width ||
      window.per_pixel != window_.per_pixel) {
    window.from = (left + right) / 2 - shown / 2;
  }
  set_window(window);
  session_.select(slice);
}

bool Timeline::reveal_row(const QString& words) {
  const int row = rows_.find(words.toStdString());
  if (row < 0) return false;
  bar_->setValue(rows_.rows()[static_cast<std::size_t>(row)].top);
  return true;
}

SliceId Timeline::slice_at(QPoint point) const {
  const QRect c = canvas();
  const Store* store = session_.store();
  if (store == nullptr || !c.contains(point)) return kNoSlice;
  const int at = rows_.row_at(point.y() - c.top() + scroll());
  if (at < 0) return kNoSlice;
  const Row& row = rows_.rows()[static_cast<std::size_t>(at)];
  std::uint32_t id = row.id;
  if (row.kind == RowKind::Group && !row.open && !row.parts.empty()) {
    const int inside = point.y() - c.top() + scroll() - row.top;
    id = row.parts[std::min(row.parts.size() - 1,
                            static_cast<std::size_t>(inside) * row.parts.size() /
                                static_cast<std::size_t>(std::max(1, row.height)))];
  } else if (row.kind != RowKind::Track) {
    return kNoSlice;
  }
  // What lies within two pixels counts, the longest first.
  const double reach = 1.5 * window_.per_pixel, t = time_at(point.x());
  const auto [first, last] =
      store->overlapping(store->tracks[id], static_cast<Ps>(std::floor(t - reach)),
                         static_cast<Ps>(std::ceil(t + reach)) + 1);
  SliceId best = store->at(store->tracks[id], static_cast<Ps>(t));
  if (best != kNoSlice) return best;
  for (SliceId s = first; s < last && s < first + 64; ++s) {
    if (best == kNoSlice || store->duration(s) > store->duration(best)) best = s;
  }
  return best;
}

QRectF Timeline::rect_of(SliceId slice) const {
  const Store& store = *session_.store();
  const int row = row_of_track(store.track_of(slice));
  if (row < 0) return {};
  const Row& r = rows_.rows()[static_cast<std::size_t>(row)];
  const double left = x_of(static_cast<double>(store.start(slice)));
  const double right = x_of(static_cast<double>(store.end(slice)));
  return {std::clamp(left, -1e5, 1e5), static_cast<double>(canvas().top() + r.top - scroll()),
          std::max(1.0, std::clamp(right, -1e5, 1e5) - std::clamp(left, -1e5, 1e5)),
          static_cast<double>(r.height)};
}

void Timeline::tell_selection() {
  update();
  QAccessibleEvent changed(this, QAccessible::DescriptionChanged);
  setAccessibleDescription(summary());
  QAccessible::updateAccessibility(&changed);
}

QString Timeline::summary() const {
  const Store* store = session_.store();
  if (store == nullptr) return "No trace is open";
  QString out = QString("%1 slices in %2 rows, %3 long.")
                    .arg(count_text(static_cast<std::int64_t>(store->size())))
                    .arg(rows_.rows().size())
                    .arg(time_text(store->range().length()));
  if (session_.selected() != kNoSlice) {
    const SliceId s = session_.selected();
    out += QString(" Selected: %1, %2 from %3, on %4 %5.")
               .arg(text(store->name(s)), time_text(store->duration(s)), time_text(store->start(s)),
                    text(store->processes[store->tracks[store->track_of(s)].process].name),
                    text(store->tracks[store->track_of(s)].name));
  }
  return out;
}

}  // namespace gputwin::gui
