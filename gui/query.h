// Questions to a trace on another thread, so that the window answers keys meanwhile.
#pragma once

#include <QDeadlineTimer>
#include <QFutureWatcher>
#include <QThread>
#include <QtConcurrent/QtConcurrentRun>
#include <functional>
#include <stop_token>
#include <utility>

namespace gputwin::gui {

/// One question at a time. A newer one stops the one before, whose answer is never shown.
template <class Answer>
class Query {
 public:
  /// `show` is called on the GUI's thread with the answer to the question asked last.
  Query(QObject* owner, std::function<void(Answer)> show) : show_(std::move(show)) {
    QObject::connect(&watcher_, &QFutureWatcher<Answer>::finished, owner, [this] { finish(); });
  }
  ~Query() {
    stop_.request_stop();
    watcher_.disconnect();
    watcher_.waitForFinished();
  }

  /// What comes within a blink is shown before this returns: small traces never flicker.
  void ask(std::function<Answer(std::stop_token)> question) {
    drop();
    stop_ = std::stop_source();
    asked_ = true;
    const auto run = [question = std::move(question), token = stop_.get_token()] {
      return question(token);
    };
    watcher_.setFuture(QtConcurrent::run(run));
    const QDeadlineTimer blink(kBlinkMs);
    while (!watcher_.future().isFinished() && !blink.hasExpired()) QThread::usleep(200);
    if (watcher_.future().isFinished()) finish();
  }
  /// Stops a question under way; nothing is shown.
  void drop() {
    stop_.request_stop();
    asked_ = false;
  }
  bool busy() const { return asked_; }

 private:
  static constexpr int kBlinkMs = 20;
  void finish() {
    if (!asked_ || !watcher_.future().isFinished()) return;
    asked_ = false;
    show_(watcher_.future().result());
  }
  std::function<void(Answer)> show_;
  QFutureWatcher<Answer> watcher_;
  std::stop_source stop_;
  bool asked_ = false;
};

}  // namespace gputwin::gui
