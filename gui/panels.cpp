#include "gui/panels.h"

#include <fmt/format.h>

#include <QHeaderView>
#include <QHelpEvent>
#include <QPainter>
#include <QScrollBar>
#include <QToolTip>
#include <QVBoxLayout>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "gui/number_text.h"
#include "gui/run_result.h"
#include "gui/table_style.h"
#include "gui/theme.h"
#include "sim/app/report.h"

namespace gputwin::gui {

using nlohmann::json;

SelectionPanel::SelectionPanel(Session& session, QWidget* parent)
    : QTextBrowser(parent), session_(session) {
  setObjectName("selection");
  setAccessibleName("Selected slice");
  setOpenLinks(false);
  connect(&session_, &Session::selection_changed, this, &SelectionPanel::refresh);
  connect(this, &QTextBrowser::anchorClicked, this,
          [this](const QUrl& url) { Q_EMIT session_.reveal(url.toString().mid(1).toUInt()); });
  refresh();
}

namespace {

/// Bytes and operations as people read them, and exactly; the rest as it is written.
QString argument_text(const std::string& key, const json& value) {
  constexpr std::size_t kLongest = 400;
  if (value.is_number_integer() && key == "bytes") {
    return bytes_text(value.get<double>()) + ", " + count_text(value.get<std::int64_t>());
  }
  if (value.is_number_integer()) return count_text(value.get<std::int64_t>());
  const std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
  return text(shown.substr(0, kLongest));
}

}  // namespace

QString SelectionPanel::flows_html(SliceId slice) const {
  const Store& store = *session_.store();
  QString html;
  for (const bool out : {false, true}) {
    const auto rows = out ? store.flows_from(slice) : store.flows_to(slice);
    if (rows.empty()) continue;
    html += QString("<p><b>%1</b>").arg(out ? "flows out (key ])" : "flows in (key [)");
    for (std::size_t i = 0; i < rows.size() && i < 12; ++i) {
      const Flow& flow = store.flows()[rows[i]];
      const SliceId other = out ? flow.to : flow.from;
      const Track& track = store.tracks[store.track_of(other)];
      html += QString("<br><a href=\"#%1\">%2</a> on %3")
                  .arg(other)
                  .arg(text(store.name(other)).toHtmlEscaped(),
                       text(store.processes[track.process].name).toHtmlEscaped());
    }
    if (rows.size() > 12) html += QString("<br>and %1 more").arg(rows.size() - 12);
  }
  return html;
}

void SelectionPanel::refresh() {
  const SliceId s = session_.selected();
  if (session_.store() == nullptr || s == kNoSlice) {
    setHtml(
        "<p>Click a slice. Then <b>F</b> fits it, <b>.</b> and <b>,</b> step along its row, "
        "<b>[</b> and <b>]</b> follow its flows.</p>");
    return;
  }
  const Store& store = *session_.store();
  const Track& track = store.tracks[store.track_of(s)];
  QString html = QString("<p><b>%1</b></p><table cellspacing=0 cellpadding=2>")
                     .arg(text(store.name(s)).toHtmlEscaped());
  const auto row = [&html](const QString& name, const QString& value) {
    html += QString("<tr><td>%1&nbsp;&nbsp;</td><td>%2</td></tr>").arg(name, value.toHtmlEscaped());
  };
  row("duration", time_text(store.duration(s)));
  row("exactly", exact_text(store.duration(s)));
  row("from", time_text(store.start(s)));
  row("to", time_text(store.end(s)));
  row("kind", text(label(store.kind(s))));
  row("rank", text(store.processes[track.process].name));
  row("stream", text(track.name));
  const Definition& d = store.definition(s);
  if (!d.phase.empty()) row("phase", text(d.phase));
  if (d.layer >= 0) row("layer", QString::number(d.layer));
  if (store.framed(s)) row("micro-batch", QString::number(store.frame(s)));
  if (store.body(s) > 0) row("iteration", QString::number(store.body(s)));
  const std::string_view given = store.arguments(s);
  const json arguments = json::parse(given.begin(), given.end(), nullptr, false);
  if (arguments.is_object()) {
    for (const auto& [key, value] : arguments.items()) {
      row(text(key).toHtmlEscaped(), argument_text(key, value));
    }
  }
  setHtml(html + "</table>" + flows_html(s));
}

Bars::Bars(QWidget* parent) : QWidget(parent) {
  setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Fixed);
}

void Bars::set(std::vector<Bar> bars, double whole) {
  bars_ = std::move(bars);
  whole_ = whole > 0 ? whole : 1;
  QString spoken;
  for (const Bar& bar : bars_) spoken += bar.name + " " + bar.figure + "; ";
  setAccessibleDescription(spoken);
  updateGeometry();
  update();
}

