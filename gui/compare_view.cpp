#include "gui/compare_view.h"

#include <fmt/format.h>

#include <QHeaderView>
#include <QPainter>
#include <QVBoxLayout>

#include "gui/number_text.h"
#include "gui/raster.h"
#include "gui/run_result.h"
#include "gui/table_style.h"
#include "gui/theme.h"
#include "sim/app/report.h"

namespace gputwin::gui {

namespace {

/// Iteration time of a run, else the length of its timeline.
double length_of(const Store& store) {
  const nlohmann::json r = run_result(store.result_json);
  if (!r.is_null()) return r["iteration_time_s"].get<double>();
  return to_seconds(store.range().length()).value;
}

QString signed_time(double seconds) {
  return (seconds < 0 ? QString("−") : QString("+")) + text(human_time(std::abs(seconds)));
}

}  // namespace

void DifferenceModel::set(std::vector<Difference> rows, const QString& group) {
  beginResetModel();
  rows_ = std::move(rows);
  group_ = group;
  largest_ = 0;
  for (const Difference& row : rows_) {
    largest_ = std::max(largest_, std::abs(row.time_b - row.time_a));
  }
  endResetModel();
}

int DifferenceModel::rowCount(const QModelIndex& parent) const {
  return parent.isValid() ? 0 : static_cast<int>(rows_.size());
}

QVariant DifferenceModel::headerData(int section, Qt::Orientation orientation, int role) const {
  if (role != Qt::DisplayRole || orientation != Qt::Horizontal) return {};
  static const char* const kNames[] = {"",         "A per rank", "B per rank", "change",
                                       "relative", "slices A",   "slices B"};
  return section == 0 ? group_ : QString(kNames[section]);
}

QVariant DifferenceModel::data(const QModelIndex& index, int role) const {
  const Difference& row = rows_[static_cast<std::size_t>(index.row())];
  const double change = row.time_b - row.time_a;
  if (role == Qt::DecorationRole && index.column() == 0) return theme().of(row.kind);
  if (role == Qt::TextAlignmentRole) return cell_alignment(index.column()).toInt();
  if (role == Qt::ForegroundRole && (index.column() == 3 || index.column() == 4) && change != 0) {
    return change < 0 ? theme().better : theme().worse;
  }
  if (role != Qt::DisplayRole) return {};
  switch (index.column()) {
    case 0: return text(row.key);
    case 1: return text(human_time(row.time_a));
    case 2: return text(human_time(row.time_b));
    case 3: return change == 0 ? QString("0") : signed_time(change);
    case 4:
      return row.time_a > 0 ? text(fmt::format("{:+.1f} %", 100 * change / row.time_a))
                            : QString("new");
    case 5: return count_text(row.count_a);
    default: return count_text(row.count_b);
  }
}

ComparePicture::ComparePicture(QWidget* parent) : QWidget(parent) {
  setMinimumSize(320, 150);
  setAccessibleName("Both runs over one time axis");
}

void ComparePicture::set(std::shared_ptr<const Store> a, std::shared_ptr<const Store> b) {
  a_ = std::move(a);
  b_ = std::move(b);
  strip_a_ = strip_b_ = {};
  update();
}

void ComparePicture::set_errors(const Comparison& comparison) {
  errors_ = {};
  for (const auto& kind : comparison.errors) {
    for (std::size_t i = 0; i < errors_.size(); ++i) errors_[i] += kind[i];
  }
  update();
}

void ComparePicture::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  painter.fillRect(rect(), theme().panel);
  if (!a_ || !b_) return;
  const int strip = std::max(20, (height() - 74) / 2), wide = width() - 30;
  const auto longest = static_cast<double>(std::max(a_->range().length(), b_->range().length()));
  const auto draw = [&](const Store& store, QImage& image, int y, const QString& name) {
    const int w =
        std::max(1, static_cast<int>(wide * static_cast<double>(store.range().length()) / longest));
    if (image.width() != w || image.height() != strip || dark_ != theme().dark) {
      image = draw_overview(store, w, strip, theme());
    }
    painter.drawImage(24, y, image);
    painter.setPen(theme().text);
    painter.drawText(QRect(4, y, 20, strip), Qt::AlignVCenter, name);
  };
  draw(*a_, strip_a_, 2, "A");
  draw(*b_, strip_b_, strip + 6, "B");
  dark_ = theme().dark;
  // How durations of matched slices spread: B over A.
  const int base = height() - 16, top = 2 * strip + 14;
  std::int64_t most = 1;
  for (const std::int64_t n : errors_) most = std::max(most, n);
  const double bar = static_cast<double>(wide) / static_cast<double>(errors_.size());
  for (std::size_t i = 0; i < errors_.size(); ++i) {
    const double share =
        std::log1p(static_cast<double>(errors_[i])) / std::log1p(static_cast<double>(most));
    const int high = errors_[i] > 0 ? std::max(2, static_cast<int>(share * (base - top))) : 0;
    const QColor colour = i < 10 ? theme().better : i > 10 ? theme().worse : theme().dim;
    painter.fillRect(QRectF(24 + static_cast<double>(i) * bar, base - high, bar - 1, high), colour);
  }
  painter.setPen(theme().dim);
  painter.drawText(QRect(24, base, wide, 16), Qt::AlignLeft, "−50 %");
  painter.drawText(QRect(24, base, wide, 16), Qt::AlignHCenter, "same duration");
  painter.drawText(QRect(24, base, wide, 16), Qt::AlignRight, "+50 % in B");
}

