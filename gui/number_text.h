// Numbers as people read them; the same spelling as in the report of the command line.
#pragma once

#include <QString>

#include "sim/core/units.h"

namespace gputwin::gui {

QString text(const std::string& utf8);
QString text(std::string_view utf8);

/// "3.204 ms"; as report.h spells it.
QString time_text(Ps time);
/// "3,204,118,223 ps".
QString exact_text(Ps time);
/// "46.2 %".
QString share_text(double part, double whole);
/// "23.4 GiB".
QString bytes_text(double bytes);
QString count_text(std::int64_t count);
/// Time on a ruler whose ticks are `step` apart: just enough digits.
QString tick_text(Ps time, Ps step);
/// A step of 1, 2 or 5 times a power of ten, at least `least`.
Ps tick_step(double least);

}  // namespace gputwin::gui
