#include "gui/theme.h"

#include <QApplication>
#include <algorithm>
#include <cmath>

namespace gputwin::gui {

namespace {

double linear(double channel) {
  return channel <= 0.04045 ? channel / 12.92 : std::pow((channel + 0.055) / 1.055, 2.4);
}

double luminance(const QColor& c) {
  return 0.2126 * linear(c.redF()) + 0.7152 * linear(c.greenF()) + 0.0722 * linear(c.blueF());
}

Theme make_dark() {
  Theme t;
  t.dark = true;
  t.ground = QColor("#1b1d21");
  t.panel = QColor("#23262b");
  t.raised = QColor("#2e3238");
  t.text = QColor("#e6e8eb");
  t.dim = QColor("#a7adb6");
  t.line = QColor("#3b4048");
  t.accent = QColor("#4cc2ff");
  t.warn = QColor("#ffb454");
  t.better = QColor("#5aa8f2");
  t.worse = QColor("#ff8c50");
  t.kinds = {QColor("#5aa8f2"), QColor("#685df3"), QColor("#bae1fe"), QColor("#74ff9a"),
             QColor("#ff8c50"), QColor("#f4c00f"), QColor("#c82a37"), QColor("#ab369e"),
             QColor("#fffcea"), QColor("#8a8d93"), QColor("#8a8d93")};
  return t;
}

Theme make_light() {
  Theme t;
  t.dark = false;
  t.ground = QColor("#ffffff");
  t.panel = QColor("#f3f4f6");
  t.raised = QColor("#e4e7eb");
  t.text = QColor("#1d2127");
  t.dim = QColor("#565d68");
  t.line = QColor("#cfd4db");
  t.accent = QColor("#0067b8");
  t.warn = QColor("#a35200");
  t.better = QColor("#1f6fc4");
  t.worse = QColor("#c24e00");
  t.kinds = {QColor("#5597ce"), QColor("#112cff"), QColor("#b65cff"), QColor("#004339"),
             QColor("#f35700"), QColor("#cd7d5a"), QColor("#8b1e00"), QColor("#68086c"),
             QColor("#5708a6"), QColor("#808389"), QColor("#808389")};
  return t;
}

const Theme*& current() {
  static const Theme* theme = &dark_theme();
  return theme;
}

QPalette palette_of(const Theme& t) {
  QPalette p;
  p.setColor(QPalette::Window, t.panel);
  p.setColor(QPalette::WindowText, t.text);
  p.setColor(QPalette::Base, t.ground);
  p.setColor(QPalette::AlternateBase, t.panel);
  p.setColor(QPalette::Text, t.text);
  p.setColor(QPalette::Button, t.raised);
  p.setColor(QPalette::ButtonText, t.text);
  p.setColor(QPalette::ToolTipBase, t.raised);
  p.setColor(QPalette::ToolTipText, t.text);
  p.setColor(QPalette::PlaceholderText, t.dim);
  p.setColor(QPalette::Highlight, t.accent);
  p.setColor(QPalette::HighlightedText, Theme::text_on(t.accent));
  p.setColor(QPalette::Link, t.accent);
  p.setColor(QPalette::Light, t.line);
  p.setColor(QPalette::Mid, t.line);
  p.setColor(QPalette::Dark, t.line);
  p.setColor(QPalette::Disabled, QPalette::Text, t.dim);
  p.setColor(QPalette::Disabled, QPalette::ButtonText, t.dim);
  p.setColor(QPalette::Disabled, QPalette::WindowText, t.dim);
  return p;
}

}  // namespace

double contrast(const QColor& a, const QColor& b) {
  const double x = luminance(a) + 0.05, y = luminance(b) + 0.05;
  return x > y ? x / y : y / x;
}

QColor Theme::text_on(const QColor& ground) {
  const QColor black(0, 0, 0), white(255, 255, 255);
  return contrast(ground, black) >= contrast(ground, white) ? black : white;
}

// Viridis at five points, linear between them.
QColor Theme::load(double share) const {
  static constexpr int kPoints[5][3] = {
      {68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}};
  const double x = std::clamp(share, 0.0, 1.0) * 4;
  const int i = std::min(3, static_cast<int>(x));
  const auto part = [&](int c) {
    return static_cast<int>(
        std::lround(kPoints[i][c] + (kPoints[i + 1][c] - kPoints[i][c]) * (x - i)));
  };
  return {part(0), part(1), part(2)};
}

const Theme& dark_theme() {
  static const Theme theme = make_dark();
  return theme;
}

const Theme& light_theme() {
  static const Theme theme = make_light();
  return theme;
}

const Theme& theme() { return *current(); }

void set_theme(bool dark) {
  current() = dark ? &dark_theme() : &light_theme();
  if (qApp != nullptr) QApplication::setPalette(palette_of(theme()));
}

}  // namespace gputwin::gui