CompareView::CompareView(Session& session, QWidget* parent)
    : QWidget(parent),
      session_(session),
      grouping_(grouping_choice(GroupBy::Kind, "Compare by")),
      summary_(new QLabel),
      picture_(new ComparePicture),
      view_(new QTableView),
      model_(new DifferenceModel(this)),
      asking_(this, [this](const Comparison& result) { show_comparison(result); }) {
  setObjectName("compare");
  view_->setModel(model_);
  style_table(*view_, "What explains the difference");
  view_->horizontalHeader()->setSectionResizeMode(QHeaderView::ResizeToContents);
  view_->horizontalHeader()->setSectionResizeMode(0, QHeaderView::Interactive);
  view_->horizontalHeader()->resizeSection(0, 150);
  summary_->setWordWrap(true);
  auto* top = new QHBoxLayout;
  top->addWidget(grouping_);
  top->addWidget(summary_, 1);
  auto* body = new QHBoxLayout;
  body->addWidget(view_, 3);
  body->addWidget(picture_, 2);
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(4, 4, 4, 4);
  layout->addLayout(top);
  layout->addLayout(body, 1);
  connect(grouping_, &QComboBox::currentIndexChanged, this, &CompareView::refresh);
  connect(&session_, &Session::store_changed, this, &CompareView::refresh);
  connect(view_, &QTableView::doubleClicked, this, [this](const QModelIndex& index) {
    const Difference& row = model_->differences()[static_cast<std::size_t>(index.row())];
    if (row.example_b != kNoSlice) Q_EMIT session_.reveal(row.example_b);
  });
  refresh();
}

void CompareView::set_baseline(std::shared_ptr<const Store> a) {
  a_ = std::move(a);
  refresh();
}

void CompareView::refresh() {
  if (!a_ || session_.store() == nullptr) {
    asking_.drop();
    model_->set({}, "");
    picture_->set(nullptr, nullptr);
    summary_->setText(
        "Run twice, or open a second trace with Compare with…: the one before becomes A.");
    return;
  }
  picture_->set(a_, session_.shared_store());
  summary_->setText("comparing …");
  const GroupBy by = chosen_grouping(*grouping_);
  asking_.ask([a = a_, b = session_.shared_store(), by](std::stop_token) {
    return gputwin::compare(*a, *b, by);
  });
}

void CompareView::show_comparison(const Comparison& result) {
  model_->set(result.rows, grouping_->currentText().mid(3));
  picture_->set_errors(result);
  const double a = length_of(*a_), b = length_of(*session_.store());
  QString why;
  if (!result.rows.empty() && result.rows.front().time_a != result.rows.front().time_b) {
    const Difference& row = result.rows.front();
    why = QString(" Largest change: %1, %2 per rank.")
              .arg(text(row.key), signed_time(row.time_b - row.time_a));
  }
  const auto named = [](const char* which, const Store& store, double seconds) {
    return QString("%1 %2, %3").arg(which, text(human_time(seconds)), text(store.title));
  };
  const QString by = text(human_time(std::abs(b - a)));
  const QString verdict = a == b  ? QString("B takes as long as A")
                          : b < a ? "B is faster by " + by
                                  : "B is slower by " + by;
  summary_->setText(
      QString("<b>%1 (%2)</b>.%3<br>%4; %5. %6 slices matched, %7 only in A, %8 only in B.")
          .arg(verdict, text(fmt::format("{:+.2f} %", a > 0 ? 100 * (b / a - 1) : 0.0)), why,
               named("A", *a_, a), named("B", *session_.store(), b))
          .arg(count_text(result.matched), count_text(result.only_a), count_text(result.only_b)));
}

}  // namespace gputwin::gui
