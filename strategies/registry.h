// The explicit table of everything a strategy can consist of.
#pragma once

#include <span>

#include "sim/core/layout.h"

namespace gputwin {

struct StepEntry {
  const char* name;
  const char* what;
};

struct ScheduleEntry {
  Schedule schedule;
  const char* name;  // as scenarios spell it
  const char* what;
};

std::span<const StepEntry> step_table();
std::span<const ScheduleEntry> schedule_table();

}  // namespace gputwin
