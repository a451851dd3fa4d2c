#include "gui/topology_view.h"

#include <QHeaderView>
#include <QHelpEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QToolTip>
#include <QVBoxLayout>
#include <algorithm>
#include <tuple>

#include "gui/number_text.h"
#include "gui/table_style.h"
#include "gui/theme.h"
#include "sim/app/data_directory.h"
#include "sim/app/scenario.h"
#include "sim/core/error.h"

namespace gputwin::gui {

namespace {

constexpr int kMaxNodes = 128, kFabricHeight = 22, kMaxRows = 300;

/// Mean and largest value of a counter within a range.
std::pair<double, double> mean_and_peak(const Counter& c, TimeRange range) {
  double sum = 0, peak = 0;
  for (std::size_t i = 0; i < c.at.size(); ++i) {
    const Ps begin = std::max(c.at[i], range.begin);
    const Ps end = std::min(i + 1 < c.at.size() ? c.at[i + 1] : range.end, range.end);
    if (end <= begin) continue;
    sum += c.value[i] * static_cast<double>(end - begin);
    peak = std::max(peak, c.value[i]);
  }
  return {sum / static_cast<double>(std::max<Ps>(1, range.length())), peak};
}

}  // namespace

std::vector<LinkLoadRow> link_loads(const Store& store, const Topology* topology, TimeRange range) {
  std::map<std::string, LinkId> by_name;
  if (topology != nullptr) {
    for (std::uint32_t l = 0; l < topology->links().size(); ++l) {
      by_name.emplace(topology->link_name(LinkId(l)), LinkId(l));
    }
  }
  std::vector<LinkLoadRow> rows;
  for (std::uint32_t c = 0; c < store.counters.size(); ++c) {
    const Counter& counter = store.counters[c];
    if (counter.series != "GB/s") continue;
    LinkLoadRow row;
    row.name = counter.name;
    row.counter = c;
    std::tie(row.mean, row.peak) = mean_and_peak(counter, range);
    if (const auto found = by_name.find(counter.name); found != by_name.end()) {
      row.link = found->second;
      row.capacity = topology->link(found->second).capacity.value * 1e-9;
    }
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const LinkLoadRow& a, const LinkLoadRow& b) {
    return std::pair(a.load(), a.mean) > std::pair(b.load(), b.mean);
  });
  return rows;
}

TopologyPicture::TopologyPicture(QWidget* parent) : QWidget(parent) {
  setMinimumSize(320, 140);
  setAccessibleName("Cluster with the load of its links");
}

void TopologyPicture::set(const Topology* topology, std::vector<LinkLoadRow> loads,
                          std::vector<int> ranks_of_gpu) {
  topology_ = topology;
  loads_ = std::move(loads);
  ranks_of_gpu_ = std::move(ranks_of_gpu);
  nodes_.clear();
  if (topology_ != nullptr) {
    std::vector<char> watched;
    for (std::int32_t g = 0; g < topology_->gpus(); ++g) {
      const auto node =
          static_cast<std::size_t>(topology_->node_of(GpuId(static_cast<std::uint32_t>(g))));
      watched.resize(std::max(watched.size(), node + 1), 0);
      if (ranks_of_gpu_[static_cast<std::size_t>(g)] >= 0) watched[node] = 1;
    }
    for (const char wanted : {1, 0}) {  // nodes with rows in the timeline first
      for (std::size_t n = 0; n < watched.size() && nodes_.size() < kMaxNodes; ++n) {
        if (watched[n] == wanted) nodes_.push_back(static_cast<int>(n));
      }
    }
    std::sort(nodes_.begin(), nodes_.end());
  }
  update();
}

QRect TopologyPicture::node_rect(int at) const {
  const int count = std::max<int>(1, static_cast<int>(nodes_.size()));
  const int high = height() - kFabricHeight - 22;
  int columns = 1;
  while (columns < count && (width() / columns) * 0.5 >
                                static_cast<double>(high) / ((count + columns - 1) / columns)) {
    ++columns;
  }
  const int rows = (count + columns - 1) / columns;
  const int w = std::max(8, width() / columns), h = std::max(8, high / rows);
  return {at % columns * w + 2, kFabricHeight + 4 + at / columns * h, w - 4, h - 4};
}

double TopologyPicture::load_of(int node, int index, std::initializer_list<LinkKind> kinds) const {
  double most = -1;
  for (const LinkLoadRow& row : loads_) {
    if (!row.link) continue;
    const Link& link = topology_->link(*row.link);
    const bool fits = std::find(kinds.begin(), kinds.end(), link.kind) != kinds.end();
    if (fits && link.node == node && (index < 0 || link.index == index))
      most = std::max(most, row.load());
  }
  return most;
}

