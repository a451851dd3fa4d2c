#include "gui/timeline.h"

#include <QWheelEvent>

#include "tests/unit/gui/gui_world.h"

namespace gputwin::gui {
namespace {

class TimelineTest : public testing::Test {
 protected:
  TimelineTest() { need_application(); }
  void SetUp() override {
    timeline_ = std::make_unique<Timeline>(session_);
    timeline_->resize(1200, 400);
    timeline_->show();
    ASSERT_TRUE(QTest::qWaitForWindowExposed(timeline_.get()));
    session_.set_store(two_ranks(50));
    QApplication::processEvents();
  }
  /// Middle of slice `s` on screen.
  QPoint middle(SliceId s) {
    const Store& store = *session_.store();
    const int row = timeline_->rows().reveal_track(store.track_of(s));
    const Row& r = timeline_->rows().rows()[static_cast<std::size_t>(row)];
    const double x = timeline_->x_of(static_cast<double>(store.start(s) + store.end(s)) / 2);
    return {static_cast<int>(x),
            timeline_->canvas().top() + r.top - timeline_->scroll() + r.height / 2};
  }
  bool answered() {
    return QTest::qWaitFor([this] { return !session_.busy(); }, 20'000);
  }
  QColor pixel(QPoint at) { return timeline_->grab().toImage().pixelColor(at); }
  void wheel(QPoint at, int angle, Qt::KeyboardModifiers held) {
    QWheelEvent event(at, timeline_->mapToGlobal(at), {}, {0, angle}, Qt::NoButton, held,
                      Qt::NoScrollPhase, false);
    QApplication::sendEvent(timeline_.get(), &event);
  }

  Session session_;
  std::unique_ptr<Timeline> timeline_;
};

// Group, compute, tp, memory for each of two ranks.
TEST_F(TimelineTest, LaysOutOneRowPerStreamAndCounter) {
  const auto& rows = timeline_->rows().rows();
  ASSERT_EQ(rows.size(), 8u);
  EXPECT_EQ(rows[0].kind, RowKind::Group);
  EXPECT_EQ(rows[1].label, "compute");
  EXPECT_EQ(rows[2].label, "tp");
  EXPECT_EQ(rows[3].kind, RowKind::Counter);
  EXPECT_GT(timeline_->rows_drawn(), 0);
}

// The colour at the middle of a slice is its kind's; between slices of one row it is the ground's.
TEST_F(TimelineTest, DrawsSlicesWhereTheyAre) {
  timeline_->set_window({0, 100.0 * kUs / 300});
  EXPECT_EQ(pixel(middle(1) + QPoint(0, 6)), theme().of(SliceKind::Gemm));
  const QPoint gap =
      middle(0) + QPoint(static_cast<int>(50 * 3), 0);  // 80 us: tp runs, compute not
  EXPECT_EQ(pixel(gap), theme().ground);
}

TEST_F(TimelineTest, CtrlWheelZoomsAtTheMouse) {
  const QPoint at(700, 100);
  const double t = timeline_->time_at(at.x()), before = timeline_->window().per_pixel;
  wheel(at, 240, Qt::ControlModifier);
  EXPECT_LT(timeline_->window().per_pixel, 0.8 * before);
  EXPECT_NEAR(timeline_->time_at(at.x()), t, 2 * timeline_->window().per_pixel);
}

TEST_F(TimelineTest, KeysZoomAndMove) {
  const Window before = timeline_->window();
  QTest::keyClick(timeline_.get(), Qt::Key_W);
  EXPECT_NEAR(timeline_->window().per_pixel, 0.75 * before.per_pixel, 1e-6 * before.per_pixel);
  const double from = timeline_->window().from;
  QTest::keyClick(timeline_.get(), Qt::Key_D);
  EXPECT_GT(timeline_->window().from, from);
  QTest::keyClick(timeline_.get(), Qt::Key_A);
  EXPECT_NEAR(timeline_->window().from, from, 2 * timeline_->window().per_pixel);
  timeline_->undo_view();
  EXPECT_EQ(timeline_->window(), before);
}

// After a move only the columns that came in are drawn, and the picture is the one that a fresh
// drawing of all gives.
TEST_F(TimelineTest, MovingDrawsOnlyWhatComesIn) {
  timeline_->set_window({0, 4e6});
  (void)timeline_->grab();
  timeline_->pan(57);
  const QImage moved = timeline_->grab().toImage();
  EXPECT_EQ(timeline_->columns_drawn(), 57);
  timeline_->theme_changed();  // draws all anew
  const QImage fresh = timeline_->grab().toImage();
  EXPECT_EQ(timeline_->columns_drawn(), timeline_->canvas().width());
  EXPECT_EQ(moved, fresh);
}

TEST_F(TimelineTest, ClickSelectsAndEscapeClears) {
  timeline_->set_window({0, 100.0 * kUs / 300});
  QTest::mouseClick(timeline_.get(), Qt::LeftButton, {}, middle(1));
  EXPECT_EQ(session_.selected(), 1u);
  EXPECT_TRUE(timeline_->summary().contains("F/mb1/L1/fc1"));
  QTest::keyClick(timeline_.get(), Qt::Key_Escape);
  EXPECT_EQ(session_.selected(), kNoSlice);
}

TEST_F(TimelineTest, DragSelectsARange) {
  QTest::mousePress(timeline_.get(), Qt::LeftButton, {}, {400, 100});
  QTest::mouseMove(timeline_.get(), {600, 100});
  QTest::mouseRelease(timeline_.get(), Qt::LeftButton, {}, {600, 100});
  ASSERT_TRUE(session_.range());
  EXPECT_NEAR(static_cast<double>(session_.range()->begin), timeline_->time_at(400), 2);
  EXPECT_NEAR(static_cast<double>(session_.range()->end), timeline_->time_at(600), 2);
  timeline_->fit_selection();
  EXPECT_GT(timeline_->x_of(static_cast<double>(session_.range()->end)) -
                timeline_->x_of(static_cast<double>(session_.range()->begin)),
            0.7 * timeline_->canvas().width());
}

TEST_F(TimelineTest, StepsAlongARowAndAFlow) {
  timeline_->reveal(3);
  timeline_->step(1);
  EXPECT_EQ(session_.selected(), 4u);
  timeline_->step(-1);
  EXPECT_EQ(session_.selected(), 3u);
  const Flow flow = session_.store()->flows().front();
  timeline_->reveal(flow.from);
  timeline_->follow_flow(1);
  EXPECT_EQ(session_.selected(), flow.to);
  timeline_->follow_flow(-1);
  EXPECT_EQ(session_.selected(), flow.from);
}

TEST_F(TimelineTest, SearchStepsThroughHitsAndAround) {
  session_.search("all_reduce rank1");
  ASSERT_TRUE(answered());
  EXPECT_EQ(session_.hits().total, 50);
  timeline_->next_hit(1);
  const SliceId first = session_.selected();
  EXPECT_EQ(first, session_.hits().slices.front());
  timeline_->next_hit(-1);
  EXPECT_EQ(session_.selected(), session_.hits().slices.back());
  timeline_->next_hit(1);
  EXPECT_EQ(session_.selected(), first);
  // Forward from the first: the second, then the third.
  for (std::size_t k = 1; k <= 2; ++k) {
    timeline_->next_hit(1);
    EXPECT_EQ(session_.selected(), session_.hits().slices[k]);
  }
}

TEST_F(TimelineTest, GroupsFoldAndRegroup) {
  const int before = timeline_->rows().height();
  QTest::mouseClick(timeline_.get(), Qt::LeftButton, {}, {30, timeline_->canvas().top() + 5});
  EXPECT_LT(timeline_->rows().height(), before);
  EXPECT_FALSE(timeline_->rows().rows().front().open);
  timeline_->set_grouping(Grouping::Meaning);
  EXPECT_EQ(timeline_->rows().rows().front().label, "all compute");
  timeline_->set_row_height(1);
  EXPECT_EQ(timeline_->rows().row_height(), 1);
  EXPECT_GT(timeline_->rows_drawn(), 0);
}

TEST_F(TimelineTest, PinnedRowsComeFirst) {
  timeline_->reveal(session_.store()->tracks[3].first);
  timeline_->pin_selected();
  EXPECT_TRUE(timeline_->rows().rows().front().pinned);
  EXPECT_EQ(timeline_->rows().rows().front().id, 3u);
}

TEST_F(TimelineTest, CriticalPathIsDrawnAndWalked) {
  session_.show_path(true);
  ASSERT_TRUE(answered());
  ASSERT_FALSE(session_.path().empty());
  timeline_->next_on_path(1);
  const SliceId first = session_.selected();
  timeline_->next_on_path(1);
  EXPECT_NE(session_.selected(), first);
  EXPECT_EQ(timeline_->canvas().top(), Timeline::kRulerHeight + Timeline::kPathHeight);
}

}  // namespace
}  // namespace gputwin::gui
