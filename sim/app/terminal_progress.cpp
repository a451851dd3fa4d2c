#include "sim/app/terminal_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "sim/app/report.h"

namespace gputwin {

namespace {

constexpr double kFirstAfterS = 0.5;  // short runs never flicker
constexpr double kEveryS = 0.1;
constexpr double kGuessAfter = 0.02;  // of the work, before a remaining time is worth saying

double steady_clock_s() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

TerminalProgress::TerminalProgress(std::string what, std::FILE* stream,
                                   std::function<bool()> cancelled)
    : TerminalProgress(std::move(what), stream, std::move(cancelled), steady_clock_s, false) {}

TerminalProgress::TerminalProgress(std::string what, std::FILE* stream,
                                   std::function<bool()> cancelled, std::function<double()> now_s,
                                   bool always)
    : what_(std::move(what)),
      stream_(stream),
      cancelled_(std::move(cancelled)),
      now_s_(std::move(now_s)),
      visible_(always || ::isatty(::fileno(stream)) != 0) {
  start_s_ = last_s_ = now_s_();
}

TerminalProgress::~TerminalProgress() {
  if (!shown_) return;
  std::fputs("\r\x1b[K", stream_);
  std::fflush(stream_);
}

bool TerminalProgress::progress(double fraction) {
  if (visible_) {
    const double now = now_s_();
    if (now - start_s_ >= kFirstAfterS && now - last_s_ >= kEveryS) {
      last_s_ = now;
      show(std::clamp(fraction, 0.0, 1.0), now - start_s_);
    }
  }
  return !cancelled_ || !cancelled_();
}

void TerminalProgress::show(double fraction, double elapsed_s) {
  std::string text =
      fmt::format("\r\x1b[K{} {:3.0f} %  {:<20}", what_, fraction * 100, bar(fraction, 20, true));
  if (fraction > kGuessAfter) {
    text += fmt::format("  about {} left", human_time(elapsed_s * (1 - fraction) / fraction));
  }
  std::fputs(text.c_str(), stream_);
  std::fflush(stream_);
  shown_ = true;
}

}  // namespace gputwin
