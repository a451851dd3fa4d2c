#include "gui/search_view.h"

#include <signal.h>

#include <QFile>
#include <QHeaderView>
#include <QHelpEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QToolTip>
#include <QVBoxLayout>
#include <algorithm>
#include <cmath>

#include "gui/number_text.h"
#include "gui/run_child.h"
#include "gui/table_style.h"
#include "gui/theme.h"
#include "sim/app/report.h"

namespace gputwin::gui {

namespace {

constexpr const char* kLayoutKeys[] = {"tp", "sp", "cp", "pp", "vpp", "dp", "zero", "micro_batch"};
constexpr int kMargin = 40;
constexpr std::int64_t kMaxResultBytes = 64 << 20;

FoundRow row_of(const nlohmann::ordered_json& j, bool pareto) {
  FoundRow row;
  row.words = text(j.value("layout", std::string()));
  row.gpus = j.value("gpus", std::int64_t{0});
  row.simulated = j.contains("simulated_s");
  row.seconds = row.simulated ? j["simulated_s"].get<double>() : j.value("closed_form_s", 0.0);
  row.bytes = row.simulated ? j.value("device_bytes", 0.0) : j.value("closed_form_bytes", 0.0);
  row.pareto = pareto;
  for (const char* key : kLayoutKeys) {
    if (j.contains(key)) row.layout[key] = j[key];
  }
  return row;
}

}  // namespace

ScatterPlot::ScatterPlot(QWidget* parent) : QWidget(parent) {
  setMinimumSize(300, 160);
  setAccessibleName("Time and memory of the layouts found");
}

void ScatterPlot::set(std::vector<FoundRow> rows) {
  rows_ = std::move(rows);
  chosen_ = -1;
  update();
}

void ScatterPlot::choose(int row) {
  chosen_ = row;
  update();
}

QPointF ScatterPlot::point_of(int row) const {
  double most_s = 0, least_s = 1e300, most_b = 0;
  for (const FoundRow& r : rows_) {
    most_s = std::max(most_s, r.seconds);
    least_s = std::min(least_s, r.seconds);
    most_b = std::max(most_b, r.bytes);
  }
  const FoundRow& r = rows_[static_cast<std::size_t>(row)];
  const double wide = width() - kMargin - 20, high = height() - kMargin - 20;
  const double span = std::max(most_s - least_s, 1e-12 + 0.05 * most_s);
  return {kMargin + 10 + wide * (r.seconds - least_s) / span,
          10 + high * (1 - (most_b > 0 ? r.bytes / most_b : 0))};
}

void ScatterPlot::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  painter.fillRect(rect(), theme().ground);
  painter.setPen(theme().dim);
  if (rows_.empty()) {
    painter.drawText(rect(), Qt::AlignCenter, "No result yet");
    return;
  }
  painter.drawText(QRect(0, height() - 18, width() - 6, 16), Qt::AlignRight,
                   "time of an iteration →");
  painter.drawText(6, 14, "memory of the fullest GPU ↑");
  painter.setPen(theme().line);
  painter.drawLine(kMargin, 16, kMargin, height() - kMargin + 14);
  painter.drawLine(kMargin, height() - kMargin + 14, width() - 8, height() - kMargin + 14);
  std::vector<QPointF> front;
  for (int r = 0; r < static_cast<int>(rows_.size()); ++r) {
    if (rows_[static_cast<std::size_t>(r)].pareto) front.push_back(point_of(r));
  }
  std::sort(front.begin(), front.end(), [](QPointF a, QPointF b) { return a.x() < b.x(); });
  painter.setPen(QPen(theme().better, 1, Qt::DashLine));
  painter.drawPolyline(front.data(), static_cast<int>(front.size()));
  for (int r = 0; r < static_cast<int>(rows_.size()); ++r) {
    const FoundRow& row = rows_[static_cast<std::size_t>(r)];
    const QColor colour = row.pareto ? theme().better : theme().dim;
    painter.setPen(QPen(r == chosen_ ? theme().accent : colour, r == chosen_ ? 3 : 1));
    painter.setBrush(row.simulated ? QBrush(colour) : QBrush(Qt::NoBrush));
    painter.drawEllipse(point_of(r), 5, 5);
  }
}

int ScatterPlot::row_at(QPointF point) const {
  int best = -1;
  double nearest = 12;
  for (int r = 0; r < static_cast<int>(rows_.size()); ++r) {
    const QPointF d = point_of(r) - point;
    const double distance = std::hypot(d.x(), d.y());
    if (distance < nearest) {
      nearest = distance;
      best = r;
    }
  }
  return best;
}

void ScatterPlot::mousePressEvent(QMouseEvent* event) {
  const int row = row_at(event->position());
  if (row < 0) return;
  choose(row);
  Q_EMIT chosen(row);
}

bool ScatterPlot::event(QEvent* event) {
  if (event->type() != QEvent::ToolTip) return QWidget::event(event);
  const auto* help = static_cast<QHelpEvent*>(event);
  const int row = row_at(help->pos());
  QToolTip::showText(help->globalPos(),
                     row < 0 ? QString() : rows_[static_cast<std::size_t>(row)].words, this);
  return true;
}

