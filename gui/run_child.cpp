#include "gui/run_child.h"

#include <signal.h>

#include <QCoreApplication>
#include <QDir>
#include <QFileInfo>
#include <QJsonDocument>
#include <QJsonObject>

namespace gputwin::gui {

namespace {

constexpr qsizetype kMaxLog = 1 << 20;
constexpr qsizetype kMaxLine = 64 << 20;

}  // namespace

QString gputwin_program() {
  const QString named = qEnvironmentVariable("GPUTWIN_BINARY");
  if (!named.isEmpty()) return named;
  const QDir here(QCoreApplication::applicationDirPath());
  for (const char* path :
       {"gputwin", "../sim/cli/gputwin", "../../sim/cli/gputwin", "../../../sim/cli/gputwin"}) {
    const QFileInfo file(here.filePath(path));
    if (file.isExecutable() && file.isFile()) return file.canonicalFilePath();
  }
  return "gputwin";
}

RunChild::RunChild(QObject* parent) : QObject(parent) {
  connect(&process_, &QProcess::readyReadStandardOutput, this, &RunChild::read);
  connect(&process_, &QProcess::readyReadStandardError, this, [this] {
    log_ += QString::fromUtf8(process_.readAllStandardError());
    if (log_.size() > kMaxLog) log_ = log_.right(kMaxLog);
  });
  connect(&process_, &QProcess::finished, this, &RunChild::finish);
  connect(&process_, &QProcess::errorOccurred, this, [this](QProcess::ProcessError error) {
    if (error != QProcess::FailedToStart) return;
    end_.message = QString("%1 cannot be started: %2. Set GPUTWIN_BINARY to the program gputwin.")
                       .arg(process_.program(), process_.errorString());
    end_.code = -1;
    Q_EMIT ended(end_);
  });
  insist_.setSingleShot(true);
  connect(&insist_, &QTimer::timeout, this, [this] {
    if (!running()) return;
    if (++asked_ == 1) {
      process_.terminate();
      insist_.start(2000);
    } else {
      process_.kill();
    }
  });
}

RunChild::~RunChild() {
  process_.disconnect(this);
  if (!running()) return;
  process_.kill();
  process_.waitForFinished(1000);
}

void RunChild::start(const QString& scenario, const QStringList& options, const QString& trace) {
  end_ = {};
  rest_.clear();
  log_.clear();
  trace_ = trace;
  cancelled_ = false;
  asked_ = 0;
  clock_.start();
  QStringList arguments{"run", scenario, "--ipc"};
  if (!trace.isEmpty()) arguments << "--trace" << trace;
  process_.start(gputwin_program(), arguments + options);
}

void RunChild::cancel() {
  if (!running()) return;
  cancelled_ = true;
  ::kill(static_cast<pid_t>(process_.processId()), SIGINT);
  insist_.start(1000);
}

void RunChild::read() {
  rest_ += process_.readAllStandardOutput();
  qsizetype from = 0;
  for (qsizetype end; (end = rest_.indexOf('\n', from)) >= 0; from = end + 1) {
    take_line(rest_.mid(from, end - from));
  }
  rest_ = rest_.mid(from);
  if (rest_.size() > kMaxLine) process_.kill();  // no child of ours speaks so
}

void RunChild::take_line(const QByteArray& line) {
  const QJsonObject said = QJsonDocument::fromJson(line).object();
  const QString type = said["type"].toString();
  if (type == "progress") {
    Q_EMIT progress(said["fraction"].toDouble());
  } else if (type == "result") {
    // The text itself, not Qt's reading of it: numbers keep their digits.
    const qsizetype at = line.indexOf("\"result\":{");
    end_.result_json = QString::fromUtf8(line.mid(at + 9).chopped(1));
    end_.ok = at >= 0;
  } else if (type == "error") {
    end_.message = said["reason"].toString();
    end_.pointer = said["pointer"].toString();
    const QString fix = said["fix"].toString();
    if (!fix.isEmpty() && !end_.message.contains(fix)) end_.message += "\nWhat would do: " + fix;
  } else if (!line.isEmpty()) {
    log_ += QString::fromUtf8(line) + "\n";
  }
}

void RunChild::finish(int code, QProcess::ExitStatus status) {
  read();
  insist_.stop();
  end_.code = code;
  end_.cancelled = cancelled_;
  end_.seconds = static_cast<double>(clock_.elapsed()) / 1e3;
  end_.trace = trace_;
  end_.ok = end_.ok && code == 0 && status == QProcess::NormalExit;
  if (!end_.ok && cancelled_) {
    end_.message = "Cancelled";
  } else if (!end_.ok && status == QProcess::CrashExit) {
    end_.message = "The simulation crashed. What it said is in the log; nothing else is lost.";
  } else if (!end_.ok && end_.message.isEmpty()) {
    end_.message =
        QString("The simulation ended with code %1. What it said is in the log.").arg(code);
  }
  Q_EMIT ended(end_);
}

}  // namespace gputwin::gui
