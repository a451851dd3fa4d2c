// A run of gputwin in a child process: SimGrid allows one engine a process, and a crash there must
// cost nothing here.
#pragma once

#include <QElapsedTimer>
#include <QObject>
#include <QProcess>
#include <QTimer>

namespace gputwin::gui {

/// What a child said at its end.
struct RunEnd {
  bool ok = false, cancelled = false;
  int code = 0;
  QString message;  // why not, and what would do; empty when ok
  QString pointer;  // into the scenario, if a value of it is wrong
  QString result_json;
  QString trace;
  double seconds = 0;  // wall clock
};

/// The program gputwin: GPUTWIN_BINARY, else beside this program or where the build puts it.
QString gputwin_program();

class RunChild : public QObject {
  Q_OBJECT

 public:
  explicit RunChild(QObject* parent = nullptr);
  ~RunChild() override;

  /// Runs `gputwin run SCENARIO --ipc` with `options`; one at a time.
  void start(const QString& scenario, const QStringList& options, const QString& trace = {});
  bool running() const { return process_.state() != QProcess::NotRunning; }
  /// Asks, then insists after 1 s, then kills after 3 s.
  void cancel();
  const QString& log() const { return log_; }

 Q_SIGNALS:
  void progress(double fraction);
  void ended(const gputwin::gui::RunEnd& end);

 private:
  void read();
  void take_line(const QByteArray& line);
  void finish(int code, QProcess::ExitStatus status);

  QProcess process_;
  QTimer insist_;
  QElapsedTimer clock_;
  QByteArray rest_;
  QString log_, trace_;
  RunEnd end_;
  bool cancelled_ = false;
  int asked_ = 0;
};

}  // namespace gputwin::gui
