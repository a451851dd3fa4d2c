// gputwin-gui: sees timelines, changes scenarios, compares runs.
#include <QApplication>
#include <QCommandLineParser>
#include <QStyleFactory>
#include <QTimer>

#include "gui/main_window.h"
#include "gui/theme.h"

namespace {

/// Waits until nothing is read, run or estimated any more, then goes on with `next`.
void when_idle(gputwin::gui::MainWindow& window, std::function<void()> next) {
  auto* timer = new QTimer(&window);
  QObject::connect(timer, &QTimer::timeout, &window, [&window, timer, next = std::move(next)] {
    if (window.busy() || window.scenario().running() || window.scenario().estimating()) return;
    timer->deleteLater();
    next();
  });
  timer->start(20);
}

}  // namespace

int main(int argc, char** argv) {
  QApplication application(argc, argv);
  QApplication::setApplicationName("gputwin-gui");
  QApplication::setApplicationVersion(GPUTWIN_VERSION);
  QApplication::setStyle(QStyleFactory::create("Fusion"));
  QCommandLineParser parser;
  parser.setApplicationDescription(
      "Shows timelines of training jobs, runs scenarios, compares runs.\n\n"
      "Example: gputwin-gui out/gpt3/trace.gtr\n"
      "         gputwin-gui a.gtr b.gtr          b over a, with the difference");
  parser.addHelpOption();
  parser.addVersionOption();
  parser.addPositionalArgument("traces", ".gtr, .json or .json.gz; of two, the first is A",
                               "[trace…]");
  const QCommandLineOption scenario("scenario", "Load a scenario file or shipped run.", "name");
  const QCommandLineOption command(
      "command", "Run this command once everything is open (see the help page); repeatable.",
      "name");
  const QCommandLineOption picture("export", "Then write the view: .png, .svg, .html or .csv.",
                                   "file");
  const QCommandLineOption whole("picture", "Then write a picture of the window.", "file");
  const QCommandLineOption size("size", "Size of the window, for example 1600x1000.", "WxH");
  const QCommandLineOption light("light", "Light colours.");
  const QCommandLineOption quit("quit", "Then quit.");
  parser.addOptions({scenario, command, picture, whole, size, light, quit});
  parser.process(application);

  gputwin::gui::set_theme(!parser.isSet(light));
  gputwin::gui::MainWindow window;
  const QStringList wh = parser.value(size).split('x');
  if (wh.size() == 2) window.resize(wh[0].toInt(), wh[1].toInt());
  window.show();
  if (parser.isSet(scenario)) window.scenario().load(parser.value(scenario));
  const QStringList traces = parser.positionalArguments();
  if (!traces.isEmpty()) window.open(traces.first());
  when_idle(window, [&] {
    if (traces.size() > 1) window.open(traces[1]);
    when_idle(window, [&] {
      for (const QString& name : parser.values(command)) {
        if (!window.commands().trigger(name)) qWarning("no such command: %s", qPrintable(name));
      }
      when_idle(window, [&] {
        bool ok = true;
        if (parser.isSet(picture)) ok = window.export_to(parser.value(picture));
        if (!ok) qWarning("%s", qPrintable(window.message()));
        if (parser.isSet(whole)) ok = window.grab().save(parser.value(whole)) && ok;
        if (parser.isSet(quit)) QApplication::exit(ok ? 0 : 2);
      });
    });
  });
  return QApplication::exec();
}
