#include "gui/memory_view.h"

#include <QHeaderView>
#include <QMouseEvent>
#include <QPainter>
#include <QToolTip>
#include <QVBoxLayout>
#include <algorithm>

#include "gui/number_text.h"
#include "gui/raster.h"
#include "gui/run_result.h"
#include "gui/table_style.h"
#include "gui/theme.h"

namespace gputwin::gui {

namespace {

constexpr int kLegend = 18, kAxis = 16;

QString class_name(const Counter& c) {
  QString name = text(c.series);
  return name.remove("_bytes");
}

}  // namespace

MemoryChart::MemoryChart(Session& session, QWidget* parent) : QWidget(parent), session_(session) {
  setMouseTracking(true);
  setMinimumSize(300, 140);
  setAccessibleName("Memory by class over time");
}

void MemoryChart::set(std::vector<std::uint32_t> counters, double capacity) {
  counters_ = std::move(counters);
  capacity_ = capacity;
  peak_ = {0, 0};
  if (const Store* store = session_.store()) {
    std::vector<Ps> times;
    for (const std::uint32_t c : counters_) {
      times.insert(times.end(), store->counters[c].at.begin(), store->counters[c].at.end());
    }
    std::sort(times.begin(), times.end());
    times.erase(std::unique(times.begin(), times.end()), times.end());
    std::vector<std::size_t> next(counters_.size(), 0);
    for (const Ps at : times) {
      double sum = 0;
      for (std::size_t c = 0; c < counters_.size(); ++c) {
        const Counter& counter = store->counters[counters_[c]];
        while (next[c] < counter.at.size() && counter.at[next[c]] <= at) ++next[c];
        if (next[c] > 0) sum += counter.value[next[c] - 1];
      }
      if (sum > peak_.first) peak_ = {sum, at};
    }
  }
  setAccessibleDescription(
      QString("peak %1 at %2").arg(bytes_text(peak_.first), time_text(peak_.second)));
  update();
}

void MemoryChart::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  painter.fillRect(rect(), theme().ground);
  const Store* store = session_.store();
  painter.setPen(theme().dim);
  if (store == nullptr || counters_.empty()) {
    painter.drawText(rect(), Qt::AlignCenter, "This trace holds no memory counters");
    return;
  }
  const int wide = width(), high = height() - kLegend - kAxis;
  QImage image(wide, high, QImage::Format_RGB32);
  image.fill(theme().ground);
  const TimeRange range = store->range();
  const Window window{static_cast<double>(range.begin), static_cast<double>(range.length()) / wide};
  const double top = std::max(peak_.first * 1.08, capacity_ > 0 ? capacity_ * 1.03 : 0);
  draw_stack(image, *store, counters_, window, top, theme());
  painter.drawImage(0, kLegend, image);
  const auto y_of = [&](double bytes) {
    return kLegend + high - static_cast<int>(bytes / top * high);
  };
  if (capacity_ > 0) {
    painter.setPen(QPen(theme().warn, 1, Qt::DashLine));
    painter.drawLine(0, y_of(capacity_), wide, y_of(capacity_));
    painter.drawText(6, y_of(capacity_) + 13, "memory of the GPU " + bytes_text(capacity_));
  }
  painter.setPen(theme().text);
  const int peak_x =
      static_cast<int>(static_cast<double>(peak_.second - range.begin) / window.per_pixel);
  painter.drawText(
      QRect(std::clamp(peak_x - 90, 0, std::max(0, wide - 180)), y_of(peak_.first) - 16, 180, 14),
      Qt::AlignCenter, "peak " + bytes_text(peak_.first));
  int x = 4;
  for (std::size_t c = 0; c < counters_.size(); ++c) {
    const Counter& counter = store->counters[counters_[c]];
    painter.fillRect(x, 4, 10, 10, theme().of(series_kind(c, counter.series)));
    painter.drawText(x + 14, 13, class_name(counter));
    x += 26 + painter.fontMetrics().horizontalAdvance(class_name(counter));
  }
  painter.setPen(theme().dim);
  painter.drawText(QRect(4, height() - kAxis, wide - 8, kAxis), Qt::AlignLeft,
                   time_text(range.begin));
  painter.drawText(QRect(4, height() - kAxis, wide - 8, kAxis), Qt::AlignRight,
                   time_text(range.end));
}