QSize Bars::sizeHint() const { return {240, static_cast<int>(bars_.size()) * 34 + 2}; }

void Bars::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  int y = 0;
  for (const Bar& bar : bars_) {
    const QRect line(0, y, width(), 18);
    painter.setPen(theme().text);
    painter.drawText(line, Qt::AlignLeft | Qt::AlignVCenter, bar.name);
    painter.drawText(line, Qt::AlignRight | Qt::AlignVCenter, bar.figure);
    painter.fillRect(QRect(0, y + 19, width(), 8), theme().raised);
    const int filled =
        std::max(bar.value > 0 ? 2 : 0,
                 static_cast<int>(std::clamp(bar.value / whole_, 0.0, 1.0) * width()));
    painter.fillRect(QRect(0, y + 19, filled, 8), bar.colour);
    y += 34;
  }
}

bool Bars::event(QEvent* event) {
  if (event->type() != QEvent::ToolTip) return QWidget::event(event);
  const auto* help = static_cast<QHelpEvent*>(event);
  const auto at = static_cast<std::size_t>(std::max(0, help->pos().y()) / 34);
  QToolTip::showText(help->globalPos(), at < bars_.size() ? bars_[at].tip : QString(), this);
  return true;
}

std::vector<std::pair<QString, QString>> result_figures(const std::string& result_json) {
  std::vector<std::pair<QString, QString>> out;
  const json r = run_result(result_json);
  if (r.is_null()) return out;
  const auto number = [&r](const char* key) {
    return r.contains(key) ? r[key].get<double>() : 0.0;
  };
  out.emplace_back("iteration", text(human_time(number("iteration_time_s"))));
  if (r.contains("interval_s") && r["interval_s"].size() == 2) {
    out.emplace_back("80 % interval", text(human_time(r["interval_s"][0].get<double>()) + " to " +
                                           human_time(r["interval_s"][1].get<double>())));
  }
  out.emplace_back("tokens/s", text(grouped(std::llround(number("tokens_per_s")))));
  out.emplace_back("MFU", text(fmt::format("{:.1f} %", 100 * number("mfu"))));
  out.emplace_back("TFLOP/s per GPU", text(fmt::format("{:.1f}", number("model_tflops_per_gpu"))));
  if (r.contains("memory") && r["memory"].contains("peak_device_bytes")) {
    out.emplace_back("memory of the fullest GPU",
                     bytes_text(r["memory"]["peak_device_bytes"].get<double>()));
  }
  return out;
}

std::vector<std::pair<QString, double>> result_breakdown(const std::string& result_json) {
  static constexpr std::pair<const char*, const char*> kParts[] = {
      {"compute", "compute"},
      {"exposed_tp", "tp communication"},
      {"exposed_dp", "dp communication"},
      {"exposed_pp", "pp communication"},
      {"exposed_ep", "ep communication"},
      {"exposed_cp", "cp communication"},
      {"copy_stall", "copy stall"},
      {"bubble", "pipeline bubble"},
      {"optimizer", "optimizer"},
      {"host", "host"}};
  std::vector<std::pair<QString, double>> out;
  const json r = run_result(result_json);
  if (r.is_null() || !r.contains("breakdown_s")) return out;
  for (const auto& [key, name] : kParts) {
    if (r["breakdown_s"].contains(key)) out.emplace_back(name, r["breakdown_s"][key].get<double>());
  }
  return out;
}

namespace {

QColor part_colour(const QString& name) {
  const Theme& t = theme();
  if (name == "compute") return t.of(SliceKind::Gemm);
  if (name.startsWith("tp")) return t.of(SliceKind::TpComm);
  if (name.startsWith("dp")) return t.of(SliceKind::DpComm);
  if (name.startsWith("pp")) return t.of(SliceKind::PpComm);
  if (name.startsWith("ep") || name.startsWith("cp")) return t.of(SliceKind::OtherComm);
  if (name == "optimizer") return t.of(SliceKind::Optimizer);
  if (name == "copy stall") return t.of(SliceKind::Copy);
  return t.of(SliceKind::Other);
}

}  // namespace

BreakdownPanel::BreakdownPanel(Session& session, QWidget* parent)
    : QWidget(parent),
      session_(session),
      figures_(new QLabel),
      range_title_(new QLabel),
      run_bars_(new Bars),
      range_bars_(new Bars),
      ranks_(new QComboBox),
      asking_(this, [this](const Exposure& e) { show_exposure(e, asked_); }) {
  setObjectName("breakdown");
  run_bars_->setAccessibleName("Where the iteration goes");
  range_bars_->setAccessibleName("Where the selected time goes");
  ranks_->setAccessibleName("Rank");
  auto* layout = new QVBoxLayout(this);
  figures_->setTextInteractionFlags(Qt::TextSelectableByMouse);
  figures_->setWordWrap(true);
  range_title_->setWordWrap(true);
  layout->addWidget(figures_);
  layout->addWidget(run_bars_);
  layout->addWidget(range_title_);
  layout->addWidget(ranks_);
  layout->addWidget(range_bars_);
  layout->addStretch();
  connect(&session_, &Session::store_changed, this, &BreakdownPanel::refresh_run);
  connect(&session_, &Session::range_changed, this, &BreakdownPanel::refresh_range);
  connect(ranks_, &QComboBox::currentIndexChanged, this, &BreakdownPanel::refresh_range);
  refresh_run();
}

