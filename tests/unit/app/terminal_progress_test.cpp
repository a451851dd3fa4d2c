#include "sim/app/terminal_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gputwin {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A file in memory in the place of a terminal, and a clock that is set by hand.
struct Screen {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* file = ::open_memstream(&text, &size);
  double now_s = 0;
  ~Screen() {
    std::fclose(file);
    std::free(text);
  }
  std::string shown() {
    std::fflush(file);
    return std::string(text, size);
  }
};

// A quarter done after 3 s leaves about 9 s.
TEST(TerminalProgress, GuessesWhatIsLeft) {
  Screen screen;
  TerminalProgress progress(
      "simulating", screen.file, {}, [&] { return screen.now_s; }, true);
  screen.now_s = 3;
  EXPECT_TRUE(progress.progress(0.25));
  EXPECT_THAT(screen.shown(), HasSubstr("simulating  25 %  #####"));
  EXPECT_THAT(screen.shown(), HasSubstr("about 9.000 s left"));
}

// Silent in the first half second, then at most every 0.1 s.
TEST(TerminalProgress, DoesNotFlicker) {
  Screen screen;
  TerminalProgress progress(
      "x", screen.file, {}, [&] { return screen.now_s; }, true);
  screen.now_s = 0.4;
  progress.progress(0.1);
  EXPECT_EQ(screen.shown(), "");
  screen.now_s = 1.0;
  progress.progress(0.5);
  const std::string once = screen.shown();
  EXPECT_NE(once, "");
  screen.now_s = 1.05;
  progress.progress(0.6);
  EXPECT_EQ(screen.shown(), once);
}

TEST(TerminalProgress, ClearsItsLineAtTheEnd) {
  Screen screen;
  {
    TerminalProgress progress(
        "x", screen.file, {}, [&] { return screen.now_s; }, true);
    screen.now_s = 1;
    progress.progress(0.5);
  }
  EXPECT_THAT(screen.shown(), ::testing::EndsWith("\r\x1b[K"));
}

TEST(TerminalProgress, IsSilentInAPipe) {
  Screen screen;
  {
    TerminalProgress progress(
        "x", screen.file, {}, [&] { return screen.now_s; }, false);
    screen.now_s = 10;
    progress.progress(0.5);
  }
  EXPECT_EQ(screen.shown(), "");
}

TEST(TerminalProgress, CancelsWhenTold) {
  Screen screen;
  bool stop = false;
  TerminalProgress progress(
      "x", screen.file, [&] { return stop; }, [&] { return screen.now_s; }, true);
  EXPECT_TRUE(progress.progress(0.1));
  stop = true;
  EXPECT_FALSE(progress.progress(0.2));
}

}  // namespace
}  // namespace gputwin
