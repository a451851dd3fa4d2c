// JSON lines for programs that run gputwin as a child: `run --ipc`.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "sim/app/run.h"
#include "sim/core/event_sink.h"

namespace gputwin::cli::ipc {

/// {"type":"progress","fraction":0.25}, at most ten a second.
class Progress final : public EventSink {
 public:
  explicit Progress(std::function<bool()> cancelled) : cancelled_(std::move(cancelled)) {}
  bool wants_events() const override { return false; }
  void op(const OpEvent&) override {}
  void flow(RankId, RankId, Bytes, const Route&, Ps, Ps) override {}
  bool progress(double fraction) override;

 private:
  std::function<bool()> cancelled_;
  std::chrono::steady_clock::time_point last_{};
};

/// {"type":"result","result":{…}} with the contents of result.json. Returns the exit code.
int say_result(const RunResult& result, const std::string& flops_convention);

/// {"type":"error","code":3,"reason":…,"fix":…}: infeasible, deadlock or cancelled (code 1).
int say_why_not(const RunOutcome& outcome);

/// Runs `body`; bad input becomes {"type":"error","code":2,"file","pointer","value","problem",
/// "fix"}.
int guarded(const std::function<int()>& body);

}  // namespace gputwin::cli::ipc