void TopologyPicture::paint_node(QPainter& painter, int at) {
  const int node = nodes_[static_cast<std::size_t>(at)];
  const QRect box = node_rect(at);
  painter.setPen(theme().line);
  painter.setBrush(theme().raised);
  painter.drawRect(box);
  const bool large = box.height() >= 40 && box.width() >= 60;
  if (large) {
    painter.setPen(theme().dim);
    painter.drawText(box.adjusted(4, 0, 0, 0), Qt::AlignTop, QString("node %1").arg(node));
  }
  std::vector<int> gpus;
  for (std::int32_t g = 0; g < topology_->gpus(); ++g) {
    if (topology_->node_of(GpuId(static_cast<std::uint32_t>(g))) == node) gpus.push_back(g);
  }
  const int top = box.top() + (large ? 15 : 1), count = std::max(1, static_cast<int>(gpus.size()));
  const int per_row = (count + 1) / 2;
  for (int i = 0; i < static_cast<int>(gpus.size()); ++i) {
    const int w = box.width() / per_row, h = (box.bottom() - top - 4) / 2;
    const QRect gpu(box.left() + i % per_row * w + 1, top + i / per_row * h + 1, w - 2, h - 2);
    const double load = load_of(
        node, i, {LinkKind::NvLinkUp, LinkKind::NvLinkDown, LinkKind::PcieUp, LinkKind::PcieDown});
    const bool drawn =
        ranks_of_gpu_[static_cast<std::size_t>(gpus[static_cast<std::size_t>(i)])] >= 0;
    const QColor ground = load >= 0 ? theme().load(load) : theme().panel;
    painter.setPen(drawn ? theme().accent : theme().line);
    painter.setBrush(ground);
    painter.drawRect(gpu);
    if (gpu.width() > 26 && gpu.height() > 11) {
      painter.setPen(Theme::text_on(ground));
      painter.drawText(gpu, Qt::AlignCenter, QString::number(gpus[static_cast<std::size_t>(i)]));
    }
  }
  const double nic = load_of(node, -1, {LinkKind::NicUp, LinkKind::NicDown});
  painter.fillRect(QRect(box.left(), box.bottom() - 3, box.width(), 3),
                   nic >= 0 ? theme().load(nic) : theme().line);
}

void TopologyPicture::paint_fabric(QPainter& painter, const QRect& at) {
  double most = -1;
  for (const LinkLoadRow& row : loads_) {
    if (row.link && topology_->link(*row.link).node < 0) most = std::max(most, row.load());
  }
  const QColor ground = most >= 0 ? theme().load(most) : theme().raised;
  painter.fillRect(at, ground);
  painter.setPen(Theme::text_on(ground));
  painter.drawText(
      at, Qt::AlignCenter,
      most >= 0 ? QString("switches between nodes, busiest uplink %1").arg(share_text(most, 1))
                : QString("switches between nodes: no link of theirs carried anything"));
}

void TopologyPicture::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  painter.fillRect(rect(), theme().panel);
  if (topology_ == nullptr) {
    painter.setPen(theme().dim);
    painter.drawText(rect(), Qt::AlignCenter, "The trace does not say which cluster it ran on");
    return;
  }
  paint_fabric(painter, QRect(2, 1, width() - 4, kFabricHeight));
  for (int n = 0; n < static_cast<int>(nodes_.size()); ++n) paint_node(painter, n);
  const QRect legend(width() - 214, height() - 15, 120, 10);
  for (int x = 0; x < legend.width(); ++x) {
    painter.fillRect(legend.left() + x, legend.top(), 1, legend.height(),
                     theme().load(static_cast<double>(x) / legend.width()));
  }
  painter.setPen(theme().dim);
  painter.drawText(legend.left() - 24, height() - 5, "0 %");
  painter.drawText(legend.right() + 6, height() - 5, "100 % of capacity");
  painter.drawText(4, height() - 5, "framed: in the timeline");
}

int TopologyPicture::node_at(QPoint point) const {
  for (int n = 0; n < static_cast<int>(nodes_.size()); ++n) {
    if (node_rect(n).contains(point)) return nodes_[static_cast<std::size_t>(n)];
  }
  return -1;
}

void TopologyPicture::mousePressEvent(QMouseEvent* event) {
  const int node = node_at(event->pos());
  if (node >= 0) Q_EMIT node_clicked(node);
}

