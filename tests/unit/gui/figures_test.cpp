// What the window shows is what the command line says, to the last digit.
#include <QFile>
#include <QTemporaryDir>
#include <nlohmann/json.hpp>

#include "gui/run_child.h"
#include "sim/trace/gtr_file.h"
#include "tests/unit/gui/gui_world.h"

namespace gputwin::gui {
namespace {

nlohmann::json without_timings(const std::string& text) {
  nlohmann::json result = nlohmann::json::parse(text);
  result["engine"].erase("wall_s");
  result["engine"].erase("peak_rss_bytes");
  return result;
}

// One run gives the report, result.json and the trace. The trace's figures are those of
// result.json, and every figure that panels show stands in the report as it is shown.
TEST(Figures, AreThoseOfTheCommandLineForEveryShippedScenario) {
  need_application();
  ScenarioPanel panel;
  ASSERT_GE(panel.shipped().size(), 20);
  for (const QString& name : panel.shipped()) {
    QTemporaryDir folder;
    const QString trace = folder.filePath("t.gtr");
    QProcess cli;
    cli.start(gputwin_program(), {"run", name, "--out", folder.path(), "--trace", trace});
    ASSERT_TRUE(cli.waitForFinished(300'000));
    ASSERT_EQ(cli.exitCode(), 0) << cli.readAllStandardError().toStdString();
    const QString report = QString::fromUtf8(cli.readAllStandardOutput());
    QFile file(folder.filePath("result.json"));
    ASSERT_TRUE(file.open(QIODevice::ReadOnly));
    const Store store = read_gtr(trace.toStdString());
    EXPECT_EQ(without_timings(store.result_json), without_timings(file.readAll().toStdString()));
    for (const auto& [what, figure] : result_figures(store.result_json)) {
      if (what.startsWith("memory") || what.startsWith("80 %")) continue;  // spelt otherwise there
      EXPECT_TRUE(report.contains(figure.section(' ', 0, 0)))
          << name.toStdString() << ": " << what.toStdString() << " " << figure.toStdString();
    }
    Session session;
    BreakdownPanel breakdown(session);
    session.set_store(std::make_shared<const Store>(store));
    ASSERT_FALSE(breakdown.run_bars().bars().empty());
    for (const Bar& bar : breakdown.run_bars().bars()) {
      if (bar.figure.endsWith(" 0.0 %")) continue;  // the report leaves such parts out
      const QStringList words = bar.figure.split(' ', Qt::SkipEmptyParts);
      EXPECT_TRUE(report.contains(words[0] + " " + words[1]))
          << name.toStdString() << ": " << bar.name.toStdString() << " "
          << bar.figure.toStdString();
    }
  }
}

}  // namespace
}  // namespace gputwin::gui
