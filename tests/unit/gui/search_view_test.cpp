#include "gui/search_view.h"

#include <QFile>
#include <QPushButton>
#include <QTemporaryDir>

#include "tests/unit/gui/gui_world.h"

namespace gputwin::gui {
namespace {

constexpr const char* kResult = R"({"schema":1,"scenario":"s","stopped":false,"looked_at":5000,
  "feasible":120,"given":null,
  "best":[{"layout":"tp 2, pp 4","gpus":16,"tp":2,"pp":4,"dp":2,"closed_form_s":1.1,
           "closed_form_bytes":2e9,"simulated_s":1.2,"device_bytes":3e9},
          {"layout":"tp 4, pp 2","gpus":16,"tp":4,"pp":2,"dp":2,"closed_form_s":2.0,
           "closed_form_bytes":1e9}],
  "pareto":[{"layout":"tp 2, pp 4","gpus":16,"tp":2,"pp":4,"dp":2,"closed_form_s":1.1,
             "closed_form_bytes":2e9,"simulated_s":1.2,"device_bytes":3e9}],
  "rejected":[{"reason":"more memory than there is","layouts":4880,"example":"tp 1"}]})";

class SearchViewTest : public testing::Test {
 protected:
  SearchViewTest() { need_application(); }
  /// A program that stands in for gputwin.
  void pretend(const QByteArray& script) {
    QFile file(folder_.filePath("fake"));
    ASSERT_TRUE(file.open(QIODevice::WriteOnly));
    file.write("#!/bin/sh\n" + script);
    file.close();
    file.setPermissions(QFile::ReadOwner | QFile::ExeOwner | QFile::WriteOwner);
    qputenv("GPUTWIN_BINARY", folder_.filePath("fake").toUtf8());
  }
  QTemporaryDir folder_;
};

// Simulated figures win over the closed form; a layout on the front is not listed twice.
TEST_F(SearchViewTest, ShowsLayoutsFrontAndReasons) {
  SearchView view;
  view.resize(1200, 300);
  view.show();
  ASSERT_TRUE(view.show_result(kResult, "r"));
  ASSERT_EQ(view.found().size(), 2u);
  EXPECT_TRUE(view.found()[0].pareto);
  EXPECT_EQ(view.found()[0].seconds, 1.2);
  EXPECT_EQ(view.found()[1].seconds, 2.0);
  EXPECT_FALSE(view.found()[1].simulated);
  EXPECT_EQ(view.table().item(0, 2)->text(), "1.200 s");
  EXPECT_TRUE(view.summary().startsWith("5,000 layouts looked at, 120 fit"));
  // The faster one lies further left, the one with less memory further down.
  EXPECT_LT(view.plot().point_of(0).x(), view.plot().point_of(1).x());
  EXPECT_LT(view.plot().point_of(0).y(), view.plot().point_of(1).y());
  EXPECT_EQ(view.plot().row_at(view.plot().point_of(1)), 1);
}

TEST_F(SearchViewTest, AClickOnAPointChoosesItsRow) {
  SearchView view;
  view.resize(1200, 300);
  view.show();
  view.show_result(kResult, "r");
  QTest::mouseClick(&view.plot(), Qt::LeftButton, {}, view.plot().point_of(1).toPoint());
  EXPECT_EQ(view.table().currentRow(), 1);
}

TEST_F(SearchViewTest, WhatIsNoResultIsSaidAndCostsNothing) {
  SearchView view;
  ASSERT_TRUE(view.show_result(kResult, "r"));
  for (const char* bad :
       {"", "[]", "{}", R"({"best":5})", R"({"best":[{"gpus":"x"}]})", R"({"best":[7]})",
        R"({"best":[],"rejected":{"a":1}})", R"({"best":[],"looked_at":"x"})"}) {
    EXPECT_FALSE(view.show_result(bad, "bad")) << bad;
    EXPECT_TRUE(view.summary().startsWith("bad is no result")) << bad;
    EXPECT_EQ(view.found().size(), 2u);
    EXPECT_EQ(view.table().rowCount(), 2);
  }
  EXPECT_FALSE(view.open("/nowhere/search.json"));
}

// What a failing search says is shown, and what was found before stays.
TEST_F(SearchViewTest, SearchesInAChild) {
  SearchView view;
  pretend(QByteArray("cat <<'X'\n") + kResult + "\nX\n");
  view.start("scenario.json");
  ASSERT_TRUE(QTest::qWaitFor([&] { return view.found().size() == 2; }, 20'000));
  ASSERT_TRUE(QTest::qWaitFor([&] { return !view.running(); }, 20'000));
  pretend("echo 'gputwin: infeasible: nothing fits' >&2; exit 3\n");
  view.start("scenario.json");
  ASSERT_TRUE(QTest::qWaitFor([&] { return view.summary().contains("nothing fits"); }, 20'000));
  EXPECT_EQ(view.found().size(), 2u);
  qunsetenv("GPUTWIN_BINARY");
}

}  // namespace
}  // namespace gputwin::gui
