// Memory of one rank by class over time, the addresses of buffers that the run places itself, and
// what the run reports per stage.
#pragma once

#include <QComboBox>
#include <QTableWidget>
#include <QWidget>

#include "gui/address_map_view.h"
#include "gui/session.h"

namespace gputwin::gui {

/// Stacked areas of counters over the whole run, with the capacity of the device.
class MemoryChart : public QWidget {
 public:
  explicit MemoryChart(Session& session, QWidget* parent = nullptr);
  void set(std::vector<std::uint32_t> counters, double capacity);
  /// Sum of all classes at its largest, and when.
  std::pair<double, Ps> peak() const { return peak_; }

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;

 private:
  Session& session_;
  std::vector<std::uint32_t> counters_;
  double capacity_ = 0;
  std::pair<double, Ps> peak_{0, 0};
};

class MemoryView : public QWidget {
  Q_OBJECT

 public:
  explicit MemoryView(Session& session, QWidget* parent = nullptr);
  QComboBox& ranks() { return *ranks_; }
  const MemoryChart& chart() const { return *chart_; }
  const QTableWidget& stages() const { return *stages_; }
  AddressMap& addresses() { return *addresses_; }

 private:
  void take_store();
  void refresh();
  void fill_stages();
  Session& session_;
  QComboBox* ranks_;
  MemoryChart* chart_;
  AddressMap* addresses_;
  QTableWidget* stages_;
};

}  // namespace gputwin::gui
