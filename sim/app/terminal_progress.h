// One line on a terminal that says how far a run is; silent in a pipe.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include "sim/core/event_sink.h"

namespace gputwin {

/// Overwrites its line at most ten times a second, after the first half second, and clears it at
/// the end. It returns false, which cancels the run, once `cancelled` says so.
class TerminalProgress final : public EventSink {
 public:
  /// `stream` is written only if it is a terminal, unless `always` (tests). `now_s`: a steady
  /// clock.
  explicit TerminalProgress(std::string what, std::FILE* stream = stderr,
                            std::function<bool()> cancelled = {});
  TerminalProgress(std::string what, std::FILE* stream, std::function<bool()> cancelled,
                   std::function<double()> now_s, bool always);
  ~TerminalProgress() override;
  TerminalProgress(const TerminalProgress&) = delete;
  TerminalProgress& operator=(const TerminalProgress&) = delete;

  bool wants_events() const override { return false; }
  void op(const OpEvent&) override {}
  void flow(RankId, RankId, Bytes, const Route&, Ps, Ps) override {}
  bool progress(double fraction) override;

 private:
  void show(double fraction, double elapsed_s);

  std::string what_;
  std::FILE* stream_;
  std::function<bool()> cancelled_;
  std::function<double()> now_s_;
  bool visible_ = false, shown_ = false;
  double start_s_ = 0, last_s_ = 0;
};

}  // namespace gputwin
