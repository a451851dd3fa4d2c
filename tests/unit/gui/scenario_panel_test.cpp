// The form, and runs in a real child process.
#include "gui/scenario_panel.h"

#include <QComboBox>
#include <QLineEdit>
#include <QPushButton>

#include "sim/app/scenario_schema.h"
#include "tests/unit/gui/gui_world.h"

namespace gputwin::gui {
namespace {

constexpr const char* kSmall = "gpt3_6_7b__a100_2x8__tp2_pp2_dp4_straggler";

class ScenarioPanelTest : public testing::Test {
 protected:
  ScenarioPanelTest() { need_application(); }
  void SetUp() override {
    panel_ = std::make_unique<ScenarioPanel>();
    panel_->resize(330, 800);
    panel_->show();
    QObject::connect(panel_.get(), &ScenarioPanel::finished,
                     [this](const RunEnd& end) { ends_.push_back(end); });
  }
  QLineEdit* line(const char* pointer) {
    return qobject_cast<QLineEdit*>(panel_->form().field(pointer));
  }
  bool wait_for_run() {
    return QTest::qWaitFor([this] { return !ends_.empty(); }, 120'000);
  }
  std::unique_ptr<ScenarioPanel> panel_;
  std::vector<RunEnd> ends_;
};

// Every key of the schema that is no object has a field, whatever the schema grows to.
TEST_F(ScenarioPanelTest, HasAFieldForEveryKeyOfTheSchema) {
  const auto& layout = schema_json(SchemaKind::Scenario)["properties"]["layout"]["properties"];
  for (const auto& [name, sub] : layout.items()) {
    if (sub.contains("properties")) continue;
    EXPECT_NE(panel_->form().field(QString("/layout/") + name.c_str()), nullptr) << name;
  }
  EXPECT_NE(panel_->form().field("/job/precision/compute"), nullptr);
}

TEST_F(ScenarioPanelTest, ShowsAndEditsTheDocument) {
  ASSERT_TRUE(panel_->load(kSmall));
  EXPECT_EQ(line("/layout/tp")->text(), "2");
  line("/layout/tp")->clear();
  QTest::keyClicks(line("/layout/tp"), "4");
  EXPECT_EQ(panel_->form().document()["layout"]["tp"], 4);
  line("/layout/tp")->clear();
  QTest::keyClick(line("/layout/tp"), Qt::Key_Backspace);
  QTest::keyClicks(line("/layout/tp"), "8");
  QTest::keyClick(line("/layout/tp"), Qt::Key_Backspace);
  EXPECT_FALSE(panel_->form().document()["layout"].contains("tp"));
  auto* schedule = qobject_cast<QComboBox*>(panel_->form().field("/layout/schedule"));
  ASSERT_NE(schedule, nullptr);
  EXPECT_EQ(schedule->currentText(), "1f1b");
}

// The child's result.json, digit for digit, is what the command line prints for the same scenario.
TEST_F(ScenarioPanelTest, RunsAChildAndShowsItsFigures) {
  ASSERT_TRUE(panel_->load(kSmall));
  panel_->run();
  EXPECT_TRUE(panel_->running());
  ASSERT_TRUE(wait_for_run());
  ASSERT_TRUE(ends_[0].ok) << ends_[0].message.toStdString();
  QProcess cli;
  cli.start(gputwin_program(), {"run", kSmall, "--json"});
  ASSERT_TRUE(cli.waitForFinished(120'000));
  Document from_cli = Document::parse(cli.readAllStandardOutput().toStdString());
  Document from_gui = Document::parse(ends_[0].result_json.toStdString());
  for (Document* d : {&from_cli, &from_gui}) {
    (*d)["engine"].erase("wall_s");
    (*d)["engine"].erase("peak_rss_bytes");
  }
  EXPECT_EQ(from_cli.dump(), from_gui.dump());
}

TEST_F(ScenarioPanelTest, SaysWhatIsWrongAtTheField) {
  ASSERT_TRUE(panel_->load(kSmall));
  line("/layout/tp")->clear();
  QTest::keyClicks(line("/layout/tp"), "3");
  ASSERT_TRUE(
      QTest::qWaitFor([this] { return panel_->estimate().startsWith("cannot run"); }, 60'000));
  panel_->run();
  ASSERT_TRUE(wait_for_run());
  EXPECT_FALSE(ends_[0].ok);
  EXPECT_EQ(ends_[0].code, 2);
  EXPECT_FALSE(panel_->status().isEmpty());
  EXPECT_FALSE(line("/layout/tp")->styleSheet().isEmpty()) << ends_[0].pointer.toStdString();
}

TEST_F(ScenarioPanelTest, EstimatesWhileTyping) {
  ASSERT_TRUE(panel_->load(kSmall));
  ASSERT_TRUE(
      QTest::qWaitFor([this] { return panel_->estimate().contains("an iteration"); }, 60'000));
}

// Where a layout should be stands a number, a list, a text: typing into its fields and taking a
// layout over do no harm.
TEST_F(ScenarioPanelTest, AFieldBelowWhatIsNoObjectSaysSo) {
  for (const char* layout : {"5", "[1,2]", "\"x\"", "null"}) {
    ASSERT_TRUE(panel_->load_text(std::string("{\"layout\":") + layout + "}", "odd"));
    QTest::keyClicks(line("/layout/tp"), "4");
    if (QString(layout) != "null") {
      EXPECT_FALSE(line("/layout/tp")->styleSheet().isEmpty()) << layout;
    }
    panel_->use_layout(Document{{"tp", 8}});
    EXPECT_EQ(panel_->form().document()["layout"]["tp"], 8) << layout;
  }
}

// A child that is killed is a message, not the end of the window; the next run works.
TEST_F(ScenarioPanelTest, CancelsAndRunsAgain) {
  ASSERT_TRUE(panel_->load("gpt3_175b__a100_128x8__tp8_pp16_dp8"));
  panel_->run();
  panel_->cancel();
  ASSERT_TRUE(wait_for_run());
  EXPECT_TRUE(ends_[0].cancelled);
  EXPECT_EQ(panel_->status(), "Cancelled");
  ends_.clear();
  ASSERT_TRUE(panel_->load(kSmall));
  panel_->run();
  ASSERT_TRUE(wait_for_run());
  EXPECT_TRUE(ends_[0].ok);
}

// The child dies of a signal half way: its last words are in the log, and the next run works.
TEST_F(ScenarioPanelTest, ACrashIsToldWithItsLogAndCostsNothing) {
  QTemporaryDir folder;
  QFile fake(folder.filePath("fake"));
  ASSERT_TRUE(fake.open(QIODevice::WriteOnly));
  fake.write(
      "#!/bin/sh\necho '{\"type\":\"progress\",\"fraction\":0.5}'\n"
      "echo 'last words' >&2\nkill -SEGV $$\n");
  fake.close();
  fake.setPermissions(QFile::ReadOwner | QFile::ExeOwner | QFile::WriteOwner);
  qputenv("GPUTWIN_BINARY", fake.fileName().toUtf8());
  QString log;
  QObject::connect(panel_.get(), &ScenarioPanel::log, [&](const QString& said) { log += said; });
  ASSERT_TRUE(panel_->load(kSmall));
  panel_->run();
  ASSERT_TRUE(wait_for_run());
  qunsetenv("GPUTWIN_BINARY");
  EXPECT_FALSE(ends_[0].ok);
  EXPECT_FALSE(ends_[0].cancelled);
  EXPECT_TRUE(panel_->status().contains("crashed"));
  EXPECT_TRUE(log.contains("last words")) << log.toStdString();
  ends_.clear();
  panel_->run();
  ASSERT_TRUE(wait_for_run());
  EXPECT_TRUE(ends_[0].ok);
}

TEST_F(ScenarioPanelTest, AMissingProgramIsNamed) {
  qputenv("GPUTWIN_BINARY", "/nowhere/gputwin");
  ASSERT_TRUE(panel_->load(kSmall));
  panel_->run();
  ASSERT_TRUE(wait_for_run());
  EXPECT_TRUE(ends_[0].message.contains("/nowhere/gputwin"));
  qunsetenv("GPUTWIN_BINARY");
}

TEST_F(ScenarioPanelTest, BrokenScenarioFilesAreRefused) {
  QTemporaryDir folder;
  QFile file(folder.filePath("x.json"));
  ASSERT_TRUE(file.open(QIODevice::WriteOnly));
  file.write("{\"layout\": [");
  file.close();
  EXPECT_FALSE(panel_->load(file.fileName()));
  EXPECT_TRUE(panel_->status().contains("is no scenario"));
  ASSERT_TRUE(file.open(QIODevice::WriteOnly | QIODevice::Truncate));
  file.write("{\"layout\":" + QByteArray(200'000, '[') + QByteArray(200'000, ']') + "}");
  file.close();
  EXPECT_FALSE(panel_->load(file.fileName()));
  EXPECT_TRUE(panel_->status().contains("nested too deep"));
  EXPECT_FALSE(panel_->load("no_such_run"));
  EXPECT_TRUE(panel_->status().contains("cannot be read"));
}

}  // namespace
}  // namespace gputwin::gui
