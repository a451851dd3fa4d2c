// Panels beside the timeline: the selected slice, where the time goes, the table of groups.
#pragma once

#include <QAbstractTableModel>
#include <QComboBox>
#include <QLabel>
#include <QTableView>
#include <QTextBrowser>
#include <QWidget>

#include "gui/query.h"
#include "gui/session.h"

namespace gputwin::gui {

/// Name, times, place, arguments and flows of the selected slice; links lead along the flows.
class SelectionPanel : public QTextBrowser {
  Q_OBJECT

 public:
  explicit SelectionPanel(Session& session, QWidget* parent = nullptr);

 private:
  void refresh();
  QString flows_html(SliceId slice) const;
  Session& session_;
};

/// Bars that sum to a whole, with a name and a figure each.
struct Bar {
  QString name, figure;
  double value = 0;
  QColor colour;
  QString tip;
};

class Bars : public QWidget {
 public:
  explicit Bars(QWidget* parent = nullptr);
  void set(std::vector<Bar> bars, double whole);
  const std::vector<Bar>& bars() const { return bars_; }
  QSize sizeHint() const override;

 protected:
  void paintEvent(QPaintEvent* event) override;
  bool event(QEvent* event) override;

 private:
  std::vector<Bar> bars_;
  double whole_ = 1;
};

/// Figures of the run as the command line reports them, and the exposed time of one rank within the
/// selected range, from the slices.
class BreakdownPanel : public QWidget {
  Q_OBJECT

 public:
  explicit BreakdownPanel(Session& session, QWidget* parent = nullptr);
  const Bars& run_bars() const { return *run_bars_; }
  const Bars& range_bars() const { return *range_bars_; }
  bool busy() const { return asking_.busy(); }
  QString figures() const { return figures_->text(); }

 private:
  void refresh_run();
  void refresh_range();
  void show_exposure(const Exposure& exposure, TimeRange range);
  Session& session_;
  QLabel *figures_, *range_title_;
  Bars *run_bars_, *range_bars_;
  QComboBox* ranks_;
  TimeRange asked_;
  Query<Exposure> asking_;
};

class GroupTableModel : public QAbstractTableModel {
  Q_OBJECT

 public:
  using QAbstractTableModel::QAbstractTableModel;
  void set(std::vector<GroupRow> rows, GroupBy by);
  const std::vector<GroupRow>& groups() const { return rows_; }
  int rowCount(const QModelIndex& parent = {}) const override;
  int columnCount(const QModelIndex& parent = {}) const override;
  QVariant data(const QModelIndex& index, int role) const override;
  QVariant headerData(int section, Qt::Orientation orientation, int role) const override;
  void sort(int column, Qt::SortOrder order) override;

 private:
  std::vector<GroupRow> rows_;
  Ps total_ = 0;
  GroupBy by_ = GroupBy::Op;
};

/// Slices of the selected range by group. Double click: find the group's longest slice and mark all
/// of its slices in the timeline.
class TablePanel : public QWidget {
  Q_OBJECT

 public:
  explicit TablePanel(Session& session, QWidget* parent = nullptr);
  GroupTableModel& model() { return *model_; }
  QComboBox& grouping() { return *grouping_; }
  QTableView& view() { return *view_; }
  bool busy() const { return asking_.busy(); }
  QString csv() const;

 private:
  void refresh();
  Session& session_;
  QComboBox* grouping_;
  QLabel* title_;
  QTableView* view_;
  GroupTableModel* model_;
  Query<std::vector<GroupRow>> asking_;
};

/// The figures of a result.json as the report prints them: "iteration", "31.54 s", …
std::vector<std::pair<QString, QString>> result_figures(const std::string& result_json);
/// Parts of breakdown_s in order of the report, in seconds; empty for no result.
std::vector<std::pair<QString, double>> result_breakdown(const std::string& result_json);

}  // namespace gputwin::gui
