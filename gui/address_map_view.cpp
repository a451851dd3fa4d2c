#include "gui/address_map_view.h"

#include <QMouseEvent>
#include <QPainter>
#include <QToolTip>
#include <algorithm>
#include <cmath>

#include "gui/number_text.h"
#include "gui/raster.h"
#include "gui/theme.h"

namespace gputwin::gui {

namespace {

constexpr int kTitle = 18;

/// The most bytes of `blocks` that are in use at once. Blocks that share an address count once
/// each: the plan says that they take turns.
std::int64_t most_at_once(const Store& store, const std::vector<PlacedBlock>& blocks) {
  std::vector<std::pair<Ps, double>> changes;
  for (const PlacedBlock& block : blocks) {
    const Counter& c = store.counters[block.counter];
    double before = 0;
    for (std::size_t i = 0; i < c.at.size(); ++i) {
      changes.emplace_back(c.at[i], (c.value[i] - before) * static_cast<double>(block.bytes));
      before = c.value[i];
    }
  }
  // What goes makes room before what comes takes it.
  std::sort(changes.begin(), changes.end());
  double now = 0, most = 0;
  for (const auto& [at, change] : changes) most = std::max(most, now += change);
  return static_cast<std::int64_t>(std::min(most, 9e18));  // files may hold anything
}

}  // namespace

AddressMap::AddressMap(Session& session, QWidget* parent) : QWidget(parent), session_(session) {
  setMouseTracking(true);
  setAccessibleName("Addresses of placed buffers over time");
  set({});
}

void AddressMap::set(std::vector<PlacedBlock> blocks) {
  blocks_ = std::move(blocks);
  extent_ = most_ = 0;
  for (const PlacedBlock& block : blocks_) {
    extent_ = std::max(extent_, block.address + block.bytes);
  }
  if (session_.store() != nullptr) most_ = most_at_once(*session_.store(), blocks_);
  setMinimumHeight(blocks_.empty() ? kTitle : 110);
  setMaximumHeight(blocks_.empty() ? kTitle : QWIDGETSIZE_MAX);
  setAccessibleDescription(summary());
  update();
}

QString AddressMap::summary() const {
  if (blocks_.empty()) {
    return "This run places no buffer itself: there is no map of addresses to show.";
  }
  return QString("%1 buffers placed in %2; at most %3 of it in use at once")
      .arg(count_text(static_cast<std::int64_t>(blocks_.size())),
           bytes_text(static_cast<double>(extent_)), bytes_text(static_cast<double>(most_)));
}

QRect AddressMap::plot() const { return {0, kTitle, width(), std::max(1, height() - kTitle)}; }

void AddressMap::paint_block(QPainter& painter, const PlacedBlock& block) const {
  const Store& store = *session_.store();
  const Counter& c = store.counters[block.counter];
  const QRect at = plot();
  const TimeRange range = store.range();
  const double per_pixel = static_cast<double>(range.length()) / at.width();
  const auto y_of = [&](std::int64_t address) {
    return at.bottom() + 1 -
           static_cast<double>(address) / static_cast<double>(std::max<std::int64_t>(1, extent_)) *
               at.height();
  };
  const double top = y_of(block.address + block.bytes), low = y_of(block.address);
  const QColor colour = theme().of(series_kind(0, block.memory + "_bytes"));
  double drawn_to = -1;
  for (std::size_t i = 0; i < c.at.size(); ++i) {
    if (c.value[i] <= 0) continue;
    const Ps end = i + 1 < c.at.size() ? c.at[i + 1] : range.end;
    const double left = static_cast<double>(c.at[i] - range.begin) / per_pixel;
    const double right =
        std::max(left + 1, static_cast<double>(std::min(end, range.end) - range.begin) / per_pixel);
    if (right <= drawn_to) continue;  // would not be seen
    drawn_to = right;
    const double high = std::max(1.0, low - top);
    painter.fillRect(QRectF(left, low - high, right - left, high > 3 ? high - 1 : high), colour);
  }
}

void AddressMap::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  painter.fillRect(rect(), theme().ground);
  painter.setPen(theme().dim);
  painter.drawText(QRect(4, 0, width() - 8, kTitle), Qt::AlignLeft | Qt::AlignVCenter, summary());
  if (session_.store() == nullptr) return;
  for (const PlacedBlock& block : blocks_) paint_block(painter, block);
}

void AddressMap::mouseMoveEvent(QMouseEvent* event) {
  const QRect at = plot();
  const double share = (at.bottom() + 1 - event->position().y()) / at.height();
  const auto address = static_cast<std::int64_t>(share * static_cast<double>(extent_));
  QString tip;
  for (const PlacedBlock& block : blocks_) {
    if (address < block.address || address >= block.address + block.bytes) continue;
    if (!tip.isEmpty()) tip += "\n";
    tip += QString("%1 (%2), %3 at address %4")
               .arg(text(block.name), text(block.memory),
                    bytes_text(static_cast<double>(block.bytes)), count_text(block.address));
    if (tip.count('\n') > 8) break;
  }
  QToolTip::showText(event->globalPosition().toPoint(), tip, this);
}

}  // namespace gputwin::gui