void MemoryChart::mouseMoveEvent(QMouseEvent* event) {
  const Store* store = session_.store();
  if (store == nullptr || counters_.empty()) return;
  const TimeRange range = store->range();
  const Ps at = range.begin + static_cast<Ps>(static_cast<double>(range.length()) *
                                              event->position().x() / std::max(1, width()));
  QString tip = "at " + time_text(at);
  for (const std::uint32_t id : counters_) {
    const Counter& c = store->counters[id];
    const auto after = std::upper_bound(c.at.begin(), c.at.end(), at);
    if (after == c.at.begin()) continue;
    tip += "\n" + class_name(c) + "  " +
           bytes_text(c.value[static_cast<std::size_t>(after - c.at.begin()) - 1]);
  }
  QToolTip::showText(event->globalPosition().toPoint(), tip, this);
}

MemoryView::MemoryView(Session& session, QWidget* parent)
    : QWidget(parent),
      session_(session),
      ranks_(new QComboBox),
      chart_(new MemoryChart(session)),
      addresses_(new AddressMap(session)),
      stages_(new QTableWidget) {
  setObjectName("memory");
  ranks_->setAccessibleName("Memory of rank");
  style_table(*stages_, "Memory by stage at its peak");
  auto* left = new QVBoxLayout;
  left->addWidget(ranks_);
  left->addWidget(chart_, 1);
  left->addWidget(addresses_, 1);
  auto* layout = new QHBoxLayout(this);
  layout->setContentsMargins(4, 4, 4, 4);
  layout->addLayout(left, 3);
  layout->addWidget(stages_, 2);
  connect(&session_, &Session::store_changed, this, &MemoryView::take_store);
  connect(ranks_, &QComboBox::currentIndexChanged, this, &MemoryView::refresh);
}

void MemoryView::take_store() {
  const QSignalBlocker quiet(ranks_);
  ranks_->clear();
  if (const Store* store = session_.store()) {
    for (std::uint32_t c = 0; c < store->counters.size(); ++c) {
      const Counter& counter = store->counters[c];
      if (!counter.series.ends_with("bytes") || is_address_counter(counter)) continue;
      const QString name = text(store->processes[counter.process].name) + ", " + text(counter.name);
      if (ranks_->findText(name) < 0) ranks_->addItem(name, c);
    }
  }
  fill_stages();
  refresh();
}

void MemoryView::fill_stages() {
  stages_->clear();
  stages_->setRowCount(0);
  const nlohmann::json r =
      run_result(session_.store() != nullptr ? session_.store()->result_json : "");
  if (!r.contains("memory")) return;
  static constexpr std::pair<const char*, const char*> kColumns[] = {
      {"peak_device_bytes", "device"},       {"peak_reserved_bytes", "reserved"},
      {"peak_allocated_bytes", "allocated"}, {"weights_bytes", "weights"},
      {"gradients_bytes", "gradients"},      {"optimizer_bytes", "optimizer"},
      {"activations_bytes", "activations"},  {"temporary_bytes", "temporary"}};
  QStringList heads{"stage"};
  for (const auto& column : kColumns) heads << column.second;
  stages_->setColumnCount(static_cast<int>(heads.size()));
  stages_->setHorizontalHeaderLabels(heads);
  for (const auto& role : r["memory"]["by_role"]) {
    const int row = stages_->rowCount();
    stages_->insertRow(row);
    stages_->setItem(row, 0, new QTableWidgetItem(text(role["role"].get<std::string>())));
    int at = 1;
    for (const auto& [key, head] : kColumns) {
      const double value = role.contains(key) ? role[key].get<double>() : 0;
      auto* item = new QTableWidgetItem(bytes_text(value));
      item->setTextAlignment(Qt::AlignRight | Qt::AlignVCenter);
      stages_->setItem(row, at++, item);
    }
  }
  stages_->resizeColumnsToContents();
}

void MemoryView::refresh() {
  const Store* store = session_.store();
  if (store == nullptr || ranks_->count() == 0) {
    addresses_->set({});
    return chart_->set({}, 0);
  }
  const Counter& chosen = store->counters[ranks_->currentData().toUInt()];
  std::vector<std::uint32_t> parts;
  for (std::uint32_t c = 0; c < store->counters.size(); ++c) {
    const Counter& counter = store->counters[c];
    if (counter.process == chosen.process && counter.name == chosen.name) parts.push_back(c);
  }
  double capacity = 0;
  const nlohmann::json r = run_result(store->result_json);
  if (r.contains("memory") && chosen.name.starts_with("gpu")) {
    for (const auto& role : r["memory"]["by_role"]) {
      if (role["role"] == store->processes[chosen.process].role) {
        capacity = role.value("capacity_bytes", 0.0);
      }
    }
  }
  chart_->set(std::move(parts), capacity);
  const std::string arena = chosen.name.substr(0, chosen.name.find(' '));
  addresses_->set(placed_blocks(*store, chosen.process, address_counter(Arena{arena, {}})));
}

}  // namespace gputwin::gui