bool TopologyPicture::event(QEvent* event) {
  if (event->type() != QEvent::ToolTip || topology_ == nullptr) return QWidget::event(event);
  const auto* help = static_cast<QHelpEvent*>(event);
  const int node = node_at(help->pos());
  QString tip = node >= 0 ? QString("node %1").arg(node) : QString();
  int shown = 0;
  for (const LinkLoadRow& row : loads_) {
    if (node < 0 || !row.link || topology_->link(*row.link).node != node || ++shown > 12) continue;
    tip += QString("\n%1: %2 GB/s, %3")
               .arg(text(row.name))
               .arg(row.mean, 0, 'f', 1)
               .arg(share_text(row.load(), 1));
  }
  QToolTip::showText(help->globalPos(), tip, this);
  return true;
}

TopologyView::TopologyView(Session& session, QWidget* parent)
    : QWidget(parent),
      session_(session),
      summary_(new QLabel),
      picture_(new TopologyPicture),
      table_(new QTableWidget) {
  setObjectName("topology");
  summary_->setWordWrap(true);
  style_table(*table_, "Links by load");
  table_->setColumnCount(5);
  table_->setHorizontalHeaderLabels({"link", "mean GB/s", "peak GB/s", "capacity", "load"});
  table_->horizontalHeader()->setSectionResizeMode(0, QHeaderView::Stretch);
  auto* right = new QVBoxLayout;
  right->addWidget(summary_);
  right->addWidget(table_, 1);
  auto* layout = new QHBoxLayout(this);
  layout->setContentsMargins(4, 4, 4, 4);
  layout->addWidget(picture_, 3);
  layout->addLayout(right, 2);
  connect(&session_, &Session::store_changed, this, &TopologyView::take_store);
  connect(&session_, &Session::range_changed, this, &TopologyView::refresh);
  connect(picture_, &TopologyPicture::node_clicked, this, [this](int node) {
    const Store& store = *session_.store();
    for (const Track& track : store.tracks) {
      if (store.processes[track.process].node == node && track.count > 0) {
        Q_EMIT session_.reveal(track.first);
        return;
      }
    }
  });
}

void TopologyView::take_store() {
  topology_.reset();
  const Store* store = session_.store();
  if (store != nullptr && !store->scenario_json.empty()) {
    try {
      const Scenario scenario =
          parse_scenario(store->scenario_json, store->title, {}, {data_directory() / "scenarios"});
      topology_ = std::make_unique<Topology>(scenario.cluster);
    } catch (const std::exception&) {
      topology_.reset();  // a trace of another version: links are listed without their capacity
    }
  }
  refresh();
}

void TopologyView::refresh() {
  const Store* store = session_.store();
  if (store == nullptr) return;
  loads_ = link_loads(*store, topology_.get(), session_.range_or_all());
  std::vector<int> ranks;
  if (topology_) {
    ranks.assign(static_cast<std::size_t>(topology_->gpus()), -1);
    for (const TraceProcess& p : store->processes) {
      const auto at = p.name.rfind("gpu ");
      const std::size_t gpu = at == std::string::npos
                                  ? ranks.size()
                                  : std::strtoul(p.name.c_str() + at + 4, nullptr, 10);
      if (gpu < ranks.size()) ranks[gpu] = p.rank;
    }
  }
  picture_->set(topology_.get(), loads_, ranks);
  const int rows = std::min<int>(kMaxRows, static_cast<int>(loads_.size()));
  table_->setRowCount(rows);
  for (int r = 0; r < rows; ++r) {
    const LinkLoadRow& row = loads_[static_cast<std::size_t>(r)];
    const QString cells[] = {
        text(row.name), QString::number(row.mean, 'f', 2), QString::number(row.peak, 'f', 2),
        row.capacity > 0 ? QString::number(row.capacity, 'f', 1) : QString("-"),
        row.capacity > 0 ? share_text(row.load(), 1) : QString("-")};
    for (int c = 0; c < 5; ++c) {
      auto* item = new QTableWidgetItem(cells[c]);
      if (c > 0) item->setTextAlignment(Qt::AlignRight | Qt::AlignVCenter);
      table_->setItem(r, c, item);
    }
  }
  summary_->setText(loads_.empty() ? QString("No link carried anything in this trace.")
                                   : QString("Busiest over the %1: <b>%2</b>, %3 of its capacity.")
                                         .arg(session_.range() ? "selected range" : "whole run",
                                              text(loads_.front().name),
                                              share_text(loads_.front().load(), 1)));
}

}  // namespace gputwin::gui
