// Colours by role, dark and light. Hues of the kinds of work were found by search: between any two,
// the smallest Lab distance under normal, protan, deutan and tritan sight is at least 15, their
// contrast to the ground at least 3 (tests/unit/gui/theme_test.cpp measures both).
#pragma once

#include <QColor>
#include <QPalette>
#include <array>

#include "sim/trace/slice_kind.h"

namespace gputwin::gui {

struct Theme {
  bool dark = true;
  QColor ground;  // of the timeline
  QColor panel;   // of panels, headers, rulers
  QColor raised;  // of buttons and group rows
  QColor text, dim;
  QColor line;    // grid and borders
  QColor accent;  // selection, marks, focus
  QColor warn;
  QColor better, worse;  // of a difference: blue and orange
  std::array<QColor, kSliceKinds> kinds;

  const QColor& of(SliceKind kind) const { return kinds[static_cast<std::size_t>(kind)]; }
  /// Black or white, whichever reads better on `ground`.
  static QColor text_on(const QColor& ground);
  /// 0 .. 1 as a colour from quiet to loud, for loads.
  QColor load(double share) const;
};

const Theme& dark_theme();
const Theme& light_theme();
/// Theme in use; set_theme() changes it for all windows (also the application's palette).
const Theme& theme();
void set_theme(bool dark);

/// Contrast of two colours as WCAG defines it, 1 .. 21.
double contrast(const QColor& a, const QColor& b);

}  // namespace gputwin::gui
