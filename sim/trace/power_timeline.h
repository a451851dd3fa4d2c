// Electrical power of watched ranks' GPUs over time, in a fixed amount of memory.
#pragma once

#include <functional>
#include <vector>

#include "sim/core/event_sink.h"
#include "sim/core/plan.h"
#include "sim/trace/time_windows.h"

namespace gputwin {

inline constexpr const char* kPowerCounter = "gpu power";  // in watts, series "W"

/// What a GPU draws, in shares of its limit.
struct PowerRates {
  double limit_W = 0;  // 0: not known, no power is drawn
  double idle = 0, busy = 0;
};

/// Where power comes from: the rates of a rank's GPU, and what a task adds to a busy one.
struct PowerSource {
  std::function<PowerRates(RankId)> rates;
  std::function<double(RankId, const Instruction&)> added;
};

/// limit x min(1, idle + (busy - idle) x share of the window in which streams are busy + what
/// tasks add, by their time). Streams that are busy at the same moment count once only as far as a
/// window is full.
class PowerTimeline {
 public:
  /// Without a source there is no power. `ranks`: sorted.
  PowerTimeline(PowerSource source, std::vector<RankId> ranks);

  void op(const OpEvent& event);

  struct Sample {
    Ps at = 0;
    double watts = 0;
  };
  /// Of ranks[index], where it changes; empty if its limit is not known.
  std::vector<Sample> samples(std::size_t index) const;

 private:
  PowerSource source_;
  std::vector<RankId> ranks_;
  std::vector<PowerRates> rates_;  // by index of the rank
  TimeWindows windows_;            // two rows a rank: busy time, added share x time, in ps
  Ps end_ = 0;
};

}  // namespace gputwin