void BreakdownPanel::refresh_run() {
  const Store* store = session_.store();
  const std::string result = store != nullptr ? store->result_json : "";
  QString html;
  for (const auto& [name, value] : result_figures(result)) {
    html +=
        QString("<tr><td>%1&nbsp;&nbsp;</td><td style=\"white-space:nowrap\"><b>%2</b></td></tr>")
            .arg(name, value);
  }
  figures_->setText(
      html.isEmpty()
          ? QString(store == nullptr ? "" : "Not a run of gputwin: figures come from the slices.")
          : "<table>" + html + "</table><p>where the iteration goes (rank that ends last)</p>");
  std::vector<Bar> bars;
  double whole = 0;
  const auto parts = result_breakdown(result);
  for (const auto& part : parts) whole += part.second;
  for (const auto& [name, seconds] : parts) {
    if (seconds <= 0) continue;
    bars.push_back({name, text(human_time(seconds)) + "  " + share_text(seconds, whole), seconds,
                    part_colour(name), QString("%1 s").arg(seconds, 0, 'g', 17)});
  }
  run_bars_->set(std::move(bars), whole);
  const QSignalBlocker quiet(ranks_);
  ranks_->clear();
  if (store != nullptr) {
    std::vector<char> has(store->processes.size(), 0);
    for (const Track& track : store->tracks) has[track.process] |= track.count > 0 ? 1 : 0;
    for (std::size_t p = 0; p < store->processes.size(); ++p) {
      if (has[p] != 0) ranks_->addItem(text(store->processes[p].name), static_cast<int>(p));
    }
  }
  ranks_->setVisible(ranks_->count() > 0);
  refresh_range();
}

void BreakdownPanel::refresh_range() {
  const Store* store = session_.store();
  if (store == nullptr || ranks_->count() == 0) {
    asking_.drop();
    range_title_->clear();
    range_bars_->set({}, 1);
    return;
  }
  asked_ = session_.range_or_all();
  const TimeRange range = asked_;
  range_title_->setText(
      QString("%1, %2: time by kind, each where nothing more important runs")
          .arg(session_.range() ? "selected range" : "whole run", time_text(range.length())));
  const auto process = static_cast<std::uint32_t>(ranks_->currentData().toInt());
  asking_.ask([shared = session_.shared_store(), process, range](std::stop_token) {
    return exposure(*shared, process, range);
  });
}

void BreakdownPanel::show_exposure(const Exposure& e, TimeRange range) {
  std::vector<Bar> bars;
  const auto whole = static_cast<double>(range.length());
  for (std::size_t k = 0; k < kSliceKinds; ++k) {
    if (e.busy[k] == 0) continue;
    const auto kind = static_cast<SliceKind>(k);
    const Ps hidden = e.busy[k] - e.exposed[k];
    bars.push_back(
        {text(label(kind)),
         time_text(e.exposed[k]) + "  " + share_text(static_cast<double>(e.exposed[k]), whole),
         static_cast<double>(e.exposed[k]), theme().of(kind),
         QString("%1 in all, %2 of it hidden under other work")
             .arg(time_text(e.busy[k]), time_text(hidden))});
  }
  bars.push_back({"idle", time_text(e.idle) + "  " + share_text(static_cast<double>(e.idle), whole),
                  static_cast<double>(e.idle), theme().line, "nothing runs on this rank"});
  range_bars_->set(std::move(bars), whole);
}

void GroupTableModel::set(std::vector<GroupRow> rows, GroupBy by) {
  beginResetModel();
  rows_ = std::move(rows);
  by_ = by;
  total_ = 0;
  for (const GroupRow& row : rows_) total_ += row.around ? 0 : row.total;
  endResetModel();
}

int GroupTableModel::rowCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : static_cast<int>(rows_.size());
}

int GroupTableModel::columnCount(const QModelIndex&) const { return 7; }

QVariant GroupTableModel::headerData(int section, Qt::Orientation orientation, int role) const {
  if (role != Qt::DisplayRole || orientation != Qt::Horizontal) return {};
  static const char* const kNames[] = {"",     "slices",   "total",  "share",
                                       "mean", "shortest", "longest"};
  return section == 0 ? text(label(by_)) : QString(kNames[section]);
}

