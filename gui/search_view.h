// Results of gputwin search: time against memory, the layouts as a table, why others failed.
#pragma once

#include <QLabel>
#include <QProcess>
#include <QPushButton>
#include <QTableWidget>
#include <QWidget>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace gputwin::gui {

struct FoundRow {
  QString words;  // "tp 8, pp 16, …"
  double seconds = 0, bytes = 0;
  std::int64_t gpus = 0;
  bool simulated = false, pareto = false;
  nlohmann::ordered_json layout;  // tp, pp, … as keys of a scenario's layout
};

/// Points of time and memory; those that nothing beats in both are joined.
class ScatterPlot : public QWidget {
  Q_OBJECT

 public:
  explicit ScatterPlot(QWidget* parent = nullptr);
  void set(std::vector<FoundRow> rows);
  void choose(int row);
  int row_at(QPointF point) const;
  QPointF point_of(int row) const;

 Q_SIGNALS:
  void chosen(int row);

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  bool event(QEvent* event) override;

 private:
  std::vector<FoundRow> rows_;
  int chosen_ = -1;
};

class SearchView : public QWidget {
  Q_OBJECT

 public:
  explicit SearchView(QWidget* parent = nullptr);
  ~SearchView() override;

  /// Shows a search.json, or says what is wrong with it. False: what was shown stays.
  bool show_result(const std::string& json, const QString& name);
  bool open(const QString& path);
  /// Searches the layouts of a scenario file in a child process.
  void start(const QString& scenario);
  bool running() const { return process_.state() != QProcess::NotRunning; }
  void cancel();
  const std::vector<FoundRow>& found() const { return rows_; }
  QString summary() const { return summary_->text(); }
  ScatterPlot& plot() { return *plot_; }
  QTableWidget& table() { return *table_; }

 Q_SIGNALS:
  /// A layout was chosen for the scenario.
  void use_layout(const nlohmann::ordered_json& layout);
  void search_wanted();

 private:
  void fill_tables(const std::vector<std::pair<QString, std::int64_t>>& reasons);
  void ended(int code);
  QProcess process_;
  std::vector<FoundRow> rows_;
  QLabel* summary_;
  QPushButton* search_;
  ScatterPlot* plot_;
  QTableWidget *table_, *rejected_;
};

}  // namespace gputwin::gui
