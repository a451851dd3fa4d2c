// Two runs: A, the one before or another, over B, the open one; what explains the difference.
#pragma once

#include <QAbstractTableModel>
#include <QComboBox>
#include <QImage>
#include <QLabel>
#include <QTableView>
#include <QWidget>
#include <memory>

#include "gui/query.h"
#include "gui/session.h"

namespace gputwin::gui {

class DifferenceModel : public QAbstractTableModel {
  Q_OBJECT

 public:
  using QAbstractTableModel::QAbstractTableModel;
  void set(std::vector<Difference> rows, const QString& group);
  const std::vector<Difference>& differences() const { return rows_; }
  int rowCount(const QModelIndex& parent = {}) const override;
  int columnCount(const QModelIndex& parent = {}) const override {
    return parent.isValid() ? 0 : 7;
  }
  QVariant data(const QModelIndex& index, int role) const override;
  QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

 private:
  std::vector<Difference> rows_;
  double largest_ = 0;
  QString group_;
};

/// Both runs in strips over one time axis, and per kind how durations of matched slices spread.
class ComparePicture : public QWidget {
 public:
  explicit ComparePicture(QWidget* parent = nullptr);
  void set(std::shared_ptr<const Store> a, std::shared_ptr<const Store> b);
  void set_errors(const Comparison& comparison);

 protected:
  void paintEvent(QPaintEvent* event) override;

 private:
  std::shared_ptr<const Store> a_, b_;
  QImage strip_a_, strip_b_;
  bool dark_ = true;
  std::array<std::int64_t, Comparison::kBins> errors_{};
};

class CompareView : public QWidget {
  Q_OBJECT

 public:
  explicit CompareView(Session& session, QWidget* parent = nullptr);
  void set_baseline(std::shared_ptr<const Store> a);
  bool has_baseline() const { return a_ != nullptr; }
  bool busy() const { return asking_.busy(); }
  const DifferenceModel& model() const { return *model_; }
  QString summary() const { return summary_->text(); }
  QComboBox& grouping() { return *grouping_; }

 private:
  void refresh();
  void show_comparison(const Comparison& result);
  Session& session_;
  std::shared_ptr<const Store> a_;
  QComboBox* grouping_;
  QLabel* summary_;
  ComparePicture* picture_;
  QTableView* view_;
  DifferenceModel* model_;
  Query<Comparison> asking_;
};

}  // namespace gputwin::gui
