// Nodes, GPUs and links of the cluster, coloured by load over the selected range.
#pragma once

#include <QLabel>
#include <QTableWidget>
#include <QWidget>
#include <map>
#include <memory>
#include <optional>

#include "gui/session.h"
#include "sim/core/topology.h"

namespace gputwin::gui {

struct LinkLoadRow {
  std::string name;
  std::uint32_t counter = 0;
  double mean = 0, peak = 0;   // GB/s within the range
  double capacity = 0;         // GB/s; 0: not known
  std::optional<LinkId> link;  // of the topology, if the scenario tells it
  double load() const { return capacity > 0 ? mean / capacity : 0; }
};

/// Loads of all links with a counter, highest share of their capacity first.
std::vector<LinkLoadRow> link_loads(const Store& store, const Topology* topology, TimeRange range);

class TopologyPicture : public QWidget {
  Q_OBJECT

 public:
  explicit TopologyPicture(QWidget* parent = nullptr);
  void set(const Topology* topology, std::vector<LinkLoadRow> loads, std::vector<int> ranks_of_gpu);

 Q_SIGNALS:
  void node_clicked(int node);

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  bool event(QEvent* event) override;

 private:
  QRect node_rect(int node) const;
  void paint_node(QPainter& painter, int node);
  void paint_fabric(QPainter& painter, const QRect& at);
  int node_at(QPoint point) const;
  double load_of(int node, int index, std::initializer_list<LinkKind> kinds) const;

  const Topology* topology_ = nullptr;
  std::vector<LinkLoadRow> loads_;
  std::vector<int> ranks_of_gpu_;
  std::vector<int> nodes_;  // shown
};

class TopologyView : public QWidget {
  Q_OBJECT

 public:
  explicit TopologyView(Session& session, QWidget* parent = nullptr);
  const std::vector<LinkLoadRow>& loads() const { return loads_; }
  QString summary() const { return summary_->text(); }
  const Topology* topology() const { return topology_.get(); }

 private:
  void take_store();
  void refresh();
  Session& session_;
  std::unique_ptr<Topology> topology_;
  std::vector<LinkLoadRow> loads_;
  QLabel* summary_;
  TopologyPicture* picture_;
  QTableWidget* table_;
};

}  // namespace gputwin::gui
