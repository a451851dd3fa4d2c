#include "gui/scenario_panel.h"

#include <fmt/format.h>

#include <QDir>
#include <QFile>
#include <QFileInfo>
#include <QGridLayout>
#include <QSaveFile>
#include <fstream>

#include "gui/number_text.h"
#include "gui/theme.h"
#include "sim/app/data_directory.h"
#include "sim/app/report.h"
#include "sim/app/scenario_schema.h"

namespace gputwin::gui {

namespace {

constexpr int kRestMs = 250;  // after the last change

QStringList names_in(const char* folder) {
  const QDir dir(QString::fromStdString((data_directory() / "scenarios" / folder).string()));
  QStringList names;
  for (const QFileInfo& file : dir.entryInfoList({"*.json"}, QDir::Files, QDir::Name)) {
    names << file.completeBaseName();
  }
  return names;
}

/// The schema in the order of its file, which is the order of the form.
Document schema_document() {
  std::ifstream in(data_directory() / "scenarios" / "schema" / "scenario.schema.json");
  Document schema = Document::parse(in, nullptr, false);
  return schema.is_object() ? schema : Document(schema_json(SchemaKind::Scenario));
}

/// A scenario as written, to be checked by the child. What is nested this deep is no scenario, and
/// would be written by as many calls within calls.
Document scenario_document(const std::string& json) {
  constexpr int kDeepest = 100;
  Document parsed = Document::parse(json, [](int depth, Document::parse_event_t, Document&) {
    if (depth > kDeepest) throw std::runtime_error("it is nested too deep");
    return true;
  });
  if (!parsed.is_object()) throw std::runtime_error("it is no JSON object");
  return parsed;
}

double iteration_of(const QString& result_json) {
  const Document r = Document::parse(result_json.toStdString(), nullptr, false);
  return r.is_object() ? r.value("iteration_time_s", 0.0) : 0.0;
}

}  // namespace

ScenarioPanel::ScenarioPanel(QWidget* parent)
    : QWidget(parent),
      choice_(new QComboBox),
      estimate_(new QLabel),
      status_(new QLabel),
      progress_(new QProgressBar),
      run_(new QPushButton("Run")),
      cancel_(new QPushButton("Cancel")) {
  setObjectName("scenario");
  form_ = new ScenarioForm(schema_document(), names_in("models"), names_in("clusters"));
  choice_->addItem("choose a shipped scenario");
  choice_->addItems(shipped());
  choice_->setAccessibleName("Shipped scenarios");
  choice_->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
  choice_->setMinimumContentsLength(20);
  run_->setAccessibleName("Run the scenario");
  run_->setToolTip("Simulate the scenario as edited (Ctrl+R)");
  cancel_->setAccessibleName("Cancel the run");
  cancel_->setEnabled(false);
  progress_->setAccessibleName("Progress of the run");
  progress_->setRange(0, 1000);
  progress_->setTextVisible(true);
  for (QLabel* label : {estimate_, status_}) {
    label->setWordWrap(true);
    label->setTextInteractionFlags(Qt::TextSelectableByMouse);
  }
  auto* layout = new QGridLayout(this);
  layout->setContentsMargins(6, 6, 6, 6);
  layout->addWidget(choice_, 0, 0, 1, 2);
  layout->addWidget(form_, 1, 0, 1, 2);
  layout->addWidget(estimate_, 2, 0, 1, 2);
  layout->addWidget(run_, 3, 0);
  layout->addWidget(cancel_, 3, 1);
  layout->addWidget(progress_, 4, 0, 1, 2);
  layout->addWidget(status_, 5, 0, 1, 2);
  layout->setRowStretch(1, 1);
  rest_.setSingleShot(true);
  rest_.setInterval(kRestMs);
  connect(&rest_, &QTimer::timeout, this, &ScenarioPanel::estimate_now);
  connect(form_, &ScenarioForm::edited, this, &ScenarioPanel::edited);
  connect(choice_, &QComboBox::activated, this, [this](int index) {
    if (index > 0) load(choice_->currentText());
  });
  connect(run_, &QPushButton::clicked, this, &ScenarioPanel::run);
  connect(cancel_, &QPushButton::clicked, this, &ScenarioPanel::cancel);
  connect(&runner_, &RunChild::progress, this,
          [this](double f) { progress_->setValue(static_cast<int>(f * 1000)); });
  connect(&runner_, &RunChild::ended, this, &ScenarioPanel::run_ended);
  connect(&estimator_, &RunChild::ended, this, &ScenarioPanel::estimate_ended);
}

QStringList ScenarioPanel::shipped() const { return names_in("runs"); }

void ScenarioPanel::set_status(const QString& text, bool bad) {
  status_->setText(text);
  status_->setStyleSheet(bad ? "color: " + theme().warn.name() : "");
}

bool ScenarioPanel::load(const QString& path_or_name) {
  QString path = path_or_name;
  if (!QFileInfo::exists(path)) {
    const auto shipped = data_directory() / "scenarios" / "runs" / (path.toStdString() + ".json");
    path = QString::fromStdString(shipped.string());
  }
  QFile file(path);
  if (!file.open(QIODevice::ReadOnly)) {
    set_status(path + " cannot be read: " + file.errorString(), true);
    return false;
  }
  return load_text(file.read(64 << 20).toStdString(), QFileInfo(path).completeBaseName());
}

bool ScenarioPanel::load_text(const std::string& json, const QString& name) {
  Document document;
  try {
    document = scenario_document(json);
  } catch (const std::exception& error) {
    set_status(name + " is no scenario: " + error.what(), true);
    return false;
  }
  const int index = choice_->findText(name);
  choice_->setCurrentIndex(std::max(0, index));
  form_->set_document(std::move(document));
  set_status("", false);
  last_iteration_ = 0;
  rest_.start();
  return true;
}

void ScenarioPanel::use_layout(const Document& layout) {
  Document document = form_->document();
  if (!document["layout"].is_object()) document["layout"] = Document::object();
  for (const auto& [key, value] : layout.items()) document["layout"][key] = value;
  form_->set_document(std::move(document));
  rest_.start();
}

bool ScenarioPanel::save(const QString& path) {
  QSaveFile file(path);
  const std::string text = form_->document().dump(2) + "\n";
  if (file.open(QIODevice::WriteOnly) &&
      file.write(text.data(), static_cast<qint64>(text.size())) >= 0 && file.commit()) {
    return true;
  }
  set_status(path + " cannot be written: " + file.errorString(), true);
  return false;
}

QString ScenarioPanel::write_document(const QString& name) const {
  const QString path = folder_.filePath(name);
  QFile file(path);
  if (!file.open(QIODevice::WriteOnly)) return {};
  file.write(QByteArray::fromStdString(form_->document().dump(2)));
  return path;
}

void ScenarioPanel::edited() { rest_.start(); }

void ScenarioPanel::estimate_now() {
  if (form_->document().empty()) return;
  if (estimator_.running()) {  // the answer under way is of an older scenario
    estimate_again_ = true;
    return estimator_.cancel();
  }
  estimate_again_ = false;
  estimate_->setText("estimate: …");
  estimator_.start(write_document("estimate.json"), {"--executor", "reference"});
}

void ScenarioPanel::estimate_ended(const RunEnd& end) {
  if (estimate_again_) return estimate_now();
  if (!end.ok) {
    estimate_->setText(end.cancelled ? QString() : "cannot run: " + end.message);
    form_->show_error(end.pointer, end.message);
    return;
  }
  form_->show_error("", "");
  const double now = iteration_of(end.result_json);
  QString shown = "estimate: " + text(human_time(now)) + " an iteration";
  if (last_iteration_ > 0) {
    shown += text(fmt::format(", {:+.1f} % to the last run", 100 * (now / last_iteration_ - 1)));
  }
  estimate_->setText(shown + " (longest path, no contention)");
}

void ScenarioPanel::run() {
  if (runner_.running() || form_->document().empty()) {
    if (form_->document().empty()) set_status("Choose or open a scenario first", true);
    return;
  }
  progress_->setValue(0);
  run_->setEnabled(false);
  cancel_->setEnabled(true);
  set_status("simulating …", false);
  const QString name = QString("run%1").arg(++runs_);
  runner_.start(write_document(name + ".json"), {}, folder_.filePath(name + ".gtr"));
}

void ScenarioPanel::run_ended(const RunEnd& end) {
  run_->setEnabled(true);
  cancel_->setEnabled(false);
  progress_->setValue(end.ok ? 1000 : 0);
  Q_EMIT log(QString("run %1: %2 in %3 s\n%4")
                 .arg(runs_)
                 .arg(end.ok ? "done" : end.message)
                 .arg(end.seconds, 0, 'f', 2)
                 .arg(runner_.log()));
  if (end.ok) {
    last_iteration_ = iteration_of(end.result_json);
    set_status("done in " + text(human_time(end.seconds)) + ": " +
                   text(human_time(last_iteration_)) + " an iteration",
               false);
  } else {
    set_status(end.message, !end.cancelled);
    form_->show_error(end.pointer, end.message);
  }
  Q_EMIT finished(end);
}

}  // namespace gputwin::gui