QVariant GroupTableModel::data(const QModelIndex& index, int role) const {
  const GroupRow& row = rows_[static_cast<std::size_t>(index.row())];
  if (role == Qt::DecorationRole && index.column() == 0) return theme().of(row.kind);
  if (role == Qt::TextAlignmentRole) return cell_alignment(index.column()).toInt();
  if (role == Qt::ToolTipRole) return text(row.key) + "\n" + exact_text(row.total);
  if (role != Qt::DisplayRole) return {};
  switch (index.column()) {
    case 0: return text(row.key);
    case 1: return count_text(row.count);
    case 2: return time_text(row.total);
    case 3:
      return row.around ? QString()
                        : share_text(static_cast<double>(row.total), static_cast<double>(total_));
    case 4: return time_text(row.total / std::max<std::int64_t>(1, row.count));
    case 5: return time_text(row.shortest);
    default: return time_text(row.longest);
  }
}

void GroupTableModel::sort(int column, Qt::SortOrder order) {
  const auto value = [column](const GroupRow& r) -> double {
    switch (column) {
      case 1: return static_cast<double>(r.count);
      case 4:
        return static_cast<double>(r.total) /
               static_cast<double>(std::max<std::int64_t>(1, r.count));
      case 5: return static_cast<double>(r.shortest);
      case 6: return static_cast<double>(r.longest);
      default: return static_cast<double>(r.total);
    }
  };
  beginResetModel();
  std::stable_sort(rows_.begin(), rows_.end(), [&](const GroupRow& a, const GroupRow& b) {
    const bool less = column == 0 ? a.key < b.key : value(a) < value(b);
    const bool more = column == 0 ? b.key < a.key : value(b) < value(a);
    return order == Qt::AscendingOrder ? less : more;
  });
  endResetModel();
}

TablePanel::TablePanel(Session& session, QWidget* parent)
    : QWidget(parent),
      session_(session),
      grouping_(grouping_choice(GroupBy::Op, "Group slices by")),
      title_(new QLabel),
      view_(new QTableView),
      model_(new GroupTableModel(this)),
      asking_(this, [this](std::vector<GroupRow> rows) {
        model_->set(std::move(rows), chosen_grouping(*grouping_));
        const QHeaderView& heads = *view_->horizontalHeader();
        model_->sort(heads.sortIndicatorSection(), heads.sortIndicatorOrder());
      }) {
  setObjectName("table");
  view_->setModel(model_);
  style_table(*view_, "Slices of the selected range by group");
  view_->setSortingEnabled(true);
  view_->sortByColumn(2, Qt::DescendingOrder);
  view_->horizontalHeader()->setStretchLastSection(false);
  view_->horizontalHeader()->setSectionResizeMode(0, QHeaderView::Stretch);
  auto* top = new QHBoxLayout;
  top->addWidget(grouping_);
  top->addWidget(title_, 1);
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(4, 4, 4, 4);
  layout->addLayout(top);
  layout->addWidget(view_, 1);
  connect(grouping_, &QComboBox::currentIndexChanged, this, &TablePanel::refresh);
  connect(&session_, &Session::store_changed, this, &TablePanel::refresh);
  connect(&session_, &Session::range_changed, this, &TablePanel::refresh);
  connect(view_, &QTableView::doubleClicked, this, [this](const QModelIndex& index) {
    const GroupRow row = model_->groups()[static_cast<std::size_t>(index.row())];
    const GroupBy by = chosen_grouping(*grouping_);
    if (by == GroupBy::Op || by == GroupBy::Kind || by == GroupBy::Phase) {
      session_.search(text(row.key));
    }
    Q_EMIT session_.reveal(row.example);
  });
}

void TablePanel::refresh() {
  if (session_.store() == nullptr) {
    asking_.drop();
    model_->set({}, GroupBy::Op);
    title_->clear();
    return;
  }
  const GroupBy by = chosen_grouping(*grouping_);
  const TimeRange range = session_.range_or_all();
  asking_.ask([store = session_.shared_store(), range, by](std::stop_token stop) {
    return aggregate(*store, range, by, {}, stop);
  });
  title_->setText(
      QString("%1, %2. Double click finds a group in the timeline.")
          .arg(session_.range() ? "Selected range" : "Whole run", time_text(range.length())));
}

QString TablePanel::csv() const {
  QString out = "group,kind,slices,total_ps,shortest_ps,longest_ps\n";
  for (const GroupRow& row : model_->groups()) {
    QString key = text(row.key);
    key.replace('"', "\"\"");
    out += QString("\"%1\",\"%2\",%3,%4,%5,%6\n")
               .arg(key, text(label(row.kind)))
               .arg(row.count)
               .arg(row.total)
               .arg(row.shortest)
               .arg(row.longest);
  }
  return out;
}

}  // namespace gputwin::gui
