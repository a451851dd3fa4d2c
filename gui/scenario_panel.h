// The scenario beside the timeline: choose, edit, estimate while typing, run, cancel.
#pragma once

#include <QComboBox>
#include <QLabel>
#include <QPlainTextEdit>
#include <QProgressBar>
#include <QPushButton>
#include <QTemporaryDir>
#include <QTimer>
#include <QWidget>

#include "gui/run_child.h"
#include "gui/scenario_form.h"

namespace gputwin::gui {

class ScenarioPanel : public QWidget {
  Q_OBJECT

 public:
  explicit ScenarioPanel(QWidget* parent = nullptr);

  /// A file, or the name of a shipped run. False, with a message shown, if it cannot be read.
  bool load(const QString& path_or_name);
  bool load_text(const std::string& json, const QString& name);
  bool save(const QString& path);
  /// Takes keys of a layout over (tp, pp, …) and estimates anew.
  void use_layout(const Document& layout);
  /// The scenario as edited, in a file of this program's own.
  QString written() const { return write_document("search.json"); }
  void run();
  void cancel() { runner_.cancel(); }
  bool running() const { return runner_.running(); }
  /// An estimate is under way, or about to be.
  bool estimating() const { return rest_.isActive() || estimator_.running(); }
  ScenarioForm& form() { return *form_; }
  QString status() const { return status_->text(); }
  QString estimate() const { return estimate_->text(); }
  QStringList shipped() const;

 Q_SIGNALS:
  /// A run is done; its trace lies at `end.trace`.
  void finished(const gputwin::gui::RunEnd& end);
  void log(const QString& text);

 private:
  void edited();
  void estimate_now();
  void run_ended(const RunEnd& end);
  void estimate_ended(const RunEnd& end);
  QString write_document(const QString& name) const;
  void set_status(const QString& text, bool bad);

  QTemporaryDir folder_;
  RunChild runner_, estimator_;
  QComboBox* choice_;
  ScenarioForm* form_;
  QLabel *estimate_, *status_;
  QProgressBar* progress_;
  QPushButton *run_, *cancel_;
  QTimer rest_;
  double last_iteration_ = 0;
  int runs_ = 0;
  bool estimate_again_ = false;
};

}  // namespace gputwin::gui