SearchView::SearchView(QWidget* parent)
    : QWidget(parent),
      summary_(new QLabel("Search the layouts of the scenario, or open a search.json.")),
      search_(new QPushButton("Search layouts")),
      plot_(new ScatterPlot),
      table_(new QTableWidget),
      rejected_(new QTableWidget) {
  setObjectName("search");
  summary_->setWordWrap(true);
  search_->setAccessibleName("Search the layouts of the scenario");
  style_table(*table_, "Layouts found");
  style_table(*rejected_, "Why other layouts failed");
  auto* top = new QHBoxLayout;
  top->addWidget(search_);
  top->addWidget(summary_, 1);
  auto* body = new QHBoxLayout;
  body->addWidget(table_, 3);
  body->addWidget(plot_, 2);
  body->addWidget(rejected_, 2);
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(4, 4, 4, 4);
  layout->addLayout(top);
  layout->addLayout(body, 1);
  connect(search_, &QPushButton::clicked, this, [this] {
    if (running()) return cancel();
    Q_EMIT search_wanted();
  });
  connect(&process_, &QProcess::finished, this, &SearchView::ended);
  connect(&process_, &QProcess::errorOccurred, this, [this](QProcess::ProcessError error) {
    if (error == QProcess::FailedToStart) ended(-1);
  });
  connect(plot_, &ScatterPlot::chosen, table_, &QTableWidget::selectRow);
  connect(table_, &QTableWidget::currentCellChanged, this, [this](int row) { plot_->choose(row); });
  connect(table_, &QTableWidget::cellDoubleClicked, this,
          [this](int row) { Q_EMIT use_layout(rows_[static_cast<std::size_t>(row)].layout); });
}

SearchView::~SearchView() {
  process_.disconnect(this);
  if (!running()) return;
  process_.kill();
  process_.waitForFinished(1000);
}

void SearchView::start(const QString& scenario) {
  if (running()) return;
  search_->setText("Cancel");
  summary_->setText("searching …");
  process_.start(gputwin_program(), {"search", scenario, "--json"});
}

void SearchView::cancel() {
  if (running()) ::kill(static_cast<pid_t>(process_.processId()), SIGINT);
}

void SearchView::ended(int code) {
  search_->setText("Search layouts");
  const QByteArray out = process_.readAllStandardOutput();
  if (!out.isEmpty() && show_result(out.toStdString(), "the search")) return;
  const QString said = QString::fromUtf8(process_.readAllStandardError()).trimmed();
  summary_->setText(said.isEmpty() ? QString("The search ended with code %1.").arg(code) : said);
}

bool SearchView::open(const QString& path) {
  QFile file(path);
  if (!file.open(QIODevice::ReadOnly)) {
    summary_->setText(path + " cannot be read: " + file.errorString());
    return false;
  }
  return show_result(file.read(kMaxResultBytes).toStdString(), path);
}

bool SearchView::show_result(const std::string& json, const QString& name) {
  const auto result = nlohmann::ordered_json::parse(json, nullptr, false);
  if (!result.is_object() || !result.contains("best") || !result["best"].is_array()) {
    summary_->setText(name + " is no result of gputwin search");
    return false;
  }
  std::vector<FoundRow> rows;
  std::vector<std::pair<QString, std::int64_t>> reasons;
  QString said;
  try {
    for (const auto& j : result["best"]) rows.push_back(row_of(j, false));
    for (const auto& j : result.value("pareto", nlohmann::ordered_json::array())) {
      FoundRow row = row_of(j, true);
      const auto same = std::find_if(rows.begin(), rows.end(), [&](const FoundRow& r) {
        return r.words == row.words && r.gpus == row.gpus;
      });
      if (same != rows.end())
        same->pareto = true;
      else
        rows.push_back(std::move(row));
    }
    for (const auto& j : result.value("rejected", nlohmann::ordered_json::array())) {
      reasons.emplace_back(text(j.value("reason", std::string())),
                           j.value("layouts", std::int64_t{0}));
    }
    said = QString("%1 layouts looked at, %2 fit%3. Double click takes one into the scenario.")
               .arg(count_text(result.value("looked_at", std::int64_t{0})),
                    count_text(result.value("feasible", std::int64_t{0})),
                    result.value("stopped", false) ? " (stopped before the end)" : "");
  } catch (const nlohmann::json::exception& error) {
    summary_->setText(name + " is no result of gputwin search: " + error.what());
    return false;
  }
  rows_ = std::move(rows);
  fill_tables(reasons);
  summary_->setText(said);
  plot_->set(rows_);
  return true;
}

void SearchView::fill_tables(const std::vector<std::pair<QString, std::int64_t>>& reasons) {
  const auto put = [](QTableWidget* table, int row, int column, const QString& words) {
    auto* item = new QTableWidgetItem(words);
    item->setTextAlignment(cell_alignment(column));
    table->setItem(row, column, item);
  };
  table_->setColumnCount(4);
  table_->setHorizontalHeaderLabels({"layout", "GPUs", "time", "memory"});
  table_->horizontalHeader()->setSectionResizeMode(0, QHeaderView::Stretch);
  table_->setRowCount(static_cast<int>(rows_.size()));
  for (int r = 0; r < static_cast<int>(rows_.size()); ++r) {
    const FoundRow& row = rows_[static_cast<std::size_t>(r)];
    put(table_, r, 0, row.words);
    put(table_, r, 1, count_text(row.gpus));
    put(table_, r, 2, text(human_time(row.seconds)) + (row.simulated ? "" : " est."));
    put(table_, r, 3, bytes_text(row.bytes));
  }
  rejected_->setColumnCount(2);
  rejected_->setHorizontalHeaderLabels({"why others failed", "layouts"});
  rejected_->horizontalHeader()->setSectionResizeMode(0, QHeaderView::Stretch);
  rejected_->setRowCount(static_cast<int>(reasons.size()));
  for (int r = 0; r < static_cast<int>(reasons.size()); ++r) {
    const auto& [reason, layouts] = reasons[static_cast<std::size_t>(r)];
    put(rejected_, r, 0, reason);
    put(rejected_, r, 1, count_text(layouts));
  }
}

}  // namespace gputwin::gui
