#include "gui/main_window.h"

#include <QDir>
#include <QFile>
#include <QLabel>
#include <QPushButton>
#include <QTemporaryDir>
#include <atomic>

#include "gui/compare_view.h"
#include "gui/memory_view.h"
#include "gui/topology_view.h"
#include "sim/trace/gtr_file.h"
#include "tests/unit/gui/gui_world.h"

namespace gputwin::gui {
namespace {

class MainWindowTest : public testing::Test {
 protected:
  MainWindowTest() { need_application(); }
  void SetUp() override {
    window_ = std::make_unique<MainWindow>();
    window_->resize(1500, 900);
    window_->show();
    ASSERT_TRUE(QTest::qWaitForWindowExposed(window_.get()));
  }
  bool idle(int ms = 60'000) {
    return QTest::qWaitFor([this] { return !window_->busy() && !window_->scenario().running(); },
                           ms);
  }
  QString write(const QString& name, const QByteArray& bytes) {
    QFile file(folder_.filePath(name));
    EXPECT_TRUE(file.open(QIODevice::WriteOnly));
    file.write(bytes);
    return file.fileName();
  }
  QTemporaryDir folder_;
  std::unique_ptr<MainWindow> window_;
};

TEST_F(MainWindowTest, StartsWithThreeExamples) {
  const auto buttons = window_->findChild<QWidget*>("start")->findChildren<QPushButton*>();
  ASSERT_EQ(buttons.size(), 3);
  for (const QPushButton* button : buttons) {
    EXPECT_TRUE(window_->scenario().shipped().contains(button->objectName()));
  }
}

TEST_F(MainWindowTest, OpensATraceFile) {
  write_gtr(*two_ranks(20), folder_.filePath("a.gtr").toStdString());
  window_->open(folder_.filePath("a.gtr"));
  ASSERT_TRUE(idle());
  ASSERT_NE(window_->session().store(), nullptr);
  EXPECT_EQ(window_->session().store()->size(), 80u);
  EXPECT_TRUE(window_->message().startsWith("80 slices"));
}

// Whatever is wrong with a file: what was open stays, and the message says what and where.
TEST_F(MainWindowTest, HostileTracesGiveAMessageAndCostNothing) {
  window_->show_store(two_ranks(5));
  const Store* before = window_->session().store();
  const std::pair<QByteArray, const char*> files[] = {
      {"", "Chrome"},
      {"GTRACE\r\nxxxx", "header"},
      {"{\"traceEvents\":[", "event 0"},
      {"{\"traceEvents\":[]}", "holds no slice"},
      {QByteArray(200'000, '['), "Chrome"},
      {QByteArray("\x1f\x8b", 2) + QByteArray(64, 'z'), "damaged"}};
  for (const auto& [bytes, expected] : files) {
    window_->open(write("bad.json", bytes));
    ASSERT_TRUE(idle());
    EXPECT_TRUE(window_->message().contains(expected)) << window_->message().toStdString();
    EXPECT_TRUE(window_->message().contains("bad.json"));
    EXPECT_EQ(window_->session().store(), before);
  }
  window_->open(folder_.path());
  ASSERT_TRUE(idle());
  EXPECT_TRUE(window_->message().contains("is a folder"));
}

// A result inside a trace whose keys are of other types than ours: the slices are shown, the
// figures are not, and nothing falls over.
TEST_F(MainWindowTest, ResultsOfOtherShapesAreNotShown) {
  for (const char* result :
       {"", "{", "[]", "7", R"({"iteration_time_s":"soon"})",
        R"({"iteration_time_s":1,"interval_s":["a","b"]})",
        R"({"iteration_time_s":1,"breakdown_s":{"compute":"much"}})",
        R"({"iteration_time_s":1,"memory":7})", R"({"iteration_time_s":1,"memory":{}})",
        R"({"iteration_time_s":1,"memory":{"by_role":[{"role":3}]}})",
        R"({"iteration_time_s":1,"memory":{"by_role":[{"role":"stage0","weights_bytes":[]}]}})"}) {
    Store store = *two_ranks(5);
    store.result_json = result;
    store.scenario_json = result;
    window_->show_store(std::make_shared<const Store>(std::move(store)));
    ASSERT_TRUE(idle());
    EXPECT_TRUE(window_->breakdown().run_bars().bars().empty()) << result;
    EXPECT_EQ(window_->memory().stages().rowCount(), 0) << result;
    EXPECT_EQ(window_->table().model().groups().size(), 2u) << result;
  }
}

TEST_F(MainWindowTest, OmniboxSearchesCommandsAndFindsRows) {
  window_->show_store(two_ranks(5));
  window_->omnibox().setText("fc1 mb3");
  QTest::keyClick(&window_->omnibox(), Qt::Key_Return);
  ASSERT_TRUE(idle());
  EXPECT_EQ(window_->session().hits().total, 2);
  EXPECT_EQ(window_->session().store()->name(window_->session().selected()), "F/mb3/L1/fc1");
  window_->omnibox().setText("> critical-path");
  QTest::keyClick(&window_->omnibox(), Qt::Key_Return);
  EXPECT_TRUE(window_->session().path_shown());
  window_->omnibox().setText("> no such thing");
  QTest::keyClick(&window_->omnibox(), Qt::Key_Return);
  EXPECT_TRUE(window_->message().startsWith("No such command"));
}

TEST_F(MainWindowTest, KeysRunCommands) {
  window_->show_store(two_ranks(5));
  QTest::keyClick(&window_->timeline(), Qt::Key_Period);
  const SliceId first = window_->session().selected();
  ASSERT_NE(first, kNoSlice);
  QTest::keyClick(&window_->timeline(), Qt::Key_Period);
  EXPECT_EQ(window_->session().selected(), first + 1);
  const double before = window_->timeline().window().per_pixel;
  QTest::keyClick(&window_->timeline(), Qt::Key_F);
  EXPECT_NE(window_->timeline().window().per_pixel, before);
  QTest::keyClick(&window_->timeline(), Qt::Key_M);
  EXPECT_TRUE(window_->session().range());
  QTest::keyClick(&window_->timeline(), Qt::Key_Slash);
  EXPECT_TRUE(window_->omnibox().hasFocus() || QApplication::focusWidget() == nullptr);
}

// Of 5 steps: 60 + 55 us of fc1 each, 2 x 30 us of all-reduce: 575 and 300 us in all.
TEST_F(MainWindowTest, TableShowsTheSelectedRange) {
  window_->show_store(two_ranks(5));
  ASSERT_TRUE(idle());
  const auto& groups = window_->table().model().groups();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].key, "fc1");
  EXPECT_EQ(groups[0].total, 575 * kUs);
  EXPECT_EQ(groups[1].total, 300 * kUs);
  window_->session().select_range(TimeRange{0, 100 * kUs});
  ASSERT_TRUE(idle());
  EXPECT_EQ(groups[0].total, 115 * kUs);
  EXPECT_TRUE(window_->table().csv().contains("\"fc1\",\"matrix multiply\",2,115000000,"));
}

// Rank 0 in one step of 100 us: 60 computing, 30 communicating in the open, 10 idle.
TEST_F(MainWindowTest, BreakdownSumsToTheRange) {
  window_->show_store(two_ranks(5));
  window_->session().select_range(TimeRange{0, 100 * kUs});
  ASSERT_TRUE(idle());
  const auto& bars = window_->breakdown().range_bars().bars();
  ASSERT_EQ(bars.size(), 3u);
  EXPECT_EQ(bars[0].figure, "60.00 us  60.0 %");
  EXPECT_EQ(bars[1].figure, "30.00 us  30.0 %");
  EXPECT_EQ(bars[2].figure, "10.00 us  10.0 %");
}

TEST_F(MainWindowTest, ComparesTheRunBeforeWithTheOpenOne) {
  window_->show_store(two_ranks(10));
  window_->show_store(two_ranks(10, 66 * kUs));
  ASSERT_TRUE(idle());
  const auto& rows = window_->compare().model().differences();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].key, "matrix multiply");  // 6 us more in each of 10 steps on each rank
  EXPECT_NEAR(rows[0].time_b - rows[0].time_a, 60e-6, 1e-12);
  EXPECT_EQ(rows[1].time_a, rows[1].time_b);
  EXPECT_TRUE(window_->compare().summary().contains("40 slices matched"));
  EXPECT_TRUE(window_->compare().summary().contains("B is slower by 6.000 us"))
      << window_->compare().summary().toStdString();
}

TEST_F(MainWindowTest, MemoryViewKnowsThePeak) {
  window_->show_store(two_ranks(5));
  EXPECT_EQ(window_->memory().ranks().count(), 2);
  EXPECT_EQ(window_->memory().chart().peak(), std::pair(9e9, Ps{400 * kUs}));
}

// 3 GiB at address 0 until 200 us, then 2 GiB at the same address; 1 GiB at 3 GiB all the time. The
// arena reaches to 4 GiB, and before 200 us all of it is in use.
TEST_F(MainWindowTest, MemoryViewMapsAddressesOfPlacedBuffers) {
  window_->show_store(two_ranks(5));
  EXPECT_TRUE(window_->memory().addresses().summary().contains("places no buffer itself"));
  StoreBuilder builder;
  const std::uint32_t p = builder.process({"rank 0", "stage0", 0, 0});
  const std::uint32_t t = builder.thread(p, "compute", 0);
  builder.slice(t, 0, 400 * kUs, builder.definition(kind_of_work("fc1", SliceKind::Gemm)), 0);
  builder.sample(builder.counter(p, "gpu memory", "activations_bytes"), 0, 4e9);
  const auto placed = [&](const char* name, std::int64_t gib_at, std::int64_t gib) {
    Buffer buffer;
    buffer.name = name;
    buffer.address = gib_at << 30;
    buffer.bytes = Bytes{gib << 30};
    return builder.counter(p, address_counter(Arena{"gpu", {}}), address_series(buffer));
  };
  const std::uint32_t first = placed("a", 0, 3), second = placed("b_bytes", 0, 2);
  builder.sample(placed("c", 3, 1), 0, 1);
  builder.sample(first, 0, 1);
  builder.sample(first, 200 * kUs, 0);
  builder.sample(second, 200 * kUs, 1);
  window_->show_store(std::make_shared<const Store>(builder.finish("t")));
  AddressMap& map = window_->memory().addresses();
  EXPECT_EQ(window_->memory().ranks().count(), 1);  // the map is no memory class of its own
  ASSERT_EQ(map.blocks().size(), 3u);
  EXPECT_EQ(map.blocks()[0].name, "b_bytes");
  EXPECT_EQ(map.extent(), std::int64_t{4} << 30);
  EXPECT_EQ(map.most_in_use(), std::int64_t{4} << 30);
  map.setFixedSize(400, 218);  // 18 of title, 50 a GiB
  const QImage image = map.grab().toImage();
  const auto free_at = [&](int x, double gib) {
    return image.pixelColor(x, 218 - static_cast<int>(gib * 50)) == theme().ground;
  };
  EXPECT_FALSE(free_at(100, 2.5));
  EXPECT_FALSE(free_at(100, 3.5));
  EXPECT_TRUE(free_at(300, 2.5));
  EXPECT_FALSE(free_at(300, 1.5));
  for (const Row& row : window_->timeline().rows().rows()) EXPECT_NE(row.label, "gpu addresses");
}

// A trace without scenario has no cluster; links with a counter are listed all the same.
TEST_F(MainWindowTest, TopologyViewListsLinksByLoad) {
  StoreBuilder builder;
  const std::uint32_t p = builder.process({"links", "", -1, -1});
  const std::uint32_t t = builder.thread(builder.process({"rank 0", "", 0, 0}), "compute", 0);
  builder.slice(t, 0, 100, builder.definition(kind_of_work("fc1", SliceKind::Gemm)), 0);
  for (const auto& [name, load] : {std::pair{"idle", 1.0}, {"busy", 20.0}}) {
    const std::uint32_t c = builder.counter(p, name, "GB/s");
    builder.sample(c, 0, load);
    builder.sample(c, 50, 0);
  }
  window_->show_store(std::make_shared<const Store>(builder.finish("t")));
  ASSERT_EQ(window_->topology().loads().size(), 2u);
  EXPECT_EQ(window_->topology().loads()[0].name, "busy");
  EXPECT_DOUBLE_EQ(window_->topology().loads()[0].mean, 10);
  EXPECT_DOUBLE_EQ(window_->topology().loads()[0].peak, 20);
}

TEST_F(MainWindowTest, ExportsEveryKindOfFile) {
  window_->show_store(two_ranks(5));
  for (const char* name : {"v.png", "v.svg", "v.html", "v.csv"}) {
    EXPECT_TRUE(window_->export_to(folder_.filePath(name))) << name;
    EXPECT_GT(QFile(folder_.filePath(name)).size(), 100) << name;
  }
  QFile svg(folder_.filePath("v.svg"));
  ASSERT_TRUE(svg.open(QIODevice::ReadOnly));
  EXPECT_EQ(svg.readAll().count("<rect x="), 20);
  EXPECT_FALSE(window_->export_to(folder_.filePath("v.txt")));
  EXPECT_FALSE(window_->export_to("/nowhere/at/all/v.png"));
  EXPECT_TRUE(window_->message().contains("cannot be written"));
}

TEST_F(MainWindowTest, ViewsAreSavedAndComeBack) {
  window_->show_store(two_ranks(50));
  window_->timeline().set_window({3e7, 5e4});
  window_->session().marks.push_back({7 * kUs, "here"});
  window_->session().select_range(TimeRange{10 * kUs, 20 * kUs});
  const QString view = window_->view_json();
  window_->commands().trigger("fit-all");
  window_->commands().trigger("clear");
  ASSERT_TRUE(window_->apply_view(view));
  EXPECT_DOUBLE_EQ(window_->timeline().window().per_pixel, 5e4);
  ASSERT_EQ(window_->session().marks.size(), 1u);
  EXPECT_EQ(window_->session().marks[0].note, "here");
  EXPECT_EQ(window_->session().range(), (TimeRange{10 * kUs, 20 * kUs}));
  for (const char* bad : {"", "[]", "{\"gputwin_view\":2}", "{"}) {
    EXPECT_FALSE(window_->apply_view(bad)) << bad;
  }
}

TEST_F(MainWindowTest, EveryActionHasANameAndKeysAreUnique) {
  QSet<QString> keys;
  for (const QString& name : window_->commands().names()) {
    const QAction* action = window_->commands().at(name);
    EXPECT_FALSE(action->text().isEmpty());
    for (const QKeySequence& key : action->shortcuts()) {
      EXPECT_FALSE(keys.contains(key.toString())) << key.toString().toStdString();
      keys.insert(key.toString());
    }
  }
  EXPECT_GT(keys.size(), 25);
  window_->commands().trigger("help");
  for (const QWidget* widget : window_->findChildren<QWidget*>()) {
    const bool asks = qobject_cast<const QComboBox*>(widget) ||
                      qobject_cast<const QTableView*>(widget) ||
                      qobject_cast<const Timeline*>(widget);
    if (!asks) continue;
    EXPECT_FALSE(widget->accessibleName().isEmpty()) << widget->metaObject()->className();
  }
}

// Qt modules under the GPL alone (Charts, Data Visualization, …) must not come in, not even by a
// library. The platform plugin brings the last three.
TEST_F(MainWindowTest, OnlyLgplModulesOfQtAreLoaded) {
  const QStringList allowed{"Core", "Gui",  "Widgets", "Concurrent",
                            "Test", "DBus", "XcbQpa",  "OpenGL"};
  QFile maps("/proc/self/maps");
  if (!maps.open(QIODevice::ReadOnly)) GTEST_SKIP() << "no list of loaded libraries here";
  int modules = 0;
  for (const QByteArray& line : maps.readAll().split('\n')) {
    const qsizetype at = line.indexOf("/libQt6");
    if (at < 0) continue;
    const QString module = QString::fromLatin1(line.mid(at + 7)).section('.', 0, 0);
    EXPECT_TRUE(allowed.contains(module)) << module.toStdString();
    ++modules;
  }
  EXPECT_GT(modules, 3);
}

// The program itself, as it would be passed on.
TEST_F(MainWindowTest, TheProgramNamesOnlyLgplModules) {
  QProcess ldd;
  const QString program = QCoreApplication::applicationDirPath() + "/../../../gui/gputwin-gui";
  if (!QFile::exists(program)) GTEST_SKIP() << "gputwin-gui is not built";
  ldd.start("ldd", {program});
  if (!ldd.waitForFinished(20'000)) GTEST_SKIP() << "no ldd here";
  const QString said = QString::fromUtf8(ldd.readAllStandardOutput());
  const QStringList allowed{"Core", "Gui", "Widgets", "Concurrent", "DBus"};
  int modules = 0;
  for (const QString& line : said.split('\n')) {
    const QString library = line.trimmed().section(' ', 0, 0);
    if (!library.startsWith("libQt")) continue;
    ASSERT_TRUE(library.startsWith("libQt6")) << library.toStdString();
    EXPECT_TRUE(allowed.contains(library.mid(6).section('.', 0, 0))) << library.toStdString();
    ++modules;
  }
  EXPECT_GE(modules, 3);
}

// A newer question replaces the one before; a stopped one is told, and what it says is not shown.
TEST_F(MainWindowTest, AQuestionMayBeReplacedWhileItIsAsked) {
  std::vector<int> shown;
  std::atomic<bool> stopped = false;
  {
    Query<int> query(window_.get(), [&](int answer) { shown.push_back(answer); });
    query.ask([&](std::stop_token stop) {
      while (!stop.stop_requested()) QThread::msleep(1);
      stopped = true;
      return 1;
    });
    EXPECT_TRUE(query.busy());
    EXPECT_TRUE(shown.empty());
    query.ask([](std::stop_token) { return 2; });
    ASSERT_TRUE(QTest::qWaitFor([&] { return !query.busy() && stopped; }, 20'000));
    QApplication::processEvents();
    EXPECT_EQ(shown, std::vector<int>{2});
    query.ask([](std::stop_token stop) {
      while (!stop.stop_requested()) QThread::msleep(1);
      return 3;
    });
    query.drop();
    EXPECT_FALSE(query.busy());
  }  // the destructor waits for what is still asked
  QApplication::processEvents();
  EXPECT_EQ(shown, std::vector<int>{2});
}

TEST_F(MainWindowTest, BothThemesAreApplied) {
  window_->show_store(two_ranks(5));
  window_->commands().trigger("light");
  EXPECT_EQ(window_->timeline().grab().toImage().pixelColor(Timeline::kHeaderWidth + 2, 395),
            theme().ground);
  EXPECT_FALSE(theme().dark);
  window_->commands().trigger("dark");
  EXPECT_TRUE(theme().dark);
}

}  // namespace
}  // namespace gputwin::gui
